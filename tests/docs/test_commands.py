"""The session on the page of commands: each command prints what the page says, up to numbers."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pytest
from support.machines import ROOT

pytest.importorskip("typer")
pytest.importorskip("safetensors")

import coopnet as cn
from coopnet import cli, image

PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
SMALLER = {"1024x1200": "24x16", "--width 128": "--width 32"}


def plain(text):
    """Without numbers, hashes, widths of columns, warnings, and what depends on the backend."""
    text = re.sub(
        r"^coopnet: warning: .*\n", "", text, flags=re.M
    )  # of a machine, such as little memory; tested elsewhere
    text = re.sub(r"\.dev\d+", "", text)  # a release has none
    text = re.sub(r"\b[0-9a-f]{12,64}\b", "#", text)
    text = re.sub(r"((?<= )-)?([\d.,]*\d(e[-+]?\d+)?|\binf\b|…)", "#", text)
    return re.sub(r"[ \t]+", " ", re.sub(r"LLVM|CUDA|single|half", "@", text)).strip()


def test_session(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # a picture has 32 levels, which take seconds to compile; in half precision, too, weights are a file of their own
    few = {"n_levels": 2, "base_resolution": 64, "hashmap_size": 2**12}
    monkeypatch.setattr(image.learn, "HashGrid", lambda size, **options: cn.HashGrid(size, **(options | few)))
    image.files.save("photo.jpg", np.random.default_rng(0).random((16, 24, 3), np.float32))
    session = re.findall(r"```console\n\$ coopnet ([^\n]*)\n(.*?)```", PAGE, re.S)
    assert len(session) == PAGE.count("$ coopnet ") == 10
    for command, said in session:
        for number, smaller in SMALLER.items():
            command = command.replace(number, smaller)
        arguments = shlex.split(command)
        if arguments[0] == "fit" and "--steps" not in arguments:
            arguments += ["--steps", "2"] if "--width" in arguments else ["--steps", "2", "--width", "16"]
        capsys.readouterr()
        code = cli.main(arguments)
        printed = capsys.readouterr()
        assert code == ("coopnet: error:" in said)
        assert plain(printed.out + printed.err) == plain(said), command
