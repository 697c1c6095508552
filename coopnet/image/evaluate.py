"""Drawing fields: coordinates of pixels, and evaluation in pieces of bounded memory.

A picture of ``width`` by ``height`` pixels covers a box of the unit square: its longer side is 1/2 and its centre
(1/2, 1/2), so that the aspect ratio is kept. x points right and y down; a pixel is evaluated at its centre. Because of
the margin of a quarter, opposite edges are different places for periodic encodings, such as sines of period 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import drjit as dr
import numpy as np

from ..backend import namespace
from ..bounds import corners
from ..checks import check, check_int, check_type, check_unsigned, ensure, entries, is_flat, is_number
from ..checks.sizes import MAX_ENTRIES
from ..field import NeuralField, check_built
from ..random.key import Key
from ..uncertainty import mc_dropout, std

Region = tuple[float, float, float, float]  #: left, top, width and height of a part of the plane
CHUNK = 1 << 18  #: pixels evaluated at once


def box(width: int, height: int) -> Region:
    """Left, top, width and height of the part of the unit square that a picture covers."""
    w, h = 0.5 * width / max(width, height), 0.5 * height / max(width, height)
    return 0.5 - w / 2, 0.5 - h / 2, w, h


def region_of(field: NeuralField, width: int, height: int) -> Region:
    """The part of the plane that a picture of ``field`` covers: the box of its bounds, or that of :func:`box`."""
    if field.bounds is None:
        return box(width, height)
    (left, top), (right, bottom) = (map(float, corner) for corner in corners(field.bounds, 2))
    return left, top, right - left, bottom - top


def check_size(where: str, width: Any, height: Any) -> tuple[int, int]:
    """``width`` and ``height`` of a picture as plain ints; raises ``ValueError`` unless they are positive."""
    width, height = (
        check_int(where, name, value, 1, MAX_ENTRIES) for name, value in (("width", width), ("height", height))
    )
    few = width * height <= MAX_ENTRIES
    ensure(few, f"{where}: a picture has {width} x {height} pixels; fewer than 2^32 are possible.")
    return width, height


def check_drawable(where: str, field: Any, inputs: int) -> None:
    """Raise unless ``field`` is a built field of so many coordinates."""
    check_built(where, field)
    check(field.in_features == inputs, where, "field.in_features", field.in_features, str(inputs))


def check_maps(path: Any, field: NeuralField, of: str, inputs: int, outputs: tuple[int, ...]) -> None:
    """Raise ``ValueError`` unless ``field``, from the file ``path``, has so many coordinates, and one of ``outputs``
    values.
    """
    given, needed = field.in_features, f"{inputs} coordinates and {' or '.join(map(str, outputs))} values are needed"
    values = len(field([arrays(field).Float(0.5)] * given)) if given == inputs else 0
    has = f"it has {given} coordinates" + (f" and {values} values" if values else "")
    ensure(values in outputs, f"{str(path)!r} is not the field of {of}: {has}; {needed}.")


def _area(where: str, field: NeuralField, width: int, height: int, region: Any) -> Region:
    """The part of the plane that a picture covers, from arguments that are checked."""
    check_drawable(where, field, 2)
    return region_of(field, width, height) if region is None else check_region(where, region)


def check_region(where: str, region: Any) -> Region:
    """``region`` as floats; raises ``ValueError`` unless it has four numbers, the last two of them positive."""
    numbers: list[Any] = entries(where, "region", region) if isinstance(region, (tuple, list, np.ndarray)) else []
    valid = len(numbers) == 4 and all(map(is_number, numbers)) and min(numbers[2:]) > 0
    check(valid, where, "region", region, "(left, top, width, height) with a positive width and height")
    left, top, width, height = map(float, numbers)
    return left, top, width, height


def pixels(index: Any, width: int, height: int, region: Region | None = None) -> list:
    """Coordinates of the centres of the pixels with numbers ``index`` (a Dr.Jit ``UInt32``), counted row by row.

    ``region`` is the box ``(left, top, width, height)`` that the picture covers; another one than of the picture's
    proportions stretches it. ``None`` is the middle of the unit square, where :func:`fit_image` learns: its longer side
    is 1/2.

    Raises:
        TypeError, ValueError: ``index`` is not a ``UInt32``; a size or region that is not positive.

    >>> x, y = image.pixels(dr.arange(dr.auto.UInt32, 4 * 6), width=6, height=4)
    >>> dr.width(x), dr.width(y)
    (24, 24)
    """
    where = "image.pixels"
    valid = is_flat(index) and dr.is_jit_v(index) and dr.type_v(index) == dr.VarType.UInt32
    check_type(where, "index", index, dr.ArrayBase if valid else (), "a Dr.Jit UInt32")
    width, height = check_size(where, width, height)
    left, top, w, h = box(width, height) if region is None else check_region(where, region)
    f32 = dr.float32_array_t(index)
    # opaque, so that a picture of another size or region runs the same kernel
    columns = dr.opaque(dr.uint32_array_t(index), width)
    x, y, scale_x, scale_y = (dr.opaque(f32, v) for v in (left, top, w / width, h / height))
    row = index // columns
    return [x + (f32(index - row * columns) + 0.5) * scale_x, y + (f32(row) + 0.5) * scale_y]


def evaluate(field: NeuralField, index: np.ndarray, width: int, height: int) -> np.ndarray:
    """Values of ``field`` at the pixels with numbers ``index``, shape ``(pixels, channels)``."""
    uint32, numbers = arrays(field).UInt32, index.astype(np.uint32)
    return in_pieces(len(index), lambda i, n: [field(pixels(uint32(numbers[i : i + n]), width, height))])[0]


def render(field: NeuralField, width: int, height: int, region: Region | None = None) -> np.ndarray:
    """The deterministic field as a picture, shape ``(height, width, channels)``.

    ``region`` is ``(left, top, width, height)`` in the field's coordinates. ``None`` is the box of the field's bounds.
    Without bounds, it is the middle of the unit square, where :func:`fit_image` learns: its longer side is 1/2. Give
    ``(0, 0, 1, 1)`` for a field that you have trained on the whole square.

    Raises:
        TypeError, ValueError: a field that is not built or has not 2 coordinates; a size or region that is not
            positive.

    >>> image.render(field, width=6, height=4).shape
    (4, 6, 3)
    """
    width, height = check_size("image.render", width, height)
    area = _area("image.render", field, width, height, region)
    return _draw(field, width, height, lambda index: [field(pixels(index, width, height, area))])[0]


def render_mc(
    field: NeuralField, width: int, height: int, samples: int, seed: int = 0, region: Region | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Monte Carlo dropout: mean and standard deviation over ``samples`` masks, see :func:`coopnet.mc_dropout`.

    Evaluation :math:`i` is ``field(p, Key(seed, index=pixel, step=i))``. Both results have the shape ``(height, width,
    channels)``.

    Raises:
        TypeError, ValueError: as :func:`render` and :func:`coopnet.mc_dropout`; a ``seed`` outside [0, 2^64).

    >>> mean, deviation = image.render_mc(field, 6, 4, samples=8)
    >>> mean.shape, deviation.shape
    ((4, 6, 3), (4, 6, 3))
    """
    where = "image.render_mc"
    width, height = check_size(where, width, height)
    area = _area(where, field, width, height, region)
    seed_word = dr.opaque(arrays(field).UInt64, check_unsigned(where, "seed", seed))

    def draw(index: Any) -> list:
        return list(mc_dropout(field, pixels(index, width, height, area), Key(seed_word, index), samples))

    mean, deviation = _draw(field, width, height, draw)
    return mean, deviation


def render_std(field: NeuralField, width: int, height: int, region: Region | None = None) -> np.ndarray:
    """The deviation ``field.std(p)`` of a posterior or an ensemble, as a picture like that of :func:`render`."""
    area = _area("image.render_std", field, width, height, region)
    return _draw(field, width, height, lambda index: [std(field, pixels(index, width, height, area))])[0]


def _draw(field: NeuralField, width: int, height: int, draw: Any) -> list[np.ndarray]:
    """Pictures of the values that ``draw(pixel numbers)`` returns."""
    uint32 = arrays(field).UInt32
    drawn = in_pieces(width * height, lambda start, n: draw(dr.arange(uint32, n) + dr.opaque(uint32, start)))
    return [values.reshape(height, width, -1) for values in drawn]


def in_pieces(count: int, draw: Callable[[int, int], list]) -> list[np.ndarray]:
    """The results of ``draw(start, n)`` for ``n`` samples from ``start`` on, each of shape ``(count, channels)``, in
    pieces.
    """
    drawn: list[np.ndarray] = []
    for start in range(0, count, CHUNK):
        n = min(CHUNK, count - start)
        values = draw(start, n)
        dr.eval(values)
        drawn = drawn or [np.empty((count, len(value)), np.float32) for value in values]
        for array, value in zip(drawn, values, strict=True):
            for c, channel in enumerate(value):
                array[start : start + n, c] = channel.numpy()
    return drawn


def arrays(field: NeuralField) -> Any:
    """The array types of the backend that ``field`` lives on, as :func:`coopnet.backend.namespace` gives them."""
    return namespace(field.backend)
