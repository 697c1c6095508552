"""Kinds of dropout by other laws than the mask law, as functions."""

from __future__ import annotations

from typing import Any

from .law import GaussianLaw


def gaussian_dropout(x: Any, p: Any, key: Any, stream: int, identity: Any = None) -> Any:
    return GaussianLaw(p, stream=stream).apply(x, key, identity)
