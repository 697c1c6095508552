"""Learning an image from some of its pixels."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

import drjit as dr
import numpy as np

from ..backend import namespace
from ..checks import (
    check,
    check_above,
    check_choice,
    check_flag,
    check_int,
    check_positive,
    check_unsigned,
    ensure,
    is_number,
    plain,
)  # fmt: skip
from ..checks.memory import NoRoom, check_room
from ..checks.sizes import MAX_ENTRIES
from ..field import NeuralField
from ..io import load as load_field
from ..io import read
from ..nn import MLP, HashGrid, Identity, Sinusoidal, Triangular
from ..random import streams
from ..random.key import Key
from ..training import FitResult, uniform
from . import files, plots
from .evaluate import arrays, check_maps, check_size, evaluate, pixels, render
from .folder import batches, fit_to, has_ended, own_folder

ENCODINGS = ("sinusoidal", "triangular", "hashgrid", "identity")
METRIC_PIXELS = 1 << 16  #: most held-out pixels that are evaluated during training


@dataclass
class ImageFit:
    """The result of :func:`fit_image`: the field, its quality in dB (``None`` without held-out pixels), the files."""

    field: NeuralField
    training: FitResult
    psnr_training: float | None = None
    psnr_held_out: float | None = None
    files: dict[str, Path] = dataclass_field(default_factory=dict)


def make_field(
    width: int,
    height: int,
    channels: int = 3,
    *,
    encoding: str = "hashgrid",
    units: int = 64,
    depth: int = 2,
    dropout: float = 0.0,
    fraction: float = 0.2,
) -> NeuralField:
    """A field for pictures of ``width`` by ``height`` pixels, not built yet.

    The finest detail of the encoding follows the distance between training pixels, ``1 / sqrt(fraction)``: a
    finer encoding would overfit them. A level of the hash grid has at most 16 entries for each training pixel.

    Raises:
        ValueError: sizes that are not positive, a ``fraction`` outside (0, 1], an unknown ``encoding``.

    >>> image.make_field(640, 480, 3, encoding="sinusoidal").build().in_features
    2
    """
    where = "image.make_field"
    width, height = check_size(where, width, height)
    channels = check_positive(where, "channels", channels)
    check_choice(where, "encoding", encoding, ENCODINGS)
    fraction = _check_fraction(where, fraction)
    cells = max(4.0, max(width, height) * math.sqrt(fraction))  # training pixels along the longer side
    layer: Any
    if encoding == "hashgrid":
        # cells along the unit square; the picture covers half of its side
        coarse, finest, levels = max(2, min(48, round(cells / 4))), max(8.0, 1.1 * cells), 32
        most = max(128.0, 16 * fraction * width * height)  # fewer than 2 finest^2 for long, thin pictures
        entries = min(2**22, 2 ** math.ceil(math.log2(min(2 * finest**2, most))))
        layer = HashGrid(
            2, n_levels=levels, base_resolution=coarse, hashmap_size=entries,
            per_level_scale=(finest / coarse) ** (1 / (levels - 1)),
        )  # fmt: skip
    elif encoding == "identity":
        layer = Identity()
    else:
        octaves = max(1, min(12, round(math.log2(cells))))
        layer = (Sinusoidal if encoding == "sinusoidal" else Triangular)(octaves, in_features=2)
    network = MLP(
        in_features=2 if encoding == "identity" else -1,
        out_features=channels,
        width=units,
        depth=depth,
        dropout=dropout,
        output_activation="sigmoid",  # colours lie in [0, 1]
        bias=encoding == "identity",  # the other encodings hold constants
    )
    return NeuralField(layer, network)


def training_count(count: int, fraction: float) -> int:
    """How many of ``count`` pixels the ``fraction`` is: at least one, and at most all but one, or all if it is 1."""
    return min(max(1, round(fraction * count)), count if fraction == 1 else count - 1)


def training_pixels(count: int, fraction: float, seed: int, backend: Any = "auto") -> np.ndarray:
    """Numbers of the pixels to train on, increasing: the ``fraction`` with the smallest :func:`coopnet.uniform` number.

    Pixel :math:`i` draws with ``Key(seed, index=i)``, so the choice is the same on every machine and backend. Unless
    ``fraction`` is 1, at least one pixel is left.

    Raises:
        ValueError: ``count`` is not positive, ``fraction`` not in (0, 1], ``seed`` not in [0, 2^64).

    >>> len(image.training_pixels(640 * 480, 0.2, seed=1))
    61440
    """
    where = "image.training_pixels"
    count, fraction = check_int(where, "count", count, 1, MAX_ENTRIES), _check_fraction(where, fraction)
    seed = check_unsigned(where, "seed", seed)
    ns = namespace(backend)
    numbers = uniform(1, Key(seed), ns.Float, count, stream=streams.SELECTION)[0].numpy()
    n = training_count(count, fraction)
    return np.sort(np.argsort(numbers, kind="stable")[:n])


def fit_image(
    image: np.ndarray | str | Path,
    directory: str | Path,
    *,
    backend: str = "auto",
    steps: int = 500,
    width: int = 64,
    depth: int = 2,
    encoding: str = "hashgrid",
    dropout: float = 0.0,
    fraction: float = 0.2,
    batch: int = 1 << 14,
    lr: float = 5e-3,
    seed: int = 0,
    resume: bool = False,
    progress: bool = True,
) -> ImageFit:
    """Train a field on a random fraction of an image's pixels; write it and pictures of it to ``directory``.

    Args:
        image: a file, or values in [0, 1], shape ``(height, width, 1 or 3)``, as :func:`coopnet.image.load` returns.
        directory: made if missing. Gets ``field.safetensors``, ``reconstruction.png``, ``comparison.png`` and
            ``loss.png``; existing ones are replaced.
        backend: ``"auto"``, ``"llvm"`` or ``"cuda"``.
        steps, batch, lr: training steps, pixels per step, and the learning rate that falls to 0 along half a cosine.
        width, depth, encoding, dropout: of the field, see :func:`make_field`.
        fraction: of the pixels to train on, in (0, 1]; the others are held out to measure quality.
        seed: of the weights, the choice of pixels, the batches and the masks.
        resume: continue from ``field.safetensors`` in ``directory``, which must be of the same image and settings.
        progress: show a progress bar.

    Returns:
        An :class:`ImageFit`. After Ctrl-C, ``training.stopped`` is ``"interrupt"`` and only the checkpoint is written.
        If training diverged, it is ``"diverged"``, nothing is drawn, and ``files`` is empty: a checkpoint that is in
        ``directory`` was written before.

    Raises:
        ValueError, TypeError: arguments out of range; a checkpoint that does not fit; a picture too large for the
            memory that is left.
        OSError: files that cannot be read or written; another run is writing to ``directory``.
        BackendError: no such backend here.
        ImportError: a missing package.

    >>> found = image.fit_image(np.full((8, 8, 3), 0.5), "out", steps=2, progress=False)
    >>> sorted(found.files)
    ['comparison', 'field', 'loss', 'reconstruction']
    """
    image = files.load(image) if isinstance(image, (str, Path)) else image
    fraction, batch, lr, steps, seed = _check(image, fraction, batch, lr, steps, seed)
    check_choice("fit_image", "encoding", encoding, ENCODINGS)
    check_flag("fit_image", "resume", resume)
    check_flag("fit_image", "progress", progress)
    height, columns, channels = image.shape
    count = height * columns
    _check_room(columns, height, channels)
    with _about_picture(columns, height):
        field = make_field(
            columns, height, channels, encoding=encoding, units=width, depth=depth, dropout=dropout, fraction=fraction
        ).build(backend, seed=seed)
    metadata = {
        "image": {"width": columns, "height": height, "channels": channels, "colours": "sRGB"},
        "fit": {
            "pixels": hashlib.sha256(np.ascontiguousarray(image).data).hexdigest(),
            "fraction": fraction, "batch": batch, "lr": lr, "dropout": plain(dropout),
        },
    }  # fmt: skip
    with own_folder("fit_image", directory, metadata, resume, steps) as checkpoint:
        uint32 = arrays(field).UInt32
        chosen = training_pixels(count, fraction, seed, dr.backend_v(uint32))
        others = np.ones(count, bool)
        others[chosen] = False
        held_out = np.flatnonzero(others)
        looked_at = held_out[:: max(1, -(-len(held_out) // METRIC_PIXELS))]
        colours = image.reshape(count, channels)

        def quality(field: NeuralField) -> float:
            return files.psnr(evaluate(field, looked_at, columns, height), colours[looked_at])

        with _about_picture(columns, height):
            table = pixels(uint32(chosen.astype(np.uint32)), columns, height)
            table += [type(table[0])(colours[chosen, c]) for c in range(channels)]
            result = fit_to(
                checkpoint, field, batches(table, 2, batch), steps, lr,
                seed=seed, metric=quality if len(looked_at) else None, metric_every=max(1, steps // 25),
                resume=resume, metadata=metadata, progress=progress,
            )  # fmt: skip
        outcome = ImageFit(field, result)
        if not has_ended(outcome, checkpoint):
            return outcome
        dr.flush_malloc_cache()  # memory that training used, which the pictures may need
        picture = render(field, columns, height)
        values = picture.reshape(count, channels)
        outcome.psnr_training = files.psnr(values, colours, chosen)
        outcome.psnr_held_out = files.psnr(values, colours, held_out) if len(held_out) else None
        outcome.files |= {
            name: checkpoint.with_name(f"{name}.png") for name in ("reconstruction", "comparison", "loss")
        }
        files.save(outcome.files["reconstruction"], picture)
        plots.comparison(
            outcome.files["comparison"], image, chosen, picture, outcome.psnr_training, outcome.psnr_held_out
        )
        plots.loss(outcome.files["loss"], result)
        return outcome


def _check_room(width: int, height: int, channels: int) -> None:
    """Raise ``ValueError`` if there is no memory for the arrays of a picture beside its field."""
    count = float(width * height)
    parts = {
        "choosing pixels": [4 * count, 8 * count, 8 * count],
        "the picture that is drawn": [4 * count * channels, count * channels],
        "its errors": [4 * count, 4 * count],
    }
    subject = f"fit_image: the picture has {width} x {height} pixels; learning it"
    check_room(subject, parts, "A picture of fewer pixels takes less")


@contextmanager
def _about_picture(width: int, height: int) -> Iterator[None]:
    """A block in which errors about too little memory name the size of the picture as the reason."""
    try:
        yield
    except NoRoom as error:
        problem = f"fit_image: the picture has {width} x {height} pixels, which makes a large field. {error}"
        hint = "A picture of fewer pixels makes a smaller one, and so does another encoding than hashgrid."
        raise NoRoom(f"{problem} {hint}") from None


def load_image_field(path: str | Path, backend: str = "auto") -> tuple[NeuralField, dict[str, Any]]:
    """A field from a checkpoint, and the metadata of :func:`fit_image` about its image, if any.

    Raises as :func:`coopnet.load`; also ``ValueError`` if it does not map 2 coordinates to 1 or 3 values.
    """
    field = load_field(path, backend)
    check_maps(path, field, "an image", 2, (1, 3))
    noted = read(path).metadata.get("image")
    return field, noted if isinstance(noted, dict) else {}


def _check_fraction(where: str, fraction: Any) -> float:
    check(is_number(fraction) and 0 < fraction <= 1, where, "fraction", fraction, "a number in (0, 1]")
    return float(fraction)


def _check(image: Any, fraction: Any, batch: Any, lr: Any, steps: Any, seed: Any) -> tuple:
    array = isinstance(image, np.ndarray)
    kind = f"of shape {image.shape}" if array else f"a {type(image).__name__}"
    valid = array and image.ndim == 3 and image.shape[2] in (1, 3)
    ensure(valid, f"fit_image: image is {kind}; an array (height, width, 1 or 3) is needed.")
    count = image.shape[0] * image.shape[1]
    ensure(count > 1, "fit_image: the image has no pixel or a single one; at least 2 are needed.")
    ensure(count < 2**32, "fit_image: the image has 2^32 pixels or more.")
    floating = image.dtype.kind == "f"
    kind = "not finite everywhere" if floating else f"of {image.dtype}"
    # both return NaN if there is any, and neither needs another array of this size
    low, high = (np.min(image), np.max(image)) if floating else (0, 0)
    finite = floating and np.isfinite(low) and np.isfinite(high)
    ensure(finite, f"fit_image: image is {kind}; floating point values in [0, 1] are needed.")
    ensure(low >= 0 and high <= 1, f"fit_image: image has values from {low:.3g} to {high:.3g}; [0, 1] is needed.")
    batch, steps = (
        check_int("fit_image", name, value, 1, maximum)
        for name, value, maximum in (("batch", batch, 2**24), ("steps", steps, 2**32 - 1))
    )
    lr, seed = check_above("fit_image", "lr", lr), check_unsigned("fit_image", "seed", seed)
    return _check_fraction("fit_image", fraction), batch, lr, steps, seed
