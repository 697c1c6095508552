"""Reading the keys of a component: known keys, their kinds and their ranges."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ...checks import check, check_text, is_number, shown

#: The beginning of error messages.
WHERE = "from_config"
#: List of unknown keys, while they are ignored.
IGNORED: ContextVar[dict[str, None] | None] = ContextVar("ignored", default=None)


def section(value: Any, where: str) -> dict[str, Any]:
    check(isinstance(value, Mapping), WHERE, where, value, "an object")
    return dict(value)


def refuse(where: str, value: Any, reason: str) -> None:
    raise ValueError(f"from_config: {where} is {value}, which has no counterpart here: {reason}.")


@dataclass(frozen=True)
class Option:
    """A key of a component: its default, and possible values.

    Numbers are at least ``least`` and less than ``below``. ``only`` restricts a key to its default, and is the
    reason. ``names`` maps possible strings, in any case, to their meaning.
    """

    default: Any
    least: float = -math.inf
    below: float = math.inf
    only: str | None = None
    names: Mapping[str, Any] | None = None

    def read(self, value: Any, where: str) -> Any:
        """``value``, converted; raises ``ValueError`` if it is of another kind or out of range."""
        default = self.default
        if self.names is not None:
            return choice(where, value, self.names)[1]
        if isinstance(default, bool):
            check(isinstance(value, bool), WHERE, where, value, "true or false")
        elif isinstance(default, (int, float)):
            whole = isinstance(default, int)
            valid = is_number(value) and (not whole or value == int(value))
            check(valid, WHERE, where, value, "an integer" if whole else "a number")
            value = type(default)(value)
            limit = f" and less than {self.below}" if self.below < math.inf else ""
            check(self.least <= value < self.below, WHERE, where, value, f"at least {self.least}{limit}")
        elif isinstance(default, str):
            value = check_text(WHERE, where, value)
        same = value.lower() == default.lower() if isinstance(default, str) else value == default
        if self.only is not None and not same:
            refuse(where, shown(value), self.only)
        return value


def read(where: str, given: Mapping[str, Any], keys: Mapping[str, Option]) -> dict[str, Any]:
    """Values of all ``keys``, given or default."""
    check_known(where, given, ("otype", *keys))
    return {name: key.read(given.get(name, key.default), f"{where}.{name}") for name, key in keys.items()}


def check_known(
    where: str, given: Mapping[str, Any], accepted: tuple[str, ...], refused: Mapping[str, str] = {}
) -> None:
    """Raise unless all keys are ``accepted``; while unknown keys are ignored, add them to the list instead."""
    ignored = IGNORED.get()
    for name in given:
        if name in accepted:
            continue
        if ignored is not None:
            ignored[str(name) if where == "the configuration" else f"{where}.{name}"] = None
        elif name in refused:
            raise ValueError(f"from_config: {where} has the section {shown(name)}, which is not read: {refused[name]}.")
        else:
            raise ValueError(f"from_config: {where} has the unknown key {shown(name)}{nearest(name, accepted)}")


def choice(where: str, value: Any, table: Mapping[str, Any], refused: Mapping[str, str] = {}) -> tuple[str, Any]:
    """The entry of ``table`` with the name ``value``, in any case, and its name as written there."""
    known = {name.lower(): name for name in (*table, *refused)}
    name = known.get(check_text(WHERE, where, value).lower(), "")
    if name in table:
        return name, table[name]
    if name in refused:
        refuse(where, shown(value), refused[name])
    raise ValueError(f"from_config: {where} is {shown(value)}, which is unknown{nearest(value, tuple(table))}")


def nearest(name: Any, accepted: tuple[str, ...]) -> str:
    lower = {a.lower(): a for a in accepted}
    close = difflib.get_close_matches(str(name).lower(), lower, n=1)
    return f"; {f'did you mean {lower[close[0]]!r}? K' if close else 'k'}nown are {', '.join(accepted)}."
