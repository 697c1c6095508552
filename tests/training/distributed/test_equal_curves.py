"""One, two and four processes learn the same."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.machines import python
from support.processes import PROGRAMS, need, told, torchrun


def alone(backend, how):
    done = python(PROGRAMS / "curves.py", backend, how)
    assert done.returncode == 0, done.stderr
    return {case["case"]: case for _, case in map(json.loads, done.stdout.splitlines())}


def together(backend, how, processes):
    found = told(torchrun("curves.py", processes, backend, how), processes)
    assert all(other == found[0] for other in found[1:])  # on all the same, to the last bit
    return {case["case"]: case for case in found[0]}


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_to_precision(backend, processes):
    """Dropout, grids, a batch that cannot be halved, clipping, decay, averages, penalties, patience, skipped steps."""
    need(backend, processes)
    one, many = alone(backend, "none"), together(backend, "auto", processes)
    assert one.keys() == many.keys()
    for name, case in one.items():
        assert many[name]["ends"] == case["ends"], name
        loose = backend == "cuda" or name == "overflow"
        np.testing.assert_allclose(many[name]["losses"], case["losses"], rtol=3e-2 if loose else 1e-4, err_msg=name)
        np.testing.assert_allclose(many[name]["metrics"], case["metrics"], rtol=3e-2 if loose else 1e-3, err_msg=name)
    assert one["overflow"]["ends"][2] > 0 and one["patience"]["ends"][1] == "patience"


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_to_the_last_bit(backend, processes):
    """Sums over chunks are those of one process."""
    need(backend, processes)
    one, many = alone(backend, "alone"), together(backend, "exact", processes)
    if backend == "llvm":
        assert one == many
    else:
        assert [case["ends"] for case in one.values()] == [case["ends"] for case in many.values()]
