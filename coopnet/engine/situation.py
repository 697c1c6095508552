"""Everything that the choice of a strategy may depend on: the network, and where and how it is evaluated."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import drjit as dr

from ..jit.native import core
from ..jit.scopes import inside_call, only_traced, symbolic
from ..jit.uniform import available
from .modes import forced_path, is_deterministic
from .ops import Op, affine, buffers, rated, simple


class Network:
    """Facts about a list of ops, computed when they are needed."""

    def __init__(self, ops: Sequence[Op]):
        self.ops = ops

    @functools.cached_property
    def layers(self) -> list:
        """All affine ops."""
        return affine(self.ops)

    @functools.cached_property
    def buffers(self) -> list:
        """The distinct packed buffers that the ops read, in order of first use."""
        return buffers(self.layers)

    @functools.cached_property
    def shapes(self) -> list[tuple[int, int]]:
        """Rows and columns of all matrices."""
        return [op.weights.shape for op in self.layers]

    @property
    def width(self) -> int:
        """Components of the longest vector between the ops."""
        return max((max(shape) for shape in self.shapes), default=0)

    @property
    def narrow_side(self) -> int:
        """The longest of the matrices' narrower sides."""
        return max((min(shape) for shape in self.shapes), default=0)

    @property
    def multiplications(self) -> int:
        """Multiplications of a vector with all matrices."""
        return sum(map(math.prod, self.shapes))

    @property
    def single_precision(self) -> bool:
        """Are all parameters in single precision?"""
        return all(dr.itemsize_v(buffer) == 4 for buffer in self.buffers)

    @property
    def piecewise_linear(self) -> bool:
        return all(op.piecewise_linear for op in simple(self.ops))

    @property
    def branches(self) -> bool:
        """Are there branches?"""
        return any(op.bodies for op in self.ops)

    @property
    def dropout(self) -> bool:
        return any(op.dropout for op in simple(self.ops))

    @property
    def factors(self) -> bool:
        """Does dropout multiply elements by numbers of their own, which a GPU computes one by one?"""
        return any(op.factors for op in simple(self.ops))

    @property
    def rates(self) -> list:
        """Learned rates of dropout, one for each op that has one."""
        return [op.rate for op in rated(self.ops)]

    @property
    def layouts_known(self) -> bool:
        """Are the packed layouts of all matrices known, so that gradients can be computed outside the kernel?"""
        return all(op.layout is not None for op in self.layers)


class Situation(NamedTuple):
    """Where and how a network is evaluated."""

    network: Network
    backend: dr.JitBackend
    #: Samples of the batch, and vectors per sample: a value and its tangents.
    samples: int
    vectors: int = 1
    #: Lanes of a CPU's vectors.
    lanes: int = 8
    #: Are gradients needed with respect to the weights, to the input, and to learned rates of dropout?
    weights: bool = True
    inputs: bool = False
    rates: bool = False
    #: Is a symbolic loop, conditional or virtual call being traced? Is it a virtual call? Is a function being frozen?
    symbolic: bool = False
    in_call: bool = False
    frozen: bool = False
    #: Does each lane have parameters of its own (see :mod:`.stack`)?
    stacked: bool = False
    #: Must sums be in a fixed order? Which strategy does ``gradient_path()`` ask for?
    deterministic: bool = False
    forced: str = "auto"
    #: Can the caller of a frozen function multiply matrices outside of it (see :mod:`.external_products`)? How often
    #: will it call the function (0 if unknown)?
    caller: bool = False
    runs: int = 0
    #: Is there memory to keep activations for the backward pass? Only the gradient with respect to the input asks.
    memory_left: bool = True
    #: Lanes that a CPU stores at a time.
    stored_lanes: int = 8
    #: Is the output traced only, and never computed? Then no layer is evaluated between kernels.
    only_traced: bool = False
    #: Can code be unrolled (see :mod:`~..jit.uniform`)?
    scalar_loads: bool = True

    @property
    def cuda(self) -> bool:
        return self.backend == dr.JitBackend.CUDA

    @property
    def terms(self) -> int:
        """Number of outer products in the gradient of each matrix."""
        return self.samples * self.vectors


def here(network: Network, leaf: type, samples: int, **known: Any) -> Situation:
    """The situation at this place of a program, on the backend of the type ``leaf``; ``known`` are further facts."""
    in_scope = symbolic()
    return Situation(
        network, dr.backend_v(leaf), samples, lanes=core.llvm_lanes(), stored_lanes=core.stored_lanes(),
        symbolic=in_scope, in_call=in_scope and inside_call(leaf), deterministic=is_deterministic(),
        forced=forced_path(), only_traced=only_traced.get(), scalar_loads=available(), **known,
    )  # fmt: skip
