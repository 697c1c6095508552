"""Padding of an encoding's features as in tiny-cuda-nn, whose networks need aligned inputs.

Most encodings put ones after their features, and grids put zeros. Spherical harmonics put ones in front (but kernels
that tiny-cuda-nn compiles at run time, ``jit_fusion``, put them after). Of encodings side by side, each is padded to
where the next one may begin, and the last one to the width that the network needs.
"""

from __future__ import annotations

import copy
import math
from typing import Any

from ... import nn

#: Numbers of inputs and outputs of all its networks are multiples of this, though 8 would suffice for some.
ALIGNMENT = 16


def padded(encoding: Any, size: int, alignment: int = ALIGNMENT) -> Any:
    """``encoding`` of ``size`` coordinates, padded to a multiple of ``alignment`` features as in tiny-cuda-nn."""
    if isinstance(encoding, nn.Composite):
        sizes = encoding.n_dims_to_encode
        parts = [padded(e, n, 1) for e, n in zip(encoding.nested, sizes, strict=True)]
        if encoding.reduction == "concatenation":
            begin = 0
            for i, n in enumerate(sizes[:-1]):
                end = next_multiple(begin + parts[i].width(n), _alignment(parts[i + 1]))
                parts[i] = _filled(parts[i], n, end - begin)
                begin = end
        else:
            common = _alignment(encoding)
            parts = [_filled(e, n, next_multiple(e.width(n), common)) for e, n in zip(parts, sizes, strict=True)]
        encoding = _with(encoding, parts)
    return _filled(encoding, size, next_multiple(encoding.width(size), math.lcm(alignment, _alignment(encoding))))


def next_multiple(n: int, of: int) -> int:
    """The smallest multiple that is at least ``n``."""
    return -(-n // of) * of


def _alignment(encoding: Any) -> int:
    """The alignment of an encoding: it begins and ends at multiples of this number of features."""
    if isinstance(encoding, nn.Pad):
        return _alignment(encoding.nested)
    if isinstance(encoding, nn.Composite):
        return math.lcm(*map(_alignment, encoding.nested))
    return encoding.n_features_per_level if isinstance(encoding, nn.Grid) else 1


def _filled(encoding: Any, size: int, width: int) -> Any:
    """``encoding`` of ``size`` coordinates with ``width`` features."""
    missing = width - encoding.width(size)
    if missing == 0:
        return encoding
    if isinstance(encoding, nn.Composite):
        counts = list(zip(encoding.nested, encoding.n_dims_to_encode, strict=True))
        every = encoding.reduction != "concatenation"
        last = len(counts) - 1
        return _with(
            encoding, [_filled(e, n, e.width(n) + missing * (every or i == last)) for i, (e, n) in enumerate(counts)]
        )
    if isinstance(encoding, nn.Pad):
        return _filled(encoding.nested, size, width)
    if isinstance(encoding, nn.SphericalHarmonics):
        return nn.Pad(encoding, before=missing)
    return nn.Pad(encoding, after=missing, value=0.0 if isinstance(encoding, nn.Grid) else 1.0)


def _with(composite: nn.Composite, parts: list) -> nn.Composite:
    """``composite`` of other encodings."""
    result = copy.copy(composite)
    result.nested = tuple(parts)
    return result
