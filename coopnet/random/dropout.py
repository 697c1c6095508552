"""The mask law as functions."""

from __future__ import annotations

from typing import Any

import drjit as dr

from .law import MaskLaw, PathLaw


def is_schedule(p: Any) -> bool:
    return isinstance(p, dr.ArrayBase)


def drop(x: Any, p: Any, key: Any, *, stream: int, bits: int, identity: Any = None, shared: bool = False) -> Any:
    return (PathLaw if shared else MaskLaw)(p, bits, stream).apply(x, key, identity)
