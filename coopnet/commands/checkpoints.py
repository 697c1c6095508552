"""Checkpoints in the precision in which they were saved, on any machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import backend as backends
from ..io import load, read


def as_saved(path: Path, load: Callable[..., Any] = load) -> Any:
    """What ``load`` makes of a checkpoint, its field, in the precision that its network was saved in."""
    held = {value.dtype.name for key, value in read(path).tensors.items() if key.startswith("network.")}
    # CUDA holds networks in half precision only
    backend = "llvm" if "llvm" in backends.available() else "auto"
    return load(path, backend, "half" if held == {"float16"} else "single")


def versions(path: Path) -> dict[str, str]:
    """The programs that wrote a checkpoint, with their versions; empty where it does not say."""
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        return json.loads((file.metadata() or {}).get("versions", "{}"))
