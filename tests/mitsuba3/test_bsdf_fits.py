"""The benchmark of learned BSDFs runs and writes its rows."""

from __future__ import annotations

import json

import pytest
from support.machines import ROOT, python

pytest.importorskip("mitsuba")


@pytest.mark.slow
def test_bsdf_fits(tmp_path, backend):
    script = ROOT / "benchmarks" / "bsdf_fits.py"
    done = python(script, "--quick", "--only", "blend", "--backend", backend, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / f"bsdf_fits-{backend}.json").read_text())["results"]
    assert [row["directions"] for row in rows] == ["rusinkiewicz", "plain"]
    assert all(row["relative_error"] > 0 and 0 < row["reference_albedo"] < 1 for row in rows)
