"""The benchmarks of learned BSDFs run and write their rows."""

from __future__ import annotations

import json

import pytest
from support.machines import ROOT, python

pytest.importorskip("mitsuba")


def rows(name, backend, tmp_path, *options):
    script = ROOT / "benchmarks" / f"{name}.py"
    done = python(script, "--quick", *options, "--backend", backend, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    return json.loads((tmp_path / f"{name}-{backend}.json").read_text())["results"]


@pytest.mark.slow
def test_bsdf_fits(tmp_path, backend):
    found = rows("bsdf_fits", backend, tmp_path, "--only", "blend")
    assert [row["directions"] for row in found] == ["rusinkiewicz", "plain"]
    assert all(row["relative_error"] > 0 and 0 < row["reference_albedo"] < 1 for row in found)


@pytest.mark.slow
def test_material_stack(tmp_path, backend):
    found = rows("material_stack", backend, tmp_path, "--counts", "0", "--seeds", "2", "--pictures", str(tmp_path))
    assert found["costs"] == [] and found["effort"]["seeds"] == 2
    stack, network = (found["scenes"][0]["ways"][name] for name in ("stack", "network"))
    assert stack["converged"] == 0 < network["converged"]  # against the stack itself
    assert [row["ms"] for row in stack["equal_time"]] == [row["ms"] for row in network["equal_time"]]
    assert all(row["relmse"] > 0 for way in (stack, network) for row in way["equal_time"])
    assert (tmp_path / "material_stack.png").exists()


@pytest.mark.slow
def test_bsdf_sampling(tmp_path, backend):
    (row,) = rows("bsdf_sampling", backend, tmp_path)
    assert row["reference"]["spread"] < row["network"]["spread"] < row["one lobe"]["spread"]
    assert row["fewer_samples"] == pytest.approx((row["one lobe"]["spread"] / row["network"]["spread"]) ** 2)
