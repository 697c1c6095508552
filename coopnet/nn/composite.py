"""Several encodings side by side."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from reprlib import recursive_repr
from typing import Any

from ..checks import check_choice, check_in_features, shown
from ..limits import check_features, check_layers
from .activations import Identity
from .embedding import Embedding
from .encodings import Encoding


class Composite(Encoding):
    r"""Encodings of different coordinates, combined (tiny-cuda-nn's ``Composite``).

    Encoding :math:`i` takes ``n_dims_to_encode[i]`` coordinates, beginning where the one before it ended, or at
    ``dims_to_encode_begin[i]``; ranges may overlap and leave coordinates out. One encoding may leave its number open
    and takes what the others leave. Encodings with no coordinates are skipped.

    Args:
        nested: :class:`Encoding`, :class:`Identity` or :class:`Embedding` layers, also other composites.
        n_dims_to_encode: coordinates of each; ``None``, or -1 for an entry, takes the encoding's own ``in_features``
            or, once, the rest.
        dims_to_encode_begin: first coordinate of each; ``None``, or -1 for an entry, continues after the one before.
            With any given, all numbers of coordinates must be.
        reduction: ``"concatenation"`` of all features in order, or their ``"sum"`` or ``"product"``, for encodings of
            equal widths.
        in_features: number of coordinates; -1 takes it from ``alloc``, or from the ranges if all are known.

    Returns:
        The features, as many as all nested encodings together give, or, reduced, as one of them.

    Raises:
        TypeError: ``nested`` holds something else than encodings.
        ValueError: ranges outside the input, open in more than one place, or of other lengths than ``nested``; a
            reduction of different widths.

    The input encoding of Müller et al. (2021), *Real-time Neural Radiance Caching*, for 3 spatial, 5 directional and
    6 other coordinates:

    >>> encoding = cn.Composite([cn.TriangleWave(12), cn.OneBlob(4), cn.Identity()], [3, 5, -1])
    >>> field = cn.NeuralField(encoding, cn.MLP(out_features=3), in_features=14).build()
    """

    DRJIT_STRUCT = {
        "nested": tuple,
        "n_dims_to_encode": tuple,
        "dims_to_encode_begin": tuple,
        "reduction": str,
        "in_features": int,
    }

    def __init__(
        self,
        nested: Sequence[Any] = (),
        n_dims_to_encode: Sequence[int] | None = None,
        dims_to_encode_begin: Sequence[int] | None = None,
        reduction: str = "concatenation",
        in_features: int = -1,
    ):
        if not isinstance(nested, (list, tuple)):
            raise TypeError(f"Composite: nested is a {type(nested).__name__}; a list or tuple of encodings is needed.")
        for i, encoding in enumerate(nested):
            if not isinstance(encoding, (Encoding, Identity, Embedding)):
                raise TypeError(
                    f"Composite: nested[{i}] is a {type(encoding).__name__}; an Encoding, Identity or Embedding is "
                    f"needed."
                )
        check_layers("Composite", "the number of encodings", len(nested))
        self.nested = tuple(nested)
        self.n_dims_to_encode = self._per_encoding("n_dims_to_encode", n_dims_to_encode, 0)
        self.dims_to_encode_begin = self._per_encoding("dims_to_encode_begin", dims_to_encode_begin, 0)
        self.reduction = check_choice("Composite", "reduction", reduction, ("concatenation", "sum", "product"))
        check_features("Composite", "in_features", check_in_features("Composite", in_features))
        counts = self._counts()
        rest = [i for i, n in enumerate(counts) if n < 0]
        if len(rest) > 1:
            raise ValueError(
                f"Composite: the encodings {rest} state no number of coordinates, but only one may take the rest; "
                f"give n_dims_to_encode, or in_features to the encodings."
            )
        if rest and any(b >= 0 for b in self.dims_to_encode_begin):
            raise ValueError(
                f"Composite: encoding {rest[0]} takes the rest of the coordinates, which dims_to_encode_begin "
                f"leaves unclear; give all n_dims_to_encode."
            )
        if not rest and self.nested and in_features < 0:
            in_features = max(begin + n for begin, n in self._ranges(-1))
            in_features = check_features("Composite", "in_features", in_features) if in_features > 0 else -1
        self.in_features = in_features

    def _per_encoding(self, name: str, value: Any, least: int) -> tuple[int, ...]:
        if value is None:
            return (-1,) * len(self.nested)
        if not isinstance(value, (list, tuple)) or len(value) != len(self.nested):
            raise ValueError(
                f"Composite: {name} is {shown(value)}; a list of {len(self.nested)} ints, or None, is needed."
            )
        for v in value:
            if isinstance(v, bool) or not isinstance(v, int) or (v < least and v != -1):
                raise ValueError(f"Composite: {name} is {shown(value)}; ints of at least {least}, or -1, are needed.")
            check_features("Composite", name, v)
        return tuple(value)

    def _counts(self) -> list[int]:
        """Coordinates of each encoding, -1 for what is left."""
        counts = []
        for i, (encoding, n) in enumerate(zip(self.nested, self.n_dims_to_encode, strict=True)):
            own = getattr(encoding, "in_features", -1)
            if own > 0 and n >= 0 and n not in (0, own):
                raise ValueError(
                    f"Composite: n_dims_to_encode[{i}] is {n}, but the encoding takes {own} coordinates: "
                    f"{type(encoding).__name__}."
                )
            counts.append(own if n < 0 else n)
        return counts

    def _ranges(self, size: int) -> list[tuple[int, int]]:
        """(first coordinate, number of coordinates) of each encoding, for ``size`` coordinates."""
        counts, ranges, end = self._counts(), [], 0
        rest = max(0, size - sum(n for n in counts if n > 0))
        for begin, n in zip(self.dims_to_encode_begin, counts, strict=True):
            begin = end if begin < 0 else begin
            n = rest if n < 0 else n
            ranges.append((begin, n))
            end = begin + n
        return ranges

    def width(self, size: int) -> int:
        widths = [e.width(n) for e, (_, n) in zip(self.nested, self._ranges(size), strict=True) if n > 0]
        return sum(widths) if self.reduction == "concatenation" else max(widths, default=0)

    def _features(self, coordinates: list) -> list:
        parts = [list(e(coordinates[begin : begin + n])) for e, begin, n in self.parts(len(coordinates))]
        if self.reduction == "concatenation":
            return [f for part in parts for f in part]
        combine: Any = sum if self.reduction == "sum" else math.prod
        return [combine(fs[1:], start=fs[0]) for fs in zip(*parts, strict=True)]

    def _moved(self, coordinates: list, tangents: list[list]) -> tuple[list, list[list]]:
        jets = []
        for e, begin, n in self.parts(len(coordinates)):
            y, moved = e.jvp(coordinates[begin : begin + n], [t[begin : begin + n] for t in tangents])
            jets.append([list(y), *map(list, moved)])
        ys, *dys = zip(*jets, strict=True)
        if self.reduction == "concatenation":
            y, *moved = [[v for part in parts for v in part] for parts in (ys, *dys)]
            return y, moved
        if self.reduction == "sum":
            y, *moved = [[sum(vs[1:], start=vs[0]) for vs in zip(*parts, strict=True)] for parts in (ys, *dys)]
            return y, moved
        others = [
            [math.prod(ys[j][k] for j in range(len(ys)) if j != i) for k in range(len(ys[0]))] for i in range(len(ys))
        ]
        moved = [
            [sum(part[k] * other[k] for part, other in zip(parts, others, strict=True)) for k in range(len(ys[0]))]
            for parts in dys
        ]
        return [math.prod(vs) for vs in zip(*ys, strict=True)], moved

    def parts(self, size: int) -> list[tuple[Any, int, int]]:
        """(encoding, first coordinate, number of coordinates) of all that have any."""
        self._check_ranges(size)
        ranges = self._ranges(size)
        return [(e, begin, n) for e, (begin, n) in zip(self.nested, ranges, strict=True) if n > 0]

    def _check_ranges(self, size: int) -> None:
        ranges = self._ranges(size)
        for i, (begin, n) in enumerate(ranges):
            if begin + n > size:
                raise ValueError(
                    f"Composite: encoding {i} takes the coordinates {begin} to {begin + n - 1}, but there are only "
                    f"{size}: 0 to {size - 1}."
                )
        if not any(n > 0 for _, n in ranges):
            raise ValueError("Composite: no encoding has any coordinates; call Composite([encoding, ...]).")
        widths = [e.width(n) for e, (_, n) in zip(self.nested, ranges, strict=True) if n > 0]
        if self.reduction != "concatenation" and len(set(widths)) > 1:
            raise ValueError(f"Composite: a {self.reduction} needs encodings of equal widths, but they give {widths}.")

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Composite, int]:  # type: ignore[override]
        size = self._size(size)
        self._check_ranges(size)
        ranges = self._ranges(size)
        nested = [e._alloc(dtype, n, rng)[0] if n > 0 else e for e, (_, n) in zip(self.nested, ranges, strict=True)]
        layer = Composite(
            nested, [n for _, n in ranges], self.dims_to_encode_begin, reduction=self.reduction, in_features=size
        )
        return layer, self.width(size)

    @recursive_repr()
    def __repr__(self) -> str:
        inner = "".join(textwrap.indent(f"{e!r},\n", "  ") for e in self.nested)
        arguments = ", ".join(
            f"{name}={getattr(self, name)!r}" for name in ("n_dims_to_encode", "dims_to_encode_begin", "reduction")
        )
        return f"Composite([\n{inner}], {arguments}, in_features={self.in_features})"
