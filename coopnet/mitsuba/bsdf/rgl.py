"""Measured reflections of the RGL database (Dupuy and Jakob 2018): files that Mitsuba reads, checked before it does.

Mitsuba's ``measured`` does not check the length of a file. It fills the missing part of a truncated file with
uninitialized memory, and the material is wrong without an error.
"""

from __future__ import annotations

import math
import os
import struct
from typing import Any

import mitsuba as mi
import numpy as np

from ...checks import ensure
from ...io.files import file_name, naming, regular
from .. import variants

_START = struct.Struct("<12sBBI")  # kind of file, version, number of fields
_NAME = b"tensor_file\0"

#: Bytes of a number by its type, as numbered in files.
_SIZES = dict(zip(range(1, 12), (1, 1, 2, 2, 4, 4, 8, 8, 2, 4, 8), strict=True))
_SINGLE = 10

#: Fields with numbers of single precision, besides the colors.
_FIELDS = "theta_i", "phi_i", "ndf", "sigma", "vndf", "luminance"


def rgl(filename: str | os.PathLike[str]) -> Any:
    """Mitsuba's ``measured`` BSDF, isotropic or anisotropic, from a file of the RGL database that has been checked.

    Args:
        filename: a file with colors in ``rgb`` variants (``*_rgb.bsdf``), and with spectra in spectral variants.
            Mitsuba reads no others.

    Returns:
        A ``mi.BSDF``, which :func:`fit_bsdf` takes.

    Raises:
        TypeError: ``filename`` is neither string nor path.
        ValueError: no such file, a truncated one, one without a needed field, or one with numbers that are not finite.
        OSError: the file cannot be read.
        RuntimeError: no variant is set, or one in which fields do not run.

    >>> satin = cn.mitsuba.rgl("satin_rgb.bsdf")
    """
    where = "rgl"
    variants.current(where)
    path = file_name(filename, where, "filename")
    size = regular(path, where).st_size
    with naming(path), open(path, "rb") as file:
        data = file.read()
    _check(data, size, f"{where}: {path!r}")
    return mi.load_dict({"type": "measured", "filename": os.path.abspath(path)})


def _check(data: bytes, size: int, what: str) -> None:
    foreign = f"{what}: not an RGL file: it does not begin like one"
    ensure(len(data) >= _START.size and data.startswith(_NAME + b"\1\0"), f"{foreign}.")
    fields, end = _fields(data, what)
    missing = [name for name in (*_FIELDS, "description", "jacobian") if name not in fields]
    color = "spectra" if mi.is_spectral else "rgb"
    others = "Mitsuba's variant needs a file with spectra" if mi.is_spectral else "take the file with rgb in its name"
    ensure(not missing, f"{what}: no material: the fields {', '.join(missing)} are missing.")
    ensure(color in fields, f"{what}: a material without the field {color}; {others}.")
    ensure(size >= end, f"{what}: a truncated RGL file: it has {size} of at least {end} bytes.")
    for name in (*_FIELDS, color):
        kind, start, count = fields[name]
        ensure(kind == _SINGLE, f"{what}: a damaged RGL file: {name} is not in single precision.")
        finite = np.isfinite(np.frombuffer(data, "<f4", count, start)).all()
        ensure(finite, f"{what}: a damaged RGL file: not all numbers of {name} are finite.")


def _fields(data: bytes, what: str) -> tuple[dict[str, tuple[int, int, int]], int]:
    """Type, offset and count of each field, and where the last one ends, from the table at the start of a file."""
    fields, at, end = {}, _START.size, 0
    try:
        for _ in range(_START.unpack_from(data)[-1]):
            (length,) = struct.unpack_from("<H", data, at)
            name = data[at + 2 : at + 2 + length].decode()
            dimensions, kind, start = struct.unpack_from("<HBQ", data, at + 2 + length)
            at += 2 + length + 11
            count = math.prod(struct.unpack_from(f"<{dimensions}Q", data, at))
            at += 8 * dimensions
            fields[name] = kind, start, count
            end = max(end, start + count * _SIZES[kind])
    except (struct.error, UnicodeDecodeError, KeyError) as error:
        raise ValueError(f"{what}: a truncated or damaged RGL file: its list of fields cannot be read.") from error
    return fields, end
