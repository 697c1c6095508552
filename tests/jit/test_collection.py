"""Python's collector is off while Dr.Jit records."""

from __future__ import annotations

import gc
import weakref

import pytest
from support.machines import python

from coopnet.jit.collection import no_collection


def test_garbage_is_collected_before_a_run():
    """What lies there would be kept for as long as the run takes."""

    class Circle:
        pass

    circle = Circle()
    circle.itself, gone = circle, weakref.ref(circle)
    del circle
    assert gone() is not None  # the collector is off in tests
    with no_collection():
        assert gone() is None and not gc.isenabled()


FREED = """
import gc
import drjit as dr, numpy as np
from drjit.llvm.ad import Float
from coopnet.jit.collection import no_collection
import contextlib

class Node:
    pass

@dr.freeze
def step(x):
    {collect}
    return x + 1

with {block}:
    node = Node()
    node.itself, node.data = node, Float(np.zeros(1000, np.float32))
    del node
    dr.eval(step(dr.arange(Float, 10)))
print("done")
"""


@pytest.mark.parametrize("block", ["contextlib.nullcontext()", "no_collection()"])
def test_memory_of_numpys_that_is_freed_while_dr_jit_records(llvm, block):
    """It ends the process. If this no longer fails without the block, Dr.Jit needs it no more."""
    collect = "[[] for _ in range(100_000)]"  # which makes the collector run, where it is on
    done = python("-c", FREED.format(block=block, collect=collect))
    assert (done.returncode == 0 and "done" in done.stdout) == (block == "no_collection()"), done.stderr
