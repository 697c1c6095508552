"""``coopnet info``: describe the installation, or a checkpoint."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import backend as backends
from ..io import read
from ..nn.parameters import parameters
from ..nn.report import Report
from ..uncertainty import has_dropout
from . import arguments as args
from .checkpoints import as_saved, versions
from .errors import about


def info(
    checkpoint: args.CHECKPOINT_OR_NONE = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for bug reports.")] = False,
) -> None:  # fmt: skip
    """Show which Dr.Jit, LLVM, CUDA and packages were found, and how to install what is missing.

    Without CHECKPOINT the exit code is always 0, even if something is missing. With CHECKPOINT, describes its field:
    its SHA-256, of which exported sources show the first 32 digits, what it learned and for how long, which versions
    wrote it, and its layers with their sizes.
    """
    if checkpoint is not None:
        with about(checkpoint):
            description, report = _described(checkpoint)
        description |= {"layers": [asdict(layer) for layer in report.layers]} if as_json else {}
        print(json.dumps(description, indent=1) if as_json else f"{_formatted(description)}\n\n{report}")
        return
    rows = backends.info()
    print(json.dumps(backends.as_json(rows), indent=1) if as_json else backends.format_info(rows))


def _described(checkpoint: Path) -> tuple[dict[str, Any], Report]:
    """Facts about a checkpoint, and the sizes of its layers."""
    from ..interop.export.weights import fingerprint

    field, contents = as_saved(checkpoint), read(checkpoint)
    losses = contents.tensors.get("train.losses")
    description = {
        "sha256": fingerprint(field),
        "coordinates": field.in_features,
        **({} if field.bounds is None else {"bounds": field.bounds}),
        "encoding": type(field.encoding).__name__ if field.encoding is not None else "none",
        "network": type(field.network).__name__ if field.network is not None else "none",
        "precision": field.precision,
        "parameters": sum(math.prod(p.shape) for p in parameters(field)),
        "dropout": "yes" if has_dropout(field) else "no",
        **({} if losses is None else {"steps": len(losses)}),
        "metadata": {name: values for name, values in contents.metadata.items() if name != "training"},  # fit's own
        "versions": versions(checkpoint),
    }
    return description, field.report()


def _formatted(description: dict[str, Any]) -> str:
    """``description`` for a terminal: a line for each fact."""
    facts = {name: value for name, value in description.items() if name not in ("metadata", "versions")}
    for group, values in description["metadata"].items():
        pairs = values.items() if isinstance(values, dict) else [("", values)]
        name = group if group not in facts else f"metadata {group}"  # which may have the name of a fact
        facts[name] = ", ".join(f"{name} {_short(value)}".strip() for name, value in pairs)
    facts["written by"] = ", ".join(f"{name} {version}" for name, version in description["versions"].items())
    return "\n".join(f"{name:<12} {value}" for name, value in facts.items())


def _short(value: Any) -> str:
    """A value of the metadata, without the tail of a hash."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:12] + "..."
