"""``coopnet export``: a checkpoint as source code of another language."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .. import backend as backends
from ..io import load, read
from . import arguments as args
from .words import about


def export(
    checkpoint: Annotated[Path, typer.Argument(metavar="FIELD", help="The checkpoint, such as field.safetensors.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where the files go.")],
    to: Annotated[
        Literal["slang", "slang-coopvec", "glsl", "wgsl", "c", "numpy"], typer.Option(help="The language.")
    ],
    name: Annotated[str, typer.Option(help="Of the function and of the files.")] = "field",
    precision: Annotated[
        Literal["auto", "single", "half"], typer.Option(help="Of the weights; auto: as in the checkpoint.")
    ] = "auto",
    grids: Annotated[
        Literal["auto", "single", "half", "uint8"], typer.Option(help="Of the features of grids; auto: as the weights.")
    ] = "auto",
    dropout: Annotated[bool, typer.Option("--dropout", help="Give the function a key, and keep the dropouts.")] = False,
    derivatives: Annotated[
        bool, typer.Option("--derivatives", help="Also write a function for the derivatives by position.")
    ] = False,
    inline: Annotated[
        bool | None, typer.Option("--inline/--no-inline", help="Put weights into the source; small ones are.")
    ] = None,
) -> None:  # fmt: skip
    """Write a field as a function in another language, and its weights beside it.

    The head of the source says how to call it. docs/export.md describes the file of weights.
    """
    from ..interop.export import export as write
    from ..interop.export.targets import TARGETS

    with about(checkpoint):
        held = {value.dtype.name for key, value in read(checkpoint).tensors.items() if key.startswith("network.")}
        half = held == {"float16"}
        # CUDA holds networks in half precision only
        backend = "llvm" if "llvm" in backends.available() else "auto"
        field = load(checkpoint, backend, "half" if half else "single")
    args.prepare_directory(output)
    source = output / f"{name}{TARGETS[to].suffix}"
    options = {"precision": precision, "grids": grids, "dropout": dropout, "derivatives": derivatives, "inline": inline}
    with about(checkpoint):
        written = write(field, to, source, name=name, **options)  # type: ignore[arg-type]
    for path in written:
        if path is not None:
            print(f"wrote {path} ({path.stat().st_size} bytes)")
