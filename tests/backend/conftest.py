"""For tests of what moves between backends."""

import pytest
from support.two_backends import two_backends

from coopnet import backend as backends


@pytest.fixture
def place():
    """Where an array is, while there are two backends: see :mod:`support.two_backends`."""
    with two_backends() as where:
        yield where


@pytest.fixture
def llvm():
    """Dr.Jit's module of differentiable types of the CPU."""
    return backends.namespace("llvm")
