"""``coopnet mesh``: the surface of a checkpoint as a mesh."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import backend as backends
from ..checks import ensure, is_number
from . import arguments as args
from .errors import about, about_options


def mesh(
    checkpoint: args.CHECKPOINT,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The PLY, OBJ or STL to write.")],
    resolution: Annotated[
        int, typer.Option(metavar="N", help="Cells along the longest side of the box.", min=2, max=1024)
    ] = 128,
    level: Annotated[float, typer.Option(help="The value of the field on the surface.", callback=args.finite)] = 0.0,
    region: Annotated[
        Any,
        typer.Option(metavar="X,Y,Z,X,Y,Z", help="Two corners of a box to look for it.", parser=args.parse_numbers),
    ] = None,
    force: args.FORCE = False,
    backend: args.BACKEND = "auto",
) -> None:  # fmt: skip
    """Write the surface of a field of 3 coordinates and 1 value as triangles, by marching cubes.

    The box is divided into cells; what is thinner than a cell may be missed. Without --region, the box of the field's
    bounds is searched, or else the unit cube. If the field has learned a mesh, vertices are in the coordinates of its
    file, otherwise in those of the field. Needs coopnet[mesh].
    """
    from .. import mesh as meshes
    from ..io import read

    args.check_output(output, meshes.files.WRITTEN, f"one of {', '.join(meshes.files.WRITTEN)}")
    ensure(not output.is_dir(), f"{str(output)!r} is a directory; the name of a mesh file is needed.")
    args.check_replaced(output, force, "choose another --output")
    name = backends.require(backend)
    if region is not None:
        with about_options():
            meshes.view.check_box("mesh", region)
    with about(checkpoint):
        field = meshes.load_surface(checkpoint, name)
        noted = learned_place(read(checkpoint).metadata.get("mesh"))
        args.prepare_directory(output.parent)
        found = meshes.extract(field, resolution, level=level, region=region)
    with about(output):
        meshes.save(output, dataclasses.replace(found, **noted))
    kind = "watertight" if found.watertight else "not watertight"
    print(f"wrote {output} ({len(found.vertices)} vertices, {len(found.faces)} triangles, {kind})")


def learned_place(noted: Any) -> dict[str, Any]:
    """``centre`` and ``scale`` of the mesh that was learned, from ``noted``, metadata of a checkpoint, if there are."""
    noted = noted if isinstance(noted, dict) else {}
    centre, scale = noted.get("centre"), noted.get("scale")
    placed = isinstance(centre, list) and len(centre) == 3 and all(map(is_number, centre))
    return {"centre": tuple(centre), "scale": scale} if placed and is_number(scale) and scale > 0 else {}
