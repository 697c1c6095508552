"""Examples of photographs, small: they learn, print what they found, and draw."""

from __future__ import annotations

import importlib.util
import re
import sys

import numpy as np
import pytest
from support.machines import ROOT

import coopnet as cn

pytest.importorskip("matplotlib")
pytest.importorskip("PIL.Image")


@pytest.fixture
def example(monkeypatch, backend):
    spec = importlib.util.spec_from_file_location("photo_example", ROOT / "examples" / "photo.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # its data classes look for it
    spec.loader.exec_module(module)
    monkeypatch.setattr(cn.backend, "require", lambda name: backend)
    return module


def test_held_out_pixels_are_clean_and_none_is_learned(example):
    truth = example.face(32)
    made = example.task(truth, 0.25, 0.1, seed=3)
    assert len(made.chosen) == 256 and sorted([*made.chosen, *made.held_out]) == list(range(32 * 32))
    noise = made.noisy - truth
    assert noise.std() == pytest.approx(0.1, rel=0.05) and abs(noise.mean()) < 0.01
    changed = truth.copy()
    changed.reshape(-1, 3)[made.chosen] = 0.5  # what is learned does not count, what is held out does
    assert made.psnr(changed) == np.inf
    changed.reshape(-1, 3)[made.held_out[0]] += 0.5
    assert made.psnr(np.clip(changed, 0, 1)) < 60
    other = example.task(truth, 0.25, 0.1, seed=4)
    assert list(other.chosen) != list(made.chosen)


@pytest.mark.slow
def test_few_pixels(example, tmp_path, monkeypatch, capsys):
    for name, value in (("SIDE", 32), ("WIDTH", 16), ("MASKS", 4)):
        monkeypatch.setattr(example, name, value)
    monkeypatch.setattr(example.face, "__defaults__", (32,))
    monkeypatch.setattr(example.make, "__defaults__", (0.0, 16))
    monkeypatch.setattr("sys.argv", ["photo.py", str(tmp_path), "--quick"])
    assert example.main() == 0
    printed = capsys.readouterr().out
    assert "32 x 32 pixels, learned from 10 %" in printed and "AUSE of dropout" in printed and "dB" in printed
    for name in ("photo.png", "photo-uncertainty.png"):
        assert (tmp_path / name).stat().st_size > 10_000


@pytest.mark.slow
def test_the_demo_runs(tmp_path, monkeypatch, capsys, backend):
    spec = importlib.util.spec_from_file_location("unseen_example", ROOT / "examples" / "unseen.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(cn.backend, "require", lambda name: backend)
    monkeypatch.setattr("sys.argv", ["unseen.py", str(tmp_path)])
    module.main()
    printed = capsys.readouterr().out
    found = dict(re.findall(r"^(.+?) +hides +([\d.]+) %", printed, re.M))
    assert set(found) == {"Dropout", "Gradient", "Gaussian process", "cn.laplace"}
    assert float(found["cn.laplace"]) > 80 > 20 > float(found["Dropout"])
    assert (tmp_path / "unseen.png").stat().st_size > 10_000
