"""Layers whose parameters a key draws from a posterior, around their means: see :func:`coopnet.laplace`."""

from __future__ import annotations

import copy
from reprlib import recursive_repr
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..checks import check_module, check_number, check_type, check_unsigned, ensure
from ..jit import kinds
from ..jit.half import widened
from ..jit.unpacked import Unpacked
from ..kernels.drawn_grid import DrawnFeatureGrid
from ..random.key import Key, check_key
from ..random.normal import of_parameters
from .arguments import arguments, block
from .encoding import Encoding
from .lattice import Lattice
from .linear import Linear
from .module import Module
from .parameters import ParameterArray


class Drawn(Module):
    """Base of layers that draw parameters, given a key."""

    @recursive_repr()
    def __repr__(self) -> str:
        return block(self, (f"{name}={value!r}" for name, value in arguments(self).items()))

    def _check_key(self, key: Any) -> None:
        check_key(type(self).__name__, key)


class DrawnGrid(Drawn, Encoding):
    r"""A grid whose features are drawn: feature :math:`k` of entry :math:`e` is :math:`\theta_{ek} + \sigma_{ek}
    z_{ek}`, where :math:`z` depends only on the key's seed and step, on entry, feature and ``stream``.

    Without a key the layer is the same as ``grid``. All samples of all batches see the same function. The law of
    :math:`z` is that of :mod:`coopnet.random.normal`.

    Args:
        grid: a :class:`Grid`, :class:`HashGrid` or :class:`Permutohedral` with the means :math:`\theta`.
        stream: a number that no other draws in the network have; int in [0, 2^30).

    The deviations :math:`\sigma` are the parameter ``"data"`` of the layer and start at 0.

    >>> layer = cn.nn.drawn.DrawnGrid(cn.HashGrid(2, n_levels=2, hashmap_size=64))
    """

    DRJIT_STRUCT = {"grid": Module, "stream": int, "deviation": Unpacked}

    def __init__(self, grid: Lattice | None = None, stream: int = 0):
        check_type("DrawnGrid", "grid", grid, (Lattice, type(None)), "a Grid, HashGrid or Permutohedral")
        self.grid: Any = grid
        self.stream = check_unsigned("DrawnGrid", "stream", stream, 30)
        self.deviation = Unpacked()

    @property
    def in_features(self) -> int:  # type: ignore[override]
        return -1 if self.grid is None else self.grid.in_features

    def width(self, size: int) -> int:
        return self.grid.width(size)

    def _in_unit(self, size: int) -> list[int]:
        return self.grid._in_unit(size)

    def _drawn(self, key: Key | None) -> Any:
        self._check_key(key)
        if key is None or self.grid is None or self.deviation.value is None:
            return self.grid
        grid = copy.copy(self.grid)
        means = grid.grid.value
        grid.grid = Unpacked(DrawnFeatureGrid(means, self.deviation.value.data, key, self.stream).drawn())
        return grid

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:
        ensure(self.grid is not None, "DrawnGrid: there is no grid; call DrawnGrid(grid).")
        grid, width = self.grid._alloc(dtype, size, rng)
        layer = DrawnGrid(grid, self.stream)
        means = grid.grid.value
        layer.deviation = Unpacked(ParameterArray(dr.zeros(means.dtype, dr.width(means.data))))
        return layer, width


class DrawnLinear(Drawn, Module):
    r"""A linear layer whose rows are drawn, all with one covariance matrix :math:`s^2 F^T F`: output :math:`o` is
    :math:`y_o + s \sum_i z_{oi} (F \tilde x)_i`, where :math:`\tilde x` is the input, followed by 1 if there is a bias.

    :math:`z_{oi}` is number :math:`i \bmod 4` of row :math:`o` and block :math:`\lfloor i / 4 \rfloor` in the law of
    :mod:`coopnet.random.normal`: a function of the key's seed and step alone. Without a key the layer is the same as
    ``linear``.

    Args:
        linear: a :class:`Linear` with the means.
        factor: a :class:`Linear` with :math:`F`, its last column the bias; ``None`` makes one of zeros in ``alloc``.
        scale: :math:`s`. With it, the entries of :math:`F` can be close to 1, which half precision represents well.
        stream: as for :class:`DrawnGrid`.

    >>> layer = cn.nn.drawn.DrawnLinear(cn.Linear(16, 3))
    """

    DRJIT_STRUCT = {"linear": Module, "factor": Module, "scale": float, "stream": int}

    def __init__(self, linear: Any = None, factor: Linear | None = None, scale: float = 1.0, stream: int = 1):
        for name, layer in (("linear", linear), ("factor", factor)):
            check_module("DrawnLinear", name, layer)
        self.linear, self.factor = linear, factor  # type: Any, Any
        self.scale = check_number("DrawnLinear", "scale", scale, 0)
        self.stream = check_unsigned("DrawnLinear", "stream", stream, 30)

    @property
    def in_features(self) -> int:
        """Width of the input; -1 if it is not known yet."""
        return -1 if self.linear is None else int(self.linear.config[0])

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        if key is None:
            return self.linear(x)
        check_type("DrawnLinear", "x", x, drnn.CoopVec, "a drjit.nn.CoopVec")
        return self.jvp(x, [], key)[0]

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        y, dys = self._jvp(self.linear, x, tangents)
        if key is None:
            return y, dys
        u, shifted = self._jvp(self.factor, x, tangents)
        numbers = self._numbers(len(y), len(u), key, y.type)
        vectors = [self._added(a, b, numbers) for a, b in zip((y, *dys), (u, *shifted), strict=True)]
        return vectors[0], vectors[1:]

    def spread(self, x: Any) -> Any:
        r"""The standard deviation :math:`s \lVert F \tilde x \rVert` of each output."""
        u = self.factor(x)
        return dr.norm(kinds.nested(widened(list(u), dr.float32_array_t(u.type)))) * self.scale

    def _jvp(self, layer: Any, x: Any, tangents: list) -> tuple[Any, list]:
        return layer.jvp(x, tangents) if tangents else (layer(x), [])

    def _numbers(self, rows: int, columns: int, key: Key, leaf: type) -> list[list]:
        """The numbers :math:`z` of all rows."""
        check_type("DrawnLinear", "key", key, Key, "a coopnet.Key or None")
        uint32 = dr.uint32_array_t(leaf)
        blocks = -(-columns // 4)
        nested = kinds.nested_type(uint32)
        places = [(row, block) for row in range(rows) for block in range(blocks)]
        entry, block = (nested([uint32(place[i]) for place in places]) for i in range(2))
        words = of_parameters(entry, block, key, self.stream)  # all at once, so that this is traced once
        return [[words[i % 4][row * blocks + i // 4] for i in range(columns)] for row in range(rows)]

    def _added(self, y: Any, u: Any, numbers: list[list]) -> Any:
        """``y`` plus the product of the numbers and ``u``, times :attr:`scale`, computed in single precision."""
        leaf, single = y.type, dr.float32_array_t(y.type)
        parts = kinds.nested(widened(list(u), single))
        drawn = [dr.dot(kinds.nested(row), parts) for row in numbers]
        return drnn.CoopVec([
            leaf(dr.fma(v, self.scale, value)) for v, value in zip(drawn, widened(list(y), single), strict=True)
        ])  # fmt: skip

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:  # type: ignore[override]
        ensure(self.linear is not None, "DrawnLinear: there is no linear layer; call DrawnLinear(linear).")
        linear, out = self.linear._alloc(dtype, size, rng)
        n, _, bias = linear.config
        factor = Linear(n, n + bias, bias, "zero") if self.factor is None else self.factor
        return DrawnLinear(linear, factor._alloc(dtype, n, rng)[0], self.scale, self.stream), out
