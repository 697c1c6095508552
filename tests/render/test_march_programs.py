"""The benchmark and the example of ray marching run and say what they should; nothing is said about time."""

from __future__ import annotations

import json
import re

import pytest
from support.machines import ROOT, python

pytestmark = pytest.mark.slow


def test_benchmark(backend, tmp_path):
    if backend != "llvm":
        pytest.skip("one backend will do")
    script = ROOT / "benchmarks" / "marching.py"
    done = python(script, "--backend", backend, "--quick", "--fields", "bare, 33 wide", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "marching-llvm.json").read_text())["results"]
    assert {row["peer"] for row in results["training"]} == {"plain", "wide", "replay", "loop"}
    assert all(row["wall_ms"] > 0 and row["to_plain"] > 0 for row in results["training"])
    assert {row["peer"] for row in results["memory"]} == {"wide", "replay", "loop"}


def test_example(backend, tmp_path):
    pytest.importorskip("mitsuba")
    if backend != "llvm":
        pytest.skip("one backend will do")
    done = python(ROOT / "examples" / "radiance_field.py", "--quick", "--backend", backend, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    known, other = (float(v) for v in re.findall(r"PSNR ([\d.]+) dB", done.stdout))
    assert known > 20 and known > other  # white pictures alone make 8.8
    correlation = float(re.search(r"all views: .*correlation (-?[\d.]+)", done.stdout)[1])
    assert correlation > 0.1, done.stdout
    assert (tmp_path / "radiance_field.png").stat().st_size > 1000
