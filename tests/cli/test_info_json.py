"""``coopnet info --json``: what a bug report holds."""

import json
import re

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


def test_metadata_with_the_names_of_facts(tmp_path, capsys, backend):
    path, field = tmp_path / "field.safetensors", cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build(backend)
    cn.save(path, field, metadata={"sha256": "faked", "steps": 9})
    assert cli.main(["info", str(path)]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"sha256 +[0-9a-f]{64}", first)
    assert "metadata sha256 faked" in lines and any(line.split() == ["steps", "9"] for line in lines)


@pytest.mark.parametrize("versions", ["[]", "null", "none"])
def test_versions_that_are_none(tmp_path, capsys, backend, versions):
    safetensors = pytest.importorskip("safetensors.numpy")
    path, field = tmp_path / "field.safetensors", cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build(backend)
    cn.save(path, field)
    with __import__("safetensors").safe_open(path, "np") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    safetensors.save_file(tensors, path, metadata | {"versions": versions})
    assert cli.main(["info", str(path)]) == 0
    assert "written by" in capsys.readouterr().out
