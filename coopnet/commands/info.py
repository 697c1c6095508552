"""``coopnet info``: what is here, or what is in a checkpoint."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import backend as backends
from ..nn.parameters import parameters
from ..uncertainty import has_dropout
from .checkpoints import as_saved
from .errors import about


def info(
    checkpoint: Annotated[
        Path | None, typer.Argument(metavar="FIELD", help="A checkpoint to describe instead of the machine.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, to be attached to a bug report.")] = False,
) -> None:  # fmt: skip
    """Show what is here: Dr.Jit, LLVM, CUDA, packages, and what mends what is missing.

    Without FIELD the exit code is 0 whatever is missing: finding out is what the command is for. With it, the field of
    the checkpoint is described, first by its SHA-256, of which exported sources show the first 32 digits.
    """
    if checkpoint is not None:
        with about(checkpoint):
            found = _described(checkpoint)
        print(json.dumps(found, indent=1) if as_json else "\n".join(f"{k:<12} {v}" for k, v in found.items()))
        return
    rows = backends.info()
    print(json.dumps(backends.as_json(rows), indent=1) if as_json else backends.format_info(rows))


def _described(checkpoint: Path) -> dict[str, Any]:
    from ..interop.export.weights import fingerprint

    field = as_saved(checkpoint)
    return {
        "sha256": fingerprint(field),
        "coordinates": field.in_features,
        **({} if field.bounds is None else {"bounds": field.bounds}),
        "encoding": type(field.encoding).__name__ if field.encoding is not None else "none",
        "network": type(field.network).__name__ if field.network is not None else "none",
        "precision": field.precision,
        "parameters": sum(math.prod(p.shape) for p in parameters(field)),
        "dropout": "yes" if has_dropout(field) else "no",
    }
