"""``examples/export``: programs in C++ and Slang that draw an exported signed distance, beside our own picture."""

from __future__ import annotations

import os
import subprocess
import sys

import drjit as dr
import numpy as np
import pytest
from support.machines import ROOT
from support.shaders import Slang

import coopnet as cn

SAMPLES, SIDE = ROOT / "examples" / "export", 256


@pytest.fixture(scope="module")
def ball():
    """A bumpy ball."""
    network = cn.MLP(-1, 1, width=16, depth=2, activation="softplus")
    field = cn.NeuralField(cn.Frequency(2, in_features=3), network).build("llvm", seed=1)

    def batch(key):
        p = cn.uniform(3, key, dr.llvm.ad.Float, 8192)
        r = dr.norm(dr.llvm.ad.Array3f(p[0] - 0.55, p[1] - 0.45, p[2] - 0.5))
        return list(p), [r - 0.3 + 0.02 * dr.sin(18 * p[0])]

    cn.fit(field, batch, 300, lr=1e-2, loss="l1", progress=False)
    return field


def own(field) -> np.ndarray:
    """The picture of the samples, drawn here."""
    ns = dr.llvm.ad
    row, column = (v.ravel().astype(np.float32) for v in np.indices((SIDE, SIDE)))
    d = dr.normalize(ns.Array3f((column + 0.5) / SIDE - 0.5, 0.5 - (row + 0.5) / SIDE, -1 / 0.54))
    hit = cn.render.sphere_trace(field, ns.Array3f(0.5, 0.5, 2.9), d, 3.4, 256, 1e-4, t_min=1.9 / -d.z, lipschitz=1.25)
    lit = 0.15 + 0.85 * dr.maximum(0, dr.dot(hit.normal, ns.Array3f(0.48, 0.6, 0.64)))
    return (dr.select(hit.hit, lit, 1) ** (1 / 2.2)).numpy().reshape(SIDE, SIDE)


def read(path) -> np.ndarray:
    head, raw = path.read_bytes()[:15], path.read_bytes()[15:]
    assert head == b"P6\n256 256\n255\n"
    picture = np.frombuffer(raw, np.uint8).reshape(SIDE, SIDE, 3) / 255
    assert (picture[..., :1] == picture).all()
    return picture[..., 0]


def close(drawn: np.ndarray, field) -> None:
    expected = own(field)
    assert 0.1 < np.mean(expected < 0.99) < 0.9
    difference = np.abs(drawn - expected)
    assert difference.mean() < 2 / 255 and np.quantile(difference, 0.98) < 3 / 255  # outlines apart


def test_in_cpp(ball, tmp_path):
    weights = cn.export(ball, "c", tmp_path / "field.c", derivatives=True, inline=False).weights
    options = ["-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", tmp_path]
    subprocess.run(["c++", *options, SAMPLES / "shade.cpp", "-o", tmp_path / "shade"], check=True, timeout=120)
    subprocess.run([tmp_path / "shade", weights, tmp_path / "a.ppm"], check=True, timeout=120)
    close(read(tmp_path / "a.ppm"), ball)
    wrong = subprocess.run([tmp_path / "shade", tmp_path / "a.ppm", tmp_path / "b.ppm"], capture_output=True, text=True)
    assert wrong.returncode == 1 and "not the weights of this field" in wrong.stderr


def test_in_slang(ball, tmp_path):
    if reason := Slang.missing():
        pytest.skip(reason)
    weights = cn.export(ball, "slang", tmp_path / "field.slang", derivatives=True, inline=False).weights
    arguments = [weights, tmp_path / "a.ppm", "--device", "cpu", "--fields", tmp_path]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, SAMPLES / "shade.py", *arguments], check=True, timeout=200, env=paths)
    close(read(tmp_path / "a.ppm"), ball)
    arguments[:2] = [tmp_path / "a.ppm", tmp_path / "b.ppm"]
    command = [sys.executable, SAMPLES / "shade.py", *arguments]
    wrong = subprocess.run(command, capture_output=True, text=True, timeout=200, env=paths)
    assert wrong.returncode == 1 and "not the weights of this field" in wrong.stderr
    assert not (tmp_path / "b.ppm").exists()
