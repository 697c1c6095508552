"""``coopnet render``: draw a checkpoint, an image or a surface."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from .. import backend as backends
from ..checks import ensure, is_int, is_number
from ..field import NeuralField
from ..uncertainty import draws
from . import arguments as args
from .errors import about, about_options, telling_warnings

VIEW = (30.0, 20.0)
SIDE = 512  #: of a picture, if neither --size nor the checkpoint says its size


def render(
    checkpoint: args.CHECKPOINT,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The picture to write.")],
    size: Annotated[
        Any,
        typer.Option(
            metavar="WxH", help="Its size in pixels; default the learned image's, or 512x512.", parser=args.parse_size
        ),
    ] = None,
    mc_samples: Annotated[
        int | None,
        typer.Option(metavar="K", help="Average K dropout masks; also writes uncertainty.png.", min=2, max=2**24),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the masks.", min=0, max=2**64 - 1)] = 0,
    region: args.REGION = None,
    view: args.SURFACE_VIEW = None,
    up: args.UP = None,
    backend: args.BACKEND = "auto",
) -> None:  # fmt: skip
    """Draw a checkpoint at any size: an image, stretched to WxH, or a surface, sphere-traced and shaded.

    A field of 2 coordinates and 1 or 3 values is an image; one of 3 coordinates and 1 value is a signed distance.
    Without --region, what the image covered when it was learned is drawn, or the box of the field's bounds, or else the
    unit square or cube. With --mc-samples an image is evaluated K times with K dropout masks; FILE gets the mean, and
    uncertainty.png beside it shows the standard deviation; if that is there already, it stays, and FILE_uncertainty.png
    does. FILE and FILE_uncertainty.png are replaced if they are there.
    """
    from .. import image as images
    from .. import mesh as meshes
    from ..image import files
    from ..io import read

    args.check_output(output, files.writable_formats(), "that of an image format, such as .png")
    ensure(not output.is_dir(), f"{str(output)!r} is a directory; the name of a picture is needed.")
    other = output.with_name("uncertainty.png")
    if other == output or other.exists():  # it may be another picture's
        other = output.with_name(f"{output.stem}_uncertainty.png")
    name = backends.require(backend)
    with about(checkpoint):
        surface = read(checkpoint).architecture.get("in_features") == 3
        noted: dict[str, Any] = {}
        if surface:
            field = meshes.load_surface(checkpoint, name)
        else:
            field, noted = images.learn.load_image_field(checkpoint, name)
    for option, value in (("--mc-samples", mc_samples), ("--view", view), ("--up", up)):
        kind, of = ("a surface", "an image") if surface else ("an image", "a surface")
        wrong = value is not None and (option == "--mc-samples") == surface
        ensure(not wrong, f"{str(checkpoint)!r} is the field of {kind}, and {option} is for {of}.", typer.BadParameter)
    if region is not None:
        with about_options():
            (meshes.view.check_box if surface else images.evaluate.check_region)("render", region)
    if mc_samples and not draws(field):
        problem = "has no dropout, so all evaluations are equal and --mc-samples has no meaning"
        raise ValueError(f"{str(checkpoint)!r} {problem}; fit with --dropout, or render without --mc-samples.")
    args.prepare_directory(output.parent)
    width, height = size or learned_size(noted, SIDE)
    deviation = None
    if surface:
        azimuth, elevation = view or VIEW
        picture = meshes.render(field, width, height, azimuth, elevation, up or "y", region)
    elif mc_samples is None:
        picture = images.render(field, width, height, region or drawn_region(field, noted))
    else:
        with telling_warnings():
            area = region or drawn_region(field, noted)
            picture, deviation = images.render_mc(field, width, height, mc_samples, seed, area)
    check_finite(checkpoint, picture)
    with about(output):
        files.save(output, picture)
    print(f"wrote {output}")
    if mc_samples is not None and deviation is not None:
        from ..image import plots

        plots.uncertainty(other, deviation, mc_samples)
        print(f"wrote {other}")
        print(f"mean standard deviation {float(deviation.mean()):.4f}")


def check_finite(checkpoint: Path, picture: np.ndarray) -> None:
    """Raise if the field of ``checkpoint`` has given NaN or infinities."""
    bad = picture.size - int(np.isfinite(picture).sum())
    gives = f"gives {bad} of {picture.size} values that are not finite; nothing is drawn."
    ensure(bad == 0, f"{str(checkpoint)!r} {gives}")


def drawn_region(field: NeuralField, noted: dict) -> tuple[float, float, float, float] | None:
    """The part of the plane that is drawn of ``field``: that of the learned image, as :func:`learned_region` says; else
    the unit square, or ``None`` for the box of the field's bounds.
    """
    return learned_region(noted) or (None if field.bounds is not None else (0.0, 0.0, 1.0, 1.0))


def learned_region(noted: dict) -> tuple[float, float, float, float] | None:
    """The part of the plane that the learned image covers, from ``noted``, metadata of a checkpoint; else ``None``."""
    from ..image import evaluate

    region = noted.get("region")
    if isinstance(region, list) and len(region) == 4 and all(is_number(v) for v in region):
        left, top, width, height = map(float, region)
        if min(width, height) > 0:
            return left, top, width, height
    learned: list[Any] = [noted.get(side) for side in ("width", "height")]
    return evaluate.box(*learned) if all(is_int(v, 1, 2**32 - 1) for v in learned) else None


def learned_size(noted: dict[str, Any], side: int) -> tuple[int, int]:
    """Width and height of the learned image, from ``noted``, metadata of a checkpoint; else of a square."""
    learned: list[Any] = [noted.get(name) for name in ("width", "height")]
    width, height = learned if all(is_int(v, 1, args.MAX_PIXELS) for v in learned) else (side, side)
    return (width, height) if width * height <= args.MAX_PIXELS else (side, side)
