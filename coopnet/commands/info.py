"""``coopnet info``: what is here."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .. import backend as backends


def info(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, to be attached to a bug report.")] = False,
) -> None:
    """Show what is here: Dr.Jit, LLVM, CUDA, packages, and what mends what is missing.

    The exit code is 0 whatever is missing: finding out is what the command is for.
    """
    rows = backends.info()
    print(json.dumps(backends.as_json(rows), indent=1) if as_json else backends.format_info(rows))
