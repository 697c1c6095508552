"""JSON as tiny-cuda-nn and instant-ngp read it: with comments, trailing commas, and files that patch their parents."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...checks import check_text, check_type, ensure, shown_path

_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', re.DOTALL)


def read(where: str, config: Any) -> dict[str, Any]:
    """A dictionary, JSON text (which starts with a brace or a comment), or a file with all of its parents merged.

    The ``"parent"`` of a file is the path of another file, relative to its folder; the file is a merge patch for that
    one (RFC 7386). Raises ``ValueError``, ``TypeError`` or ``OSError``; ``where`` opens messages.
    """
    if isinstance(config, str):
        config = str.__str__(config)  # a plain one
    if isinstance(config, Mapping):
        return _without_parent(where, dict(config))
    check_type(where, "config", config, (str, Path), "a dictionary, JSON text or a file's path")
    if isinstance(config, str) and config.lstrip().startswith(("{", "//", "/*")):
        return _without_parent(where, parse(where, config, "config"))
    return _whole(where, Path(config), ())


def parse(where: str, text: str, what: str) -> dict[str, Any]:
    """The object that JSON ``text`` is; ``what`` names it."""
    try:
        # replaced by a space, so that the text on both sides stays separate
        for pattern in (_COMMENT, _TRAILING_COMMA):
            text = pattern.sub(lambda m: m.group(1) or " ", text)
        parsed = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: {what} is not JSON: {error}") from None
    ensure(isinstance(parsed, dict), f"{where}: {what} holds a {type(parsed).__name__}; an object is needed.")
    return parsed


def merged(target: Any, patch: Any) -> Any:
    """``target`` after the merge ``patch`` (RFC 7386): objects merge, ``None`` removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def _without_parent(where: str, config: dict[str, Any]) -> dict[str, Any]:
    hint = "only files have one, whose path it continues; pass the file's path"
    ensure("parent" not in config, f"{where}: the configuration has a 'parent', but {hint}.")
    return config


def _whole(where: str, path: Path, children: tuple[Path, ...]) -> dict[str, Any]:
    """The file at ``path`` with all of its parents; ``children`` are the files that led to it, the last one first."""
    name = shown_path(path)
    try:
        text, here = path.read_text(encoding="utf-8-sig"), path.resolve()
    except ValueError as error:  # no path, or no text
        raise ValueError(f"{where}: {name!r} cannot be read: {error}") from None
    ensure(here not in children, f"{where}: {name!r} is among its own parents.")
    config = parse(where, text, name)
    if "parent" not in config:
        return config
    parent = path.parent / check_text(where, f"the parent of {name!r}", config.pop("parent"))
    return merged(_whole(where, parent, (here, *children)), config)
