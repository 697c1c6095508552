"""The benchmark of four spheres runs, and says what it measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mitsuba")

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_spheres(backend, tmp_path):
    rows = ["neural_path, one network", "path, one network in eval", "neural_path, one network, gradient"]
    script = ROOT / "benchmarks" / "mitsuba_spheres.py"
    options = ["--backend", backend, "--quick", "--out", str(tmp_path), "--only", *rows]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run([sys.executable, str(script), *options], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / f"mitsuba_spheres-{backend}.json").read_text())["results"]
    assert set(rows) <= {row["row"] for row in found["rows"]}
    assert all(row["kernel_ms"] > 0 for row in found["rows"])
