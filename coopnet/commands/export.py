"""``coopnet export``: a checkpoint as source code of another language, or as a web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..checks import ensure
from ..io import load, read
from . import arguments as args
from .checkpoints import as_saved
from .errors import about, about_options, telling_warnings
from .render import VIEW, learned_region


def export(
    checkpoint: args.CHECKPOINT,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where the files go.")],
    to: Annotated[
        Literal["slang", "slang-coopvec", "glsl", "wgsl", "c", "numpy", "html"],
        typer.Option(help="The language, or html: a web page."),
    ],
    name: Annotated[str, typer.Option(help="Name of the function and of the files.")] = "field",
    precision: Annotated[
        Literal["auto", "single", "half"], typer.Option(help="Precision of the weights; auto: as in the checkpoint.")
    ] = "auto",
    grids: Annotated[
        Literal["auto", "single", "half", "uint8"], typer.Option(help="Precision of grids; auto: as the weights.")
    ] = "auto",
    dropout: Annotated[bool, typer.Option("--dropout", help="Give the function a key that turns dropout on.")] = False,
    derivatives: Annotated[
        bool, typer.Option("--derivatives", help="Also write a function for derivatives with respect to the position.")
    ] = False,
    inline: Annotated[
        bool | None, typer.Option("--inline/--no-inline", help="Put weights into the source; default for small ones.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of a web page; default the checkpoint's name.")] = None,
    region: args.REGION = None,
    view: args.SURFACE_VIEW = None,
    up: args.UP = None,
    smooth: Annotated[
        bool, typer.Option("--smooth", help="Smooth normals on a web page, by differences that hide a grid's cells.")
    ] = False,
) -> None:  # fmt: skip
    """Write a field as a function in another language, and its weights beside it.

    The head of the source says how to call it. docs/export.md describes the file of weights. A web page draws an image
    (2 coordinates, 1 to 4 values), with its uncertainty if there is dropout, or a surface (3 coordinates, 1 value).
    A material, saved by NeuralBSDF.save, is written as the BSDF times the cosine of u, v and two directions, or as a
    web page that shows it under a light.
    """
    from ..interop.export import Reflection, View
    from ..interop.export import export as write
    from ..interop.export.export import Request, check_name
    from ..interop.export.material import ENTRY
    from ..interop.export.targets import TARGETS

    page, bad = to == "html", typer.BadParameter
    of_surfaces = {"view": view, "up": up, "smooth": smooth or None}
    for option, value in {"title": title, "region": region, **of_surfaces}.items():
        ensure(page or value is None, f"--{option} is for web pages, --to html.", bad)
    given = {"dropout": dropout, "derivatives": derivatives, "inline": inline, "no-inline": inline is False}
    unused = [f"--{option}" for option, value in given.items() if page and value]
    ensure(not unused, f"{' and '.join(unused)}: not for web pages, which use what the field has.", bad)
    with about_options():
        check_name(name)
    with about(checkpoint):
        metadata = read(checkpoint).metadata
        material, noted = ENTRY in metadata, metadata.get("image")
        field = as_saved(checkpoint, Reflection.load if material else load)
    options: dict[str, Any] = {"precision": precision, "grids": grids}
    if page:
        if material:
            of_surfaces.pop("view")  # a page of a material has a camera, too
        unused = [f"--{option}" for option, value in of_surfaces.items() if value is not None]
        has = f"{str(checkpoint)!r} {'is a material' if material else f'has {field.in_features} coordinates'}."
        ensure(field.in_features == 3 or not unused, f"{' and '.join(unused)}: only for surfaces, but {has}", bad)
        azimuth, elevation = view or VIEW
        area = region or learned_region(noted if isinstance(noted, dict) else {})
        with about_options():
            options["view"] = View(title or checkpoint.stem, area, azimuth, elevation, up or "y", smooth)
    else:
        options |= {"name": name, "dropout": dropout, "derivatives": derivatives, "inline": inline}
    with about_options():
        Request(field, to, **options)
    args.prepare_directory(output)
    # both targets have the suffix .slang, so one file would replace the other
    stem = f"{name}_coopvec" if to == "slang-coopvec" else name
    source = output / f"{stem}{'.html' if page else TARGETS[to].suffix}"
    with about(checkpoint), telling_warnings():
        written = write(field, to, source, **options)
    for path in written:
        if path is not None:
            print(f"wrote {path} ({path.stat().st_size} bytes)")
