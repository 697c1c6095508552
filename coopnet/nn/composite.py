"""Several encodings side by side."""

from __future__ import annotations

import copy
import math
import textwrap
from collections.abc import Callable, Sequence
from reprlib import recursive_repr
from typing import Any

from ..checks import check, check_choice, check_in_features, check_type, ensure, entries, is_int
from ..checks.sizes import check_features, check_layers
from ..jit.kinds import UnpackedVector
from .activations import Identity
from .arguments import arguments, fields
from .embedding import Embedding
from .encoding import Encoding, in_unit


class Composite(Encoding):
    r"""Encodings of different coordinates, combined (tiny-cuda-nn's ``Composite``).

    Encoding :math:`i` takes ``n_dims_to_encode[i]`` coordinates, beginning after those of the encoding before it, or at
    ``dims_to_encode_begin[i]``. Ranges may overlap and leave coordinates out. For one encoding, the number may be left
    open: it takes the remaining coordinates. Encodings without coordinates are skipped.

    Args:
        nested: :class:`Encoding`, :class:`Identity` or :class:`Embedding` layers, also other composites.
        n_dims_to_encode: number of coordinates of each encoding; ``None``, or -1 for an entry, takes the encoding's own
            ``in_features`` or, once, the remaining coordinates.
        dims_to_encode_begin: first coordinate of each encoding; ``None``, or -1 for an entry, continues after the
            encoding before. If any is given, all numbers of coordinates must be given, too.
        reduction: ``"concatenation"`` of all features in order, or their ``"sum"`` or ``"product"``, for encodings of
            equal widths.
        in_features: number of coordinates; -1 takes it from ``alloc``, or from the ranges if all are known.

    Returns:
        The features of all nested encodings; with a sum or product, as many as one of them has.

    Raises:
        TypeError: ``nested`` holds anything but encodings.
        ValueError: ranges outside the input; more than one open number; lists that are not as long as ``nested``; a sum
            or product of different widths.

    The input encoding of Müller et al. (2021), *Real-time Neural Radiance Caching*, for 3 spatial, 5 directional and
    6 other coordinates:

    >>> encoding = cn.Composite([cn.TriangleWave(12), cn.OneBlob(4), cn.Identity()], [3, 5, -1])
    >>> field = cn.NeuralField(encoding, cn.MLP(out_features=3), in_features=14).build()
    """

    def __init__(
        self, nested: Sequence[Any] = (), n_dims_to_encode: Sequence[int] | None = None,
        dims_to_encode_begin: Sequence[int] | None = None, reduction: str = "concatenation", in_features: int = -1,
    ):  # fmt: skip
        check_type("Composite", "nested", nested, (list, tuple), "a list or tuple of encodings")
        nested = entries("Composite", "nested", nested)
        for i, e in enumerate(nested):
            kinds = Encoding | Identity | Embedding
            check_type("Composite", f"nested[{i}]", e, kinds, "an Encoding, Identity or Embedding")
        check_layers("Composite", "the number of encodings", len(nested))
        self.nested = tuple(nested)
        self.n_dims_to_encode = self._per_encoding("n_dims_to_encode", n_dims_to_encode)
        self.dims_to_encode_begin = self._per_encoding("dims_to_encode_begin", dims_to_encode_begin)
        self.reduction = check_choice("Composite", "reduction", reduction, ("concatenation", "sum", "product"))
        in_features = check_features("Composite", "in_features", check_in_features("Composite", in_features))
        counts = self._counts()
        rest = [i for i, n in enumerate(counts) if n < 0]
        hint = "only one may take the rest; give n_dims_to_encode, or in_features to the encodings"
        ensure(len(rest) < 2, f"Composite: the encodings {rest} state no number of coordinates, but {hint}.")
        if rest and any(b >= 0 for b in self.dims_to_encode_begin):
            hint = "which dims_to_encode_begin leaves unclear; give all n_dims_to_encode"
            raise ValueError(f"Composite: encoding {rest[0]} takes the rest of the coordinates, {hint}.")
        if not rest and self.nested and in_features < 0:
            in_features = max(begin + n for _, begin, n in self._ranges(-1))
            in_features = check_features("Composite", "in_features", in_features) if in_features > 0 else -1
        self.in_features = in_features

    DRJIT_STRUCT = fields(__init__)

    def _per_encoding(self, name: str, value: Any) -> tuple[int, ...]:
        n = len(self.nested)
        if value is None:
            return (-1,) * n
        items: list[Any] = entries("Composite", name, value) if isinstance(value, (list, tuple)) else [None]
        listed = len(items) == n and all(is_int(v, -1) for v in items)
        check(listed, "Composite", name, value, f"a list of {n} ints of at least 0, or -1, or None,")
        return tuple(check_features("Composite", name, int(v)) for v in items)

    def _counts(self) -> list[int]:
        """Number of coordinates of each encoding; -1 for the remaining ones."""
        counts = []
        for i, (encoding, n) in enumerate(zip(self.nested, self.n_dims_to_encode, strict=True)):
            stated = getattr(encoding, "in_features", -1)
            if stated > 0 and n not in (-1, 0, stated):
                takes = f"the encoding takes {stated} coordinates: {type(encoding).__name__}"
                raise ValueError(f"Composite: n_dims_to_encode[{i}] is {n}, but {takes}.")
            counts.append(stated if n < 0 else n)
        return counts

    def _ranges(self, size: int) -> list[tuple[Any, int, int]]:
        """(encoding, first coordinate, number of coordinates) of each, for ``size`` coordinates."""
        counts, ranges, end = self._counts(), [], 0
        rest = max(0, size - sum(n for n in counts if n > 0))
        for encoding, begin, n in zip(self.nested, self.dims_to_encode_begin, counts, strict=True):
            begin = end if begin < 0 else begin
            n = rest if n < 0 else n
            ranges.append((encoding, begin, n))
            end = begin + n
        return ranges

    def width(self, size: int) -> int:
        widths = [e.width(n) for e, _, n in self._ranges(size) if n > 0]
        return sum(widths) if self.reduction == "concatenation" else max(widths, default=0)

    def _mapped(self, function: Callable[[Encoding], Encoding]) -> Composite:
        nested = tuple(function(e) if isinstance(e, Encoding) else e for e in self.nested)
        if all(new is old for new, old in zip(nested, self.nested, strict=True)):
            return self
        layer = copy.copy(self)
        layer.nested = nested
        return layer

    def _in_unit(self, size: int) -> list[int]:
        return sorted({begin + i for e, begin, n in self.parts(size) for i in in_unit(e, n)})

    def _features(self, coordinates: list) -> list:
        parts = self.parts(len(coordinates))
        return self._reduced([list(e(UnpackedVector(coordinates[begin : begin + n]))) for e, begin, n in parts])

    def _reduced(self, parts: Sequence[list]) -> list:
        if self.reduction == "concatenation":
            return [f for part in parts for f in part]
        combine: Any = sum if self.reduction == "sum" else math.prod
        return [combine(fs[1:], start=fs[0]) for fs in zip(*parts, strict=True)]

    def _moved(self, coordinates: list, tangents: list[list]) -> tuple[list, list[list]]:
        bundles = []
        for e, begin, n in self.parts(len(coordinates)):
            x = UnpackedVector(coordinates[begin : begin + n])
            y, dy = e.jvp(x, [t[begin : begin + n] for t in tangents])
            bundles.append([list(y), *map(list, dy)])
        ys, *dys = zip(*bundles, strict=True)
        if self.reduction != "product":  # linear
            return self._reduced(ys), [self._reduced(parts) for parts in dys]
        width, count = range(len(ys[0])), range(len(ys))
        others = [[math.prod(ys[j][k] for j in count if j != i) for k in width] for i in count]
        dy = [[sum(parts[i][k] * others[i][k] for i in count) for k in width] for parts in dys]
        return self._reduced(ys), dy

    def parts(self, size: int) -> list[tuple[Any, int, int]]:
        """:meth:`_ranges` of the encodings that have coordinates; raises unless they fit."""
        ranges = self._ranges(size)
        for i, (_, begin, n) in enumerate(ranges):
            takes = f"encoding {i} takes the coordinates {begin} to {begin + n - 1}"
            ensure(begin + n <= size, f"Composite: {takes}, but there are only {size}: 0 to {size - 1}.")
        used = [(e, begin, n) for e, begin, n in ranges if n > 0]
        widths = [e.width(n) for e, _, n in used]
        ensure(widths, "Composite: no encoding has any coordinates; call Composite([encoding, ...]).")
        if self.reduction != "concatenation" and len(set(widths)) > 1:
            raise ValueError(f"Composite: a {self.reduction} needs encodings of equal widths, but they give {widths}.")
        return used

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Any, int]:
        layer, width = super()._alloc(dtype, size, rng)
        self.parts(layer.in_features)
        ranges = self._ranges(layer.in_features)
        layer.nested = tuple(e._alloc(dtype, n, rng)[0] if n > 0 else e for e, _, n in ranges)
        layer.n_dims_to_encode = tuple(n for *_, n in ranges)
        return layer, width

    @recursive_repr()
    def __repr__(self) -> str:
        inner = "".join(textwrap.indent(f"{e!r},\n", "  ") for e in self.nested)
        others = ", ".join(f"{name}={value!r}" for name, value in arguments(self).items() if name != "nested")
        return f"Composite([\n{inner}], {others})"
