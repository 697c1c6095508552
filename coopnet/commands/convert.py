"""``coopnet convert``: tiny-cuda-nn's configurations and parameters as a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from .. import backend as backends
from ..checks import ensure
from ..io import save
from . import arguments as args
from .errors import about, telling_warnings


def convert(
    configuration: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="JSON of tiny-cuda-nn or instant-ngp.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The checkpoint to write.")],
    inputs: Annotated[int, typer.Option(help="Number of coordinates.", min=1, max=2**16)],
    outputs: Annotated[int, typer.Option(help="Number of values.", min=1, max=2**16)],
    parameters: Annotated[
        Path | None,
        typer.Option("--params", metavar="PARAMS", help="The model's parameters: .npy, or raw numbers (.bin)."),
    ] = None,
    dtype: Annotated[
        Literal["float16", "float32"] | None, typer.Option(help="Type of raw numbers; default float16.")
    ] = None,
    ignore_unknown: Annotated[
        bool, typer.Option("--ignore-unknown", help="Warn about unknown keys instead of failing.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of initial parameters, without PARAMS.", min=0, max=2**64 - 1)] = 0,
    backend: args.BACKEND = "auto",
    force: args.FORCE = False,
) -> None:  # fmt: skip
    """Make a checkpoint of a tiny-cuda-nn configuration, with the parameters that its model has learned, if any.

    Encodings are padded as tiny-cuda-nn does. The file can be loaded with coopnet.load and, if it maps 2 coordinates
    to 1 or 3 values or 3 to 1, drawn by coopnet render. The configuration's loss and optimizer are kept as metadata.
    """
    from ..interop.tcnn import from_config, json_files

    args.check_output(output, [".safetensors"], ".safetensors")
    args.check_replaced(output, force, "choose another --output")
    raw = parameters is not None and parameters.suffix.lower() != ".npy"
    ensure(dtype is None or raw, "--dtype is for raw numbers in --params, not for .npy files.", typer.BadParameter)
    with about(configuration), telling_warnings():
        unknown = "warn" if ignore_unknown else "error"
        read = from_config(inputs, outputs, configuration, pad="tcnn", unknown=unknown)
        sections = json_files.read("from_config", configuration)
    field = read.field.build(backends.require(backend), seed=seed)
    if parameters is not None:
        with about(parameters):
            field.load_tcnn(_numbers(parameters, dtype or "float16" if raw else None), read)
    args.prepare_directory(output.parent, (output.name,))
    metadata: dict = {"tcnn": sections}
    if inputs == 2 and outputs in (1, 3):
        metadata["image"] = {"region": [0, 0, 1, 1]}  # on which tiny-cuda-nn's sample learns an image
    with about(output):
        save(output, field, metadata=metadata)
    origin = f"initial, of seed {seed}" if parameters is None else f"of {parameters}"
    count = sum(int(np.prod(v.shape)) for v in field.values())
    print(f"{inputs} coordinates to {outputs} values, {count} numbers held, parameters {origin}")
    print(f"wrote {output}")


def _numbers(path: Path, raw: str | None) -> np.ndarray:
    """The numbers in a file: ``.npy`` without pickled objects, or raw numbers of a type."""
    if raw is None:
        try:
            return np.load(path, allow_pickle=False)
        except ValueError:  # NumPy's message is about pickles rather than about the file
            problem = "is not a .npy file of numbers, or a damaged one; write one with numpy.save."
            raise ValueError(f"{str(path)!r} {problem}") from None
    data = path.read_bytes()
    size = np.dtype(raw).itemsize
    ensure(len(data) % size == 0, f"{str(path)!r} has {len(data)} bytes, not a multiple of the {size} of a {raw}.")
    return np.frombuffer(data, np.dtype(raw).newbyteorder("<")).astype(raw)
