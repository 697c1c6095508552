"""The benchmark of sphere tracing, small."""

from __future__ import annotations

import json

import pytest
from support.machines import ROOT, python


@pytest.mark.slow
def test_runs(backend, tmp_path):
    options = ["--backend", backend, "--quick", "--fields", "network 32x3", "--out", tmp_path]
    done = python(ROOT / "benchmarks" / "tracing.py", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((tmp_path / f"tracing-{backend}.json").read_text())["results"]
    kernels = row["kernels"]
    assert kernels["trace"] == kernels["full"] == kernels["bare"] == kernels["by_hand"] == 1
    assert kernels["evaluated"] > 1 and row["evaluations_per_lane"] >= row["evaluations_per_ray"] > 1
    assert set(row["ms"]) == set(kernels) == {"trace", "bare", "full", "bare_full", "by_hand", "evaluated"}
    assert all(v > 0 for v in row["ms"].values())
