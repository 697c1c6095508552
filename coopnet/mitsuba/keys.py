"""Keys of integrators, and of plugins that are evaluated in virtual calls: attributes that are checked when they are
set.

They are not in a base class, because classes that derive from Mitsuba's can have one base only.
"""

from __future__ import annotations

from typing import Any

import drjit as dr
import mitsuba as mi

from ..checks import ensure
from ..random.key import Key, check_key


def check_paths(key: Key | None, paths: int, where: str) -> None:
    """Raise ``ValueError`` unless ``key`` has no index, one number, or one for each path."""
    index = None if key is None else key.index
    given = 1 if index is None or isinstance(index, int) else len(index)
    of = f"{paths} paths (pixels times samples per pixel)"
    ensure(given in (1, paths), f"{where}: key has an index of {given} numbers for {of}; one, or one each, is needed.")


def key_at(key: Key | None, depth: Any, paths: int) -> Key | None:
    """``key`` at vertex ``depth`` of each path: every vertex has an index of its own, unless the key has one."""
    if key is None or key.index is not None:
        return key
    return Key(key.seed, dr.arange(mi.UInt32, paths) + depth * paths, key.step)


def _get(self: Any) -> Key | None:
    return self.__dict__.get("_key")


def _set(self: Any, key: Any) -> None:
    check_key(type(self).__name__, key)
    self._key = key


def _set_with_index(self: Any, key: Any) -> None:
    missing = "key has no index, and lanes have no number in Mitsuba's virtual calls; pass Key(seed, index=0)"
    without = isinstance(key, Key) and key.index is None
    ensure(not without, f"{type(self).__name__}: {missing}, which is shared by all samples.")
    _set(self, key)


#: The attribute ``key`` of plugins that are evaluated in virtual calls.
in_calls = property(
    _get, _set_with_index, doc="Turns dropout on: a key with an index; ``None`` for the deterministic network."
)
#: The attribute ``key`` of integrators that evaluate networks outside of virtual calls.
of_paths = property(
    _get, _set, doc="Turns dropout on: without an index, each path draws masks of its own; ``None``: off."
)
