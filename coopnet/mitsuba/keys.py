"""Keys of integrators and of what is evaluated in virtual calls: attributes that are checked when they are set.

No base class has them: classes that derive from Mitsuba's have one base only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..checks import check_type, ensure
from ..random.key import Key


def checked(key: Any, where: str) -> Key | None:
    """``key``; raises ``TypeError`` unless it is a key or ``None``."""
    check_type(where, "key", key, Key | None, "a coopnet.Key or None")
    return key


def with_index(key: Any, where: str) -> Key | None:
    """``key``; raises ``TypeError`` unless it is a key or ``None``, ``ValueError`` if it has no index."""
    checked(key, where)
    missing = "key has no index, and in Mitsuba's virtual calls lanes have no number; pass Key(seed, index=0)"
    ensure(key is None or key.index is not None, f"{where}: {missing}, which is shared by all samples.")
    return key


def check_paths(key: Key | None, paths: int, where: str) -> None:
    """Raise ``ValueError`` unless ``key`` has no index, one number, or one for each path."""
    index = None if key is None else key.index
    given = 1 if index is None or isinstance(index, int) else len(index)
    of = f"{paths} paths (pixels times samples per pixel)"
    ensure(given in (1, paths), f"{where}: key has an index of {given} numbers for {of}; one, or one each, is needed.")


def _get(self: Any) -> Key | None:
    return self.__dict__.get("_key")


def _attribute(check: Callable[[Any, str], Key | None], doc: str) -> property:
    def set_key(self: Any, key: Key | None) -> None:
        self._key = check(key, type(self).__name__)

    return property(_get, set_key, doc=doc)


#: Of what is evaluated in virtual calls.
in_calls = _attribute(with_index, "Turns dropout on: a key with an index; ``None`` for the deterministic network.")
#: Of integrators that evaluate networks outside of them.
of_paths = _attribute(checked, "Turns dropout on: without an index, each path draws masks of its own; ``None``: off.")
