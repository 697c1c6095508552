"""Networks that are not a single chain: residual and skip connections, and several heads on one trunk."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from reprlib import recursive_repr
from typing import Any

import drjit as dr
import drjit.nn as drnn

from .. import engine
from ..checks import check_module, check_type, ensure, shown
from ..checks.sizes import check_layers
from ..jit import kinds
from ..random.key import Key
from .arguments import block
from .module import Module
from .sequential import Composed, Sequential, apply, known_ops, segments, stated_width


class Parallel(Composed):
    """Several bodies (lists of layers) on one input, whose outputs are added up or concatenated.

    On a ``CoopVec``, the engine runs them and the layers around them as one network, unless a body holds a layer that
    the engine does not know, such as an encoding.
    """

    merge = "concatenate"

    def bodies(self) -> list[list]:
        """The layers of each body; a body without layers returns the input itself."""
        raise NotImplementedError

    @property
    def in_features(self) -> int:
        """Width of the input as the first layer of a body states it; -1 if none does."""
        return max((stated_width(body) for body in self.bodies()), default=-1)

    def output_width(self, width: int, leaf: type, key: Key | None) -> int:
        widths = [width] * len(self.bodies())
        for i, body in enumerate(self.bodies()):
            for segment in segments(body):
                widths[i] = segment.output_width(widths[i], leaf, key)
        return width if self.merge == "sum" else sum(widths)

    def op(self) -> engine.Branching | None:
        bodies = [known_ops(body) for body in self.bodies()]
        return None if None in bodies else engine.Branching(bodies, self.merge)  # type: ignore[arg-type]

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        kinds.in_kernels(x, type(self).__name__)
        return super().__call__(x, key)

    def side_by_side(self, x: list, key: Key | None) -> list:
        """Evaluate the bodies one after the other on the bundle ``x``, not as one network."""
        bundles = [apply(body, x, key) for body in self.bodies()]
        return [self._merged(vectors, x[0]) for vectors in zip(*bundles, strict=True)]

    def _merged(self, ys: Sequence[Any], like: Any) -> Any:
        """The merged outputs of the bodies, in the container of the input ``like``."""
        if isinstance(like, drnn.CoopVec):
            return engine.Branching([], self.merge).join(ys)
        if dr.is_tensor_v(like):
            return sum(ys[1:], ys[0]) if self.merge == "sum" else dr.concat(list(ys), axis=0)
        parts = [kinds.components(y) for y in ys]
        if self.merge == "sum":
            return kinds.rebuild([sum(v[1:], v[0]) for v in zip(*parts, strict=True)], like)
        return kinds.contained(kinds.flat(parts), like)


class Around(Parallel):
    """A body, whose output is merged with its input."""

    DRJIT_STRUCT = {"body": Module}

    def __init__(self, body: Module | None = None):
        check_module(type(self).__name__, "body", body)
        self.body = body  # None only while nn.pack rebuilds the tree

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:  # type: ignore[override]
        name, layer = type(self).__name__, copy.copy(self)
        ensure(self.body is not None, f"{name}: there is no body; call {name}(body).")
        size = self.in_features if size < 0 else size
        unknown = "the size of the input is unknown; give in_features, or call alloc(dtype, size)"
        ensure(size > 0, f"{name}: {unknown}.")
        layer.body, out = self.body._alloc(dtype, size, rng)  # type: ignore[union-attr]
        out = out if out > 0 else size
        if self.merge == "concatenate":
            return layer, size + out
        needed = f"a residual connection needs {size}; give the last layer out_features={size}"
        ensure(out == size, f"{name}: body maps {size} features to {out}, but {needed}.")
        return layer, size

    @recursive_repr()
    def __repr__(self) -> str:
        return block(self, [f"body={self.body!r}"])


class Residual(Around):
    r"""Adds a network's output to its input, :math:`y = x + f(x)` (He et al. 2016, *Deep Residual Learning*, eq. 1).

    The key, if any, goes to ``body``. With ``MLP(..., zero_last=True)`` as the body it starts as the identity.

    Args:
        body: a layer or network that keeps the width: ``Linear(w, w)``, an ``MLP`` from a width to the same, or a
            ``Sequential`` of layers.

    Raises:
        TypeError: ``body`` is not a module.
        ValueError: in ``alloc``, a body that changes the width.

    >>> block = cn.Residual(cn.Sequential(cn.Linear(64, 64), cn.ReLU(), cn.Linear(-1, 64)))
    """

    merge = "sum"

    def bodies(self) -> list[list]:
        return [[], [self.body]]


class Skip(Around):
    r"""Appends its input to a network's output, :math:`y = (f(x), x)`, as NeRF does after its fifth layer (Mildenhall
    et al. 2020, figure 7).

    The key, if any, goes to ``body``. The output is as wide as both together.

    Args:
        body: a layer or network of any width.

    Raises:
        TypeError: ``body`` is not a module.

    >>> net = cn.Sequential(cn.Skip(cn.MLP(60, 256, 256, 4, output_activation="relu")), cn.MLP(out_features=4))
    """

    def bodies(self) -> list[list]:
        return [[self.body], []]


class Branches(Parallel):
    """The layers after the trunk of :class:`Heads`: named layers on one input, whose outputs are concatenated."""

    DRJIT_STRUCT = {"heads": tuple, "names": tuple, "sizes": tuple}

    def __init__(self, heads: Mapping[str, Module] | None = None):
        self.heads, self.names = tuple((heads or {}).values()), tuple(heads or {})
        self.sizes: tuple[int, ...] = ()  # known after alloc()

    def bodies(self) -> list[list]:
        return [[head] for head in self.heads]

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Branches, int]:  # type: ignore[override]
        ensure(self.heads, "Heads: there are no heads; call Heads(trunk, {name: head}).")
        size = self.in_features if size < 0 else size
        layer = copy.copy(self)
        layer.heads, layer.sizes = zip(*(head._alloc(dtype, size, rng) for head in self.heads), strict=True)
        return layer, sum(layer.sizes)

    @recursive_repr()
    def __repr__(self) -> str:
        return block(self, (f"{name}={head!r}" for name, head in zip(self.names, self.heads, strict=True)))


class Heads(Sequential):
    r"""Several networks on the output of one, :math:`y = (f_1(h), \dots, f_k(h))` with :math:`h = t(x)`.

    The outputs are one vector, in the order of ``heads``, so the network can be packed, trained and stored like any
    other. :meth:`split` returns them by name.

    Args:
        trunk: the shared layer or network, or ``None`` for none.
        heads: a mapping from names to layers or networks; names are non-empty strings.

    Raises:
        TypeError, ValueError: ``trunk`` or a head is not a module; ``heads`` is not a mapping, or a name not a string.

    >>> trunk = cn.MLP(out_features=64, output_activation="relu")
    >>> net = cn.Heads(trunk, {"density": cn.Linear(-1, 1), "color": cn.Linear(-1, 3)})
    >>> field = cn.NeuralField(cn.HashGrid(3), net).build()
    >>> parts = field.network.split(field(p))  # {"density": ..., "color": ...}
    """

    def __init__(self, trunk: Module | None = None, heads: Mapping[str, Module] | None = None):
        check_module("Heads", "trunk", trunk)
        check_type("Heads", "heads", heads, Mapping | None, "a mapping from names to modules")
        heads = dict(heads or {})
        check_layers("Heads", "the number of heads", len(heads))
        for name, head in heads.items():
            named = isinstance(name, str) and name
            ensure(named, f"Heads: a head has the name {shown(name)}; a non-empty string is needed.")
            ensure(head is not None, f"Heads: heads[{shown(name)}] is None; a Module instance is needed.", TypeError)
            check_module("Heads", f"heads[{shown(name)}]", head)
        super().__init__(*([] if trunk is None else [trunk]), Branches(heads))

    @property
    def trunk(self) -> Any:
        """The layer or network that the heads share, or ``None``."""
        return self.layers[0] if len(self.layers) > 1 else None

    @property
    def heads(self) -> dict[str, Any]:
        """The heads by name."""
        branches = self.layers[-1]
        return dict(zip(branches.names, branches.heads, strict=True))

    def split(self, y: Any) -> dict[str, Any]:
        """The outputs by name, in containers of the kind of ``y``, the result of the network or of its field.

        Raises ``ValueError`` if the network has no weights yet or ``y`` is not as wide as its output.

        >>> net = cn.Heads(cn.Linear(2, 8), {"a": cn.Linear(-1, 1), "b": cn.Linear(-1, 2)})
        >>> field = cn.NeuralField(None, net).build()
        >>> color = field.network.split(field(p))["b"]
        """
        names, sizes = self.layers[-1].names, self.layers[-1].sizes
        unknown = "the network is not allocated; call alloc() or NeuralField(...).build() first"
        ensure(sizes, f"Heads.split: {unknown}.")
        kind, _ = kinds.kind(y, "Heads.split")
        given = kinds.features(y, kind)
        ensure(given == sum(sizes), f"Heads.split: y has {given} features, but the heads have {sum(sizes)}.")
        whole = kind in (kinds.TENSOR, kinds.NUMPY)
        rows, start, result = y if whole else kinds.components(y), 0, {}
        for name, size in zip(names, sizes, strict=True):
            part = rows[start : start + size]
            result[name] = part if whole else kinds.contained(part, y)
            start += size
        return result

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Heads, int]:  # type: ignore[override]
        net, size = super()._alloc(dtype, size, rng)
        result = Heads()
        result.layers = net.layers
        return result, size

    @recursive_repr()
    def __repr__(self) -> str:
        parts = {"trunk": self.trunk, **self.heads}
        return block(self, (f"{name}={part!r}" for name, part in parts.items()))
