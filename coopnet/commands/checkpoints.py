"""Checkpoints in the precision in which they were saved, on any machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import backend as backends
from ..io import load, read


def as_saved(path: Path, load: Callable[..., Any] = load) -> Any:
    """The field that ``load`` makes of a checkpoint, in the precision in which its network was saved."""
    held = {value.dtype.name for key, value in read(path).tensors.items() if key.startswith("network.")}
    # CUDA holds networks in half precision only
    backend = "llvm" if "llvm" in backends.available() else "auto"
    return load(path, backend, "half" if held == {"float16"} else "single")


def versions(path: Path) -> dict[str, str]:
    """The programs that wrote a checkpoint, with their versions; empty if it names none in a known way."""
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        written = (file.metadata() or {}).get("versions", "{}")
    try:
        found = json.loads(written)
    except ValueError:
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
