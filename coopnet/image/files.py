"""Image files and their quality."""

from __future__ import annotations

import io
import math
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import check, check_type, ensure, shown_path
from ..checks.memory import NoRoom, check_room
from ..io import atomic_write
from ..io.files import file_name

try:
    from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError
except ImportError:
    raise ImportError("Images need the package pillow; pip install pillow, or coopnet[cli].") from None


def load(path: str | os.PathLike[str]) -> np.ndarray:
    """An image file as float32 sRGB values in [0, 1], shape ``(height, width, channels)``.

    Grey images have one channel, all others three. Orientation (EXIF) is applied, an embedded profile of colours or
    greys is converted to sRGB, transparent pixels are laid over white. 16-bit grey images keep their depth; Pillow
    reads other 16-bit images in 8 bits. Of an animation, the first frame is taken.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: it is not an image, damaged, too large, for Pillow or for the memory that is left, or has numbers
            that are not those of an image: floats outside [0, 1], ints outside [0, 65535], NaN.

    >>> image.save("grey.png", np.full((4, 6, 1), 0.5))
    >>> image.load("grey.png").shape
    (4, 6, 1)
    """
    path = Path(file_name(path, "image.load"))
    name = repr(shown_path(path))
    ensure(not path.is_dir(), f"{name} is a directory; an image file is needed.", IsADirectoryError)
    ensure(path.exists(), f"there is no file {name}.", FileNotFoundError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # large images are fine
            with Image.open(path) as image:
                _check_room(path, image)
                image.load()
                return _values(_srgb(_expanded(ImageOps.exif_transpose(image))))
    except NoRoom:
        raise
    except _NoPicture as error:
        hint = "scale them, and pass the array to coopnet.image.fit_image"
        raise ValueError(f"{name} has {error}; {hint}.") from None
    except UnidentifiedImageError:
        raise ValueError(f"{name} is not an image that Pillow can read.") from None
    except Image.DecompressionBombError as error:
        raise ValueError(f"{name} is too large: {error}") from None
    except PermissionError as error:
        raise OSError(f"cannot read {name}: {error.strerror}.") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:  # Pillow's errors for damaged files
        if "Ghostscript" in str(error):
            raise ValueError(f"{name} needs Ghostscript, which is not installed; convert it to PNG.") from None
        raise ValueError(f"{name} is a damaged image: {error}") from None


def _check_room(path: Path, image: Any) -> None:
    """Raise unless there is memory for ``image``, of which only the head has been read: a small file may be a huge
    image.
    """
    width, height = image.size
    count, channels = width * height, max(3, len(image.getbands()))
    parts = {"its pixels": [count * channels] * 3, "their values": [4.0 * count * 3]}  # read, converted and copied
    subject = f"{shown_path(path)!r} is a picture of {width} x {height} pixels; reading it"
    check_room(subject, parts, "A picture of fewer pixels takes less")


class _NoPicture(Exception):
    """The numbers of a file are not those of an image."""


def _expanded(image: Any) -> Any:
    """``image`` without a palette, and with transparency in a channel of its own."""
    if image.mode in ("P", "PA"):
        return image.convert("RGBA" if image.has_transparency_data else "RGB")
    if image.mode in ("L", "RGB") and image.has_transparency_data:
        return image.convert(f"{image.mode}A")
    return image


def _to_srgb(image: Any, profile: bytes, mode: str) -> Any:
    """``image`` in the sRGB colour space, or ``None`` if its ``profile`` is broken, or of other channels."""
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        return ImageCms.profileToProfile(image, source, ImageCms.createProfile("sRGB"), outputMode=mode)
    except (ImageCms.PyCMSError, OSError, ValueError):
        return None  # no reason to refuse the image


def _srgb(image: Any) -> Any:
    """``image`` in the sRGB colour space, if it comes with the profile of another one that can be converted."""
    profile = image.info.get("icc_profile")
    if profile and image.mode in ("RGB", "RGBA", "CMYK"):
        return _to_srgb(image, profile, "RGBA" if image.mode == "RGBA" else "RGB") or image
    curve = _curve(image) if image.mode in ("L", "LA") else None
    if curve is None:
        return image
    grey, *alpha = image.split()
    return Image.merge(image.mode, [grey.point(curve.tolist()), *alpha])


def _curve(image: Any) -> np.ndarray | None:
    """What the profile of a grey image makes of the 256 levels, or ``None``."""
    profile, levels = image.info.get("icc_profile"), Image.frombytes("L", (256, 1), bytes(range(256)))
    found = _to_srgb(levels, profile, "RGB") if profile else None
    return None if found is None else np.asarray(found)[0, :, 1]


def _numbers(image: Any) -> np.ndarray:
    """The values of a grey image of more than 8 bits."""
    given: np.ndarray = np.asarray(image)
    most, rounding = (1, 1e-3) if image.mode == "F" else (65535, 0)
    if not np.isfinite(given).all():
        raise _NoPicture(f"values that are not finite; those of an image lie in [0, {most}]")
    low, high = float(given.min()), float(given.max())
    if low < -rounding or high > most + rounding:
        raise _NoPicture(f"values from {low:g} to {high:g}; those of an image lie in [0, {most}]")
    values = np.divide(given, np.float32(most), dtype=np.float32)
    if (curve := _curve(image)) is not None:
        values = np.interp(values, np.linspace(0, 1, 256), curve / 255).astype(np.float32)
    transparent = image.info.get("transparency")
    return values if transparent is None else np.where(given == transparent, np.float32(1), values)


def _values(image: Any) -> np.ndarray:
    if image.mode == "F" or image.mode.startswith("I"):  # some versions of Pillow hold 16 bits in 32
        values = _numbers(image)
    else:
        mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
        if image.has_transparency_data:
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
        values = np.divide(np.asarray(image.convert(mode)), np.float32(255), dtype=np.float32)
    values = np.ascontiguousarray(values.reshape(*values.shape[:2], -1))
    return np.clip(values, 0, 1, out=values)


def save(path: str | os.PathLike[str], values: np.ndarray) -> None:
    """Write values ``(height, width, 1 or 3)``, clipped to [0, 1], in 8 bits; NaN as 0. The suffix says the format.

    Raises:
        TypeError, ValueError: not a floating-point array of this shape; a suffix of no format that Pillow writes.
        OSError: the file cannot be written.

    >>> image.save("red.png", np.tile(np.float32([1, 0, 0]), (4, 6, 1)))
    """
    _check_values("image.save", "values", values)
    shape = f"values has the shape {values.shape}; (height, width, 1 or 3) is needed"
    ensure(values.ndim == 3 and values.shape[2] in (1, 3) and values.size, f"image.save: {shape}.")
    suffix = Path(file_name(path, "image.save")).suffix.lower()
    check(suffix in writable_formats(), "image.save", "the suffix", suffix, "that of an image format, such as .png,")
    eight: np.ndarray = np.empty(values.shape, np.uint8)
    for y in range(len(values)):  # single-precision copies of a large picture may not fit in memory
        eight[y] = np.round(np.clip(np.nan_to_num(values[y]), 0, 1) * 255)
    image = Image.fromarray(eight[..., 0] if eight.shape[2] == 1 else eight)
    atomic_write(path, image.save)


def _check_values(where: str, name: str, values: Any) -> None:
    """Raise ``TypeError`` unless ``values`` is a floating-point array: 255 of 8 bits would be taken for white, and so
    would 1.
    """
    check_type(where, name, values, np.ndarray, "a NumPy array of values in [0, 1]")
    kind, needed = f"{where}: {name} is of {values.dtype}", "floating-point values in [0, 1] are needed"
    ensure(values.dtype.kind == "f", f"{kind}; {needed}, for 8 bits values / np.float32(255).", TypeError)


#: Formats that hold pictures of any size in 8 bits: those of Pillow, which also names icons, and formats that need
#: other programs.
FORMATS = {
    "AVIF", "BMP", "DIB", "GIF", "JPEG", "JPEG2000", "MPO", "PCX", "PDF", "PNG", "PPM", "QOI", "SGI", "TGA", "TIFF",
    "WEBP",
}  # fmt: skip


def writable_formats() -> set[str]:
    """The suffixes that :func:`save` can write."""
    Image.init()
    known = Image.registered_extensions().items()
    return {suffix for suffix, name in known if name in FORMATS & set(Image.SAVE)} - {".pfm"}


#: Rows of an array that are compared at a time.
_PIECE = 1 << 18


def psnr(a: np.ndarray, b: np.ndarray, rows: np.ndarray | None = None) -> float:
    """Peak signal-to-noise ratio in dB of two arrays of values in [0, 1], ``a`` clipped to that range first.

    ``rows`` are the numbers of the rows to compare; all if ``None``. Equal arrays have an infinite one, and arrays with
    NaN in them NaN.

    Raises:
        TypeError, ValueError: not two floating-point arrays of one shape.

    >>> image.psnr(np.full((4, 6, 1), 0.5), np.full((4, 6, 1), 0.6))
    20.0
    """
    for name, values in (("a", a), ("b", b)):
        _check_values("image.psnr", name, values)
    ensure(a.shape == b.shape, f"image.psnr: a has the shape {a.shape} and b {b.shape}; both must agree.")
    if rows is not None:
        listed = isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype.kind in "iu"
        check_type("image.psnr", "rows", rows, np.ndarray if listed else (), "a row of integers, a NumPy array,")
        inside = not len(rows) or (rows.min() >= 0 and rows.max() < len(a))
        ensure(inside, f"image.psnr: rows has numbers beyond the {len(a)} rows of a.")
    count, total = len(a) if rows is None else len(rows), 0.0
    for start in range(0, count, _PIECE):
        some: Any = slice(start, start + _PIECE)
        some = some if rows is None else rows[some]
        total += float(np.sum(np.square(np.clip(a[some], 0, 1) - b[some]), dtype=np.float64))
    numbers = count * math.prod(a.shape[1:])
    error = total / numbers if numbers else math.nan
    return math.inf if error == 0 else -10 * math.log10(error)
