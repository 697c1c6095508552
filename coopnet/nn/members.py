"""Several fields as one: the mean of all, or the one that a key selects."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from reprlib import recursive_repr
from typing import Any

import drjit as dr

from ..checks import check_type, ensure
from ..jit.half import widened
from ..jit.kinds import UnpackedVector
from ..random.key import Key
from .encoding import Encoding, in_unit
from .sequential import apply
from .tangents import check_bundle


class Members(Encoding):
    r"""The network of :func:`coopnet.ensemble`: an encoding and a network for each member.

    Without a key the result is the mean of all members. A key selects member number :math:`\mathrm{step} \bmod K` of
    :math:`K`, for each sample by its own step. This member is evaluated with the key of step
    :math:`\lfloor \mathrm{step} / K \rfloor`. All members are evaluated, in one kernel.

    Args:
        encodings: an :class:`Encoding` or :class:`Identity` for each member.
        networks: a network for each member.

    >>> both = cn.nn.members.Members([cn.Identity()] * 2, [cn.MLP(2, 1), cn.MLP(2, 1)])
    """

    DRJIT_STRUCT = {"encodings": tuple, "networks": tuple, "in_features": int, "outputs": int, "work": str}

    def __init__(self, encodings: Sequence[Any] = (), networks: Sequence[Any] = (), in_features: int = -1):
        for name, parts in (("encodings", encodings), ("networks", networks)):
            check_type("Members", name, parts, (list, tuple), "a list or tuple of layers")
        both = f"there are {len(encodings)} encodings and {len(networks)} networks"
        ensure(len(encodings) == len(networks), f"Members: {both}; one of each for a member is needed.")
        self.encodings, self.networks, self.in_features = tuple(encodings), tuple(networks), in_features
        self.outputs, self.work = -1, ""

    def width(self, size: int) -> int:
        return self.outputs

    def _in_unit(self, size: int) -> list[int]:
        return sorted({i for e in self.encodings for i in in_unit(e, size)})

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        self._check(x)
        return self._bundle(list(x), [], key)[0]

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        check_bundle(self, x, tangents, arrays=True)
        y, *dys = self._bundle(list(x), tangents, key)
        return y, dys

    def each(self, x: list, tangents: list, key: Key | None = None) -> list[list[list]]:
        """The bundle of outputs of every member, in single precision."""
        ensure(self.outputs > 0, "Members: the layer has no parameters yet; call net = net.alloc(dtype, size) first.")
        single = type(x[0])
        work = dr.float16_array_t(single) if self.work == "half" else single
        bundles = []
        for encoding, network in zip(self.encodings, self.networks, strict=True):
            features, dfeatures = encoding.jvp(x, tangents, key) if tangents else (encoding(x, key), [])
            vectors = [UnpackedVector(work(v) for v in vector) for vector in (features, *dfeatures)]
            bundles.append([widened(list(y), single) for y in apply([network], vectors, key)])
        return bundles

    def _bundle(self, x: list, tangents: list, key: Key | None) -> list[list]:
        count = len(self.networks)
        if key is None:
            members = self.each(x, tangents)
            bundles = zip(*members, strict=True)
            return [[sum(v[1:], v[0]) * (1 / count) for v in zip(*parts, strict=True)] for parts in bundles]
        key = key.traced(dr.uint32_array_t(type(x[0])))
        number = key.step % count
        members = self.each(x, tangents, key.fold_in(key.step // count))
        result = members[0]
        for k, other in enumerate(members[1:], 1):
            pairs = zip(result, other, strict=True)
            result = [[dr.select(number == k, b, a) for a, b in zip(*pair, strict=True)] for pair in pairs]
        return result

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:
        ensure(self.networks, "Members: there are none; call ensemble(fields).")
        encodings, networks, widths = [], [], set()
        for encoding, network in zip(self.encodings, self.networks, strict=True):
            encoding, features = encoding._alloc(dtype, size, rng)
            network, out = network._alloc(dtype, features, rng)
            encodings.append(encoding)
            networks.append(network)
            widths.add(out)
        ensure(len(widths) == 1, f"Members: the networks have {sorted(widths)} outputs; one number is needed.")
        layer = Members(encodings, networks, size)
        layer.outputs, layer.work = widths.pop(), "half" if dr.is_half_v(dtype) else "single"
        return layer, layer.outputs

    @recursive_repr()
    def __repr__(self) -> str:
        pairs = zip(self.encodings, self.networks, strict=True)
        inner = "".join(textwrap.indent(f"{e!r} -> {n!r},\n", "  ") for e, n in pairs)
        return f"Members([\n{inner}])"
