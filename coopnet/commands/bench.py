"""``coopnet bench``: a minute of measurements against other libraries."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from . import arguments as args


def bench(
    backend: args.BACKEND = "auto",
    width: Annotated[int, typer.Option(help="Units per layer.", min=1, max=1024)] = 64,
    batch: Annotated[
        int | None, typer.Option(help="Samples; default 65536 on LLVM, 1048576 on CUDA.", min=1, max=2**24)
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Time for measurements, without compiling.", callback=args.positive)
    ] = 40.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all figures.")] = False,
) -> None:
    """Compare coopnet with drjit.nn and, if installed, PyTorch: inference and a training step, in about a minute.

    All compute the same network from the same weights and inputs, 16 -> w -> w -> w -> 3 with ReLU, in processes of
    their own that take turns. Figures are medians, with their ratios to coopnet's. Run nothing else meanwhile.
    """
    from ..bench import compare, format_comparison

    show = sys.stderr.isatty()
    comparison = compare(backend, width, batch, seconds, lambda text: print(text, file=sys.stderr) if show else None)
    print(json.dumps(comparison, indent=1) if as_json else format_comparison(comparison))
