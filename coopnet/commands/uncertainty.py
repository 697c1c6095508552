"""``coopnet uncertainty``: draw the map of a checkpoint's uncertainty."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .. import backend as backends
from ..checks import ensure
from ..uncertainty import has_dropout, has_std
from . import arguments as args
from .errors import about, telling_warnings
from .render import check_finite, drawn_region, learned_size

SIDE = 256  #: of the map, if neither --size nor the checkpoint says its size


def uncertainty(
    checkpoint: args.CHECKPOINT,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The PNG; default CHECKPOINT_uncertainty.png beside it."),
    ] = None,
    method: Annotated[
        Literal["auto", "dropout", "std"],
        typer.Option(help="Dropout masks, or std of a posterior or ensemble; auto: std if there is one."),
    ] = "auto",
    size: Annotated[
        Any,
        typer.Option(
            metavar="WxH", help="Size in pixels; default the learned image's, or 256x256.", parser=args.parse_size
        ),
    ] = None,
    mc_samples: Annotated[int, typer.Option(metavar="K", help="Number of dropout masks.", min=2, max=2**24)] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the masks.", min=0, max=2**64 - 1)] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing picture.")] = False,
    backend: args.BACKEND = "auto",
) -> None:  # fmt: skip
    """Draw a map of a checkpoint's uncertainty: the standard deviation of its colours, over the image.

    For a field of 2 coordinates and 1 or 3 values that was trained with dropout, or that cn.laplace or cn.ensemble has
    made. Prints the mean and the largest deviation. Dropout does not show which places a hash grid has not seen.
    """
    from .. import image as images
    from ..image import plots

    output = output or checkpoint.with_name(f"{checkpoint.stem}_uncertainty.png")
    args.check_output(output, [".png"], ".png")
    ensure(not output.is_dir(), f"{str(output)!r} is a directory; the name of a picture is needed.")
    args.check_replaced(output, force, "choose another --output")
    name = backends.require(backend)
    with about(checkpoint):
        field, noted = images.learn.load_image_field(checkpoint, name)
    masks = method == "dropout" or (method == "auto" and not has_std(field))
    _check_method(checkpoint, field, method, masks)
    width, height = size or learned_size(noted, SIDE)
    args.prepare_directory(output.parent)
    region = drawn_region(field, noted)
    with about(checkpoint), telling_warnings():
        if masks:
            _, deviation = images.render_mc(field, width, height, mc_samples, seed, region)
        else:
            deviation = images.evaluate.render_std(field, width, height, region)
    check_finite(checkpoint, deviation)
    with about(output):
        plots.uncertainty(output, deviation, mc_samples if masks else None)
    print(f"wrote {output}")
    print(f"standard deviation: mean {float(deviation.mean()):.4f}, max {float(deviation.max()):.4f}")


def _check_method(checkpoint: Path, field: Any, method: str, masks: bool) -> None:
    """Raise unless ``field`` has the requested deviation."""
    if has_dropout(field) if masks else has_std(field):
        return
    has = {
        "auto": "is sure of everything: it has no dropout, and is neither a posterior nor an ensemble",
        "dropout": "has no dropout, and --method dropout needs some",
        "std": "is neither a posterior nor an ensemble, and --method std needs one",
    }[method]
    hint = "fit with --dropout, or save the field that cn.laplace or cn.ensemble makes"
    raise typer.BadParameter(f"{str(checkpoint)!r} {has}; {hint}.")
