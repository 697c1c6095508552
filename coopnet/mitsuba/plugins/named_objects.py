"""Python objects for scene descriptions, which can only hold strings, numbers and Mitsuba's own objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mitsuba as mi

from ...checks import check_text, ensure, shown

_objects: dict[str, Any] = {}


def hand_over(name: str, value: Any) -> str:
    """Register ``value`` under a ``name``, so that scene descriptions can refer to it: fields, decoders, latent codes.

    Mitsuba's dictionaries and XML files can only hold strings, numbers and Mitsuba's own objects. They hold the name.

    Args:
        name: any string; a value that had this name before is replaced.
        value: a built field, a :class:`Decoder`, or whatever the plugin's argument accepts; ``None`` removes the name.

    Returns:
        ``name``.

    Raises:
        ValueError: ``name`` is not a string.

    >>> wood = {"type": "neural_texture", "field": cn.mitsuba.hand_over("wood", field)}
    """
    check_text("mitsuba.hand_over", "name", name)
    if value is None:
        _objects.pop(name, None)
    else:
        _objects[name] = value
    return name


def given(properties: Any, *names: str) -> dict[str, Any]:
    """The properties that a scene sets, of those in ``names``."""
    return {name: properties[name] for name in names if name in properties}


def object_named(name: Any, where: str) -> Any:
    """The object that was handed over as ``name``; raises ``ValueError`` if there is none."""
    known = ", ".join(map(shown, _objects)) or "none"
    missing = f"nothing was handed over as {shown(name)} (known: {known})"
    ensure(isinstance(name, str) and name in _objects, f"{where}: {missing}; call cn.mitsuba.hand_over(name, value).")
    return _objects[name]


def object_or_file(properties: Any, where: str, name: str, load: Callable[[str], Any]) -> Any:
    """The field or decoder of a plugin: the object handed over as the property ``name``, or ``load(filename)``.

    Raises ``ValueError`` unless exactly one of the two is given. Mitsuba passes on only the text of an error, so every
    text names the file.
    """
    sources = given(properties, name, "filename")
    which = " and ".join(sources) or f"neither {name} nor filename"
    ensure(len(sources) == 1, f"{where}: got {which}; one of {name} and filename is needed.")
    if name in sources:
        return object_named(sources[name], where)
    return from_file(properties, "mitsuba.load", load)


def from_file(properties: Any, where: str, load: Callable[[str], Any]) -> Any:
    """``load(filename)`` of a plugin's file, which Mitsuba's resolver finds; an ``OSError`` names the file, too."""
    resolver: Any = mi.file_resolver
    filename = str(resolver().resolve(properties["filename"]))
    try:
        return load(filename)
    except OSError as error:
        raise type(error)(f"{where}: {filename}: {error.strerror or error}") from None
