"""Work for Dr.Jit's own threads."""

from __future__ import annotations

import threading
import time

import drjit as dr
import numpy as np
import pytest

from coopnet.jit.native import pool

pytestmark = pytest.mark.usefixtures("several_threads")


@pytest.fixture(params=["Dr.Jit's", "ours"])
def threads(request, monkeypatch, ns):
    """Whose threads do the work; ``ns`` has started Dr.Jit's."""
    if request.param == "ours":
        monkeypatch.setattr(pool, "_library", lambda: None)
        pool._executor.cache_clear()  # which has as many threads as there were
    else:
        assert pool._library() is not None
    return request.param


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
def test_results_are_in_order(threads, count):
    found = pool.parallel(lambda i: (i, float(np.full(1000, i).sum())), count)
    assert found == [(i, 1000.0 * i) for i in range(count)]


def test_side_by_side(threads):
    """Two wait for each other."""
    barrier = threading.Barrier(2, timeout=20)
    assert sorted(pool.parallel(lambda i: barrier.wait(), 2)) == [0, 1]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_first_error_is_raised_when_all_are_done(threads, error):
    done = []

    def work(i):
        if i in (2, 5):
            raise error(f"number {i}")
        time.sleep(0.001)
        done.append(i)

    with pytest.raises(error, match="number 2"):
        pool.parallel(work, 8)
    if threads == "Dr.Jit's":
        assert sorted(done) == [0, 1, 3, 4, 6, 7]


def test_from_several_threads_and_beside_kernels(threads, ns):
    found = {}

    def run(k):
        x = dr.arange(ns.Float, 1 << 16) + k
        dr.eval(x)
        found[k] = pool.parallel(lambda i: i * k, 20)

    others = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join(60)
    assert found == {k: [i * k for i in range(20)] for k in range(4)}
