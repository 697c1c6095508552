"""``coopnet info --json``: what a bug report holds."""

import json

import pytest
from support.machines import python

import coopnet as cn

pytest.importorskip("typer")

from coopnet import cli


def test_json(capsys):
    assert cli.main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["coopnet"]) == (1, cn.__version__)
    assert tuple(found["backends"]) == cn.backend.available()
    rows = {what: {"finding": finding, "cure": cure or None} for what, finding, cure in cn.backend.info()}
    assert found["found"].keys() == rows.keys()
    cache = "kernel cache"  # grows
    assert {k: v for k, v in found["found"].items() if k != cache} == {k: v for k, v in rows.items() if k != cache}
    assert {"drjit", "numpy", "mitsuba", "torch", "trimesh", "typer"} <= found["packages"].keys()
    assert found["packages"]["numpy"] == __import__("numpy").__version__


def test_missing_packages_are_null(monkeypatch, capsys):
    from coopnet.backend import report

    monkeypatch.setattr(report, "_version", lambda package: None)
    assert cli.main(["info", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["packages"].values()) == {None}


def test_nothing_warns():
    """Neither the import nor the command, where warnings are errors."""
    done = python("-W", "error", "-m", "coopnet", "info", "--json")
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert json.loads(done.stdout)["backends"]
