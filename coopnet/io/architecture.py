"""The architecture of a field as JSON, and back: its layers and their arguments, without weights."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

import drjit as dr
import drjit.nn as drnn
import numpy as np

from .. import nn
from ..checks import check, check_positive, ensure, shown
from ..field import NeuralField
from ..nn.arguments import arguments, constructor
from ..nn.concrete_dropout import ConcreteDropout
from ..nn.displaced import Displaced
from ..nn.drawn import DrawnGrid, DrawnLinear
from ..nn.drop_levels import DropLevels
from ..nn.dropout import Dropout, DropPath, GaussianDropout
from ..nn.members import Members
from ..nn.tree import children

FORMAT = "coopnet.field"
VERSION = 2  #: of the format; it increases when older versions of coopnet cannot read new files
PLAIN = 1  #: the version in which a field without bounds is written, so that older versions of coopnet can read it

#: Names in ``nn`` that descriptions do not use: base classes, and networks that are described as a Sequential.
_LEFT_OUT = {"ACTIVATIONS", "Activation", "Encoding", "MLP", "Module", "SIREN"}
_OWN = [getattr(nn, name) for name in nn.__all__ if name not in _LEFT_OUT] + [
    Dropout, DropPath, GaussianDropout, ConcreteDropout, DropLevels, Displaced, DrawnGrid, DrawnLinear, Members,
]  # fmt: skip
_DRJIT = (
    drnn.Sequential, drnn.Linear, drnn.ReLU, drnn.LeakyReLU, drnn.Exp, drnn.Exp2, drnn.Tanh, drnn.SinEncode,
    drnn.TriEncode,
)  # fmt: skip

#: The layers that a description may contain, by name.
_TYPES: dict[str, type] = {f"coopnet.{cls.__name__}": cls for cls in sorted(_OWN, key=lambda c: c.__name__.lower())}
_TYPES |= {f"drjit.nn.{cls.__name__}": cls for cls in _DRJIT}
_CONTAINERS = (nn.Sequential, drnn.Sequential)
#: Layers whose constructors check nothing, each with a layer of coopnet that checks the same arguments.
_CHECKED_BY: dict[type, Callable] = {
    drnn.Linear: nn.Linear,
    drnn.LeakyReLU: nn.LeakyReLU,
    drnn.SinEncode: nn.Sinusoidal,
    drnn.TriEncode: nn.Triangular,
}

#: Types of arguments that are written as they are.
_PLAIN = (bool, int, float, str, type(None))
#: Arguments of dropouts and grids that may be arrays, which kernels read.
_SCHEDULED = {"p", "max_level"}
#: Arguments that were added to layers later, with their values for older files.
_ADDED: dict[type, dict[str, Any]] = {
    Dropout: {"rounds": 10},
    DropPath: {"rounds": 10},
    GaussianDropout: {"rounds": 10},
    nn.Grid: {"max_level": None},
    nn.HashGrid: {"interpolation": "linear", "max_level": None},
    nn.Identity: {"scale": 1.0, "offset": 0.0},
    nn.Linear: {"init": "xavier_uniform", "gain": 1.0},
    nn.OneBlob: {"periodic": True},
    nn.Permutohedral: {"max_level": None},
    nn.Softplus: {"beta": 1.0},
}
#: Layers whose added arguments are left out if they have that value, so that older versions can read the files, and the
#: description's hash stays the same.
_OMITTED = {nn.OneBlob}

_Class = TypeVar("_Class", bound=type)


def register(cls: _Class) -> _Class:
    """Allow layers of your class in descriptions and checkpoints; usable as a decorator.

    Every argument of ``__init__`` must be an attribute of the same name that holds a bool, int, float, str, ``None``,
    another layer, or a list or tuple of those. A program that loads such a checkpoint must have registered the class,
    too: it is looked up by its module and name, and never imported.

    Raises:
        TypeError: ``cls`` is not a ``drjit.nn.Module``, or its arguments cannot be named one by one.

    >>> @cn.io.register
    ... class Residual(cn.Module): ...
    """
    layer = isinstance(cls, type) and issubclass(cls, drnn.Module)
    check(layer, "register", "cls", cls, "a subclass of coopnet.Module or drjit.nn.Module", TypeError)
    if cls not in _TYPES.values():
        for name, p in constructor(cls).items():
            valid = name != "type" and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
            needed = "only ones passed by name, none of them called 'type', can be stored"
            ensure(valid, f"register: {cls.__name__} has the argument {p}; {needed}.", TypeError)
        _TYPES[f"{cls.__module__}.{cls.__qualname__}"] = cls
    return cls


def describe(field: NeuralField) -> dict[str, Any]:
    """The architecture of ``field``, built or not, as a dictionary for JSON: see :func:`construct`.

    Raises:
        TypeError: ``field`` is not a :class:`NeuralField`, or has a layer of a type that is not registered.
        ValueError: a layer with an argument that JSON cannot hold, or that its constructor would not accept.

    >>> description = cn.io.describe(cn.NeuralField(None, cn.MLP(2, 3)))
    >>> description["format"]
    'coopnet.field'
    """
    description = outline(field)
    construct(description)  # raises if it could not be read back
    return description


def outline(field: NeuralField) -> dict[str, Any]:
    """The description of :func:`describe`, unchecked, for fields whose description has been checked before."""
    kind = type(field)
    ensure(kind is NeuralField, f"describe: field is a {kind.__name__}; a NeuralField is needed.", TypeError)
    plain = field.bounds is None
    bounds = {} if plain else {"bounds": [_value(side, "bounds") for side in field.bounds or ()]}
    return {
        "format": FORMAT,
        "version": PLAIN if plain else VERSION,
        "encoding": _describe(field.encoding, "encoding"),
        "network": _describe(field.network, "network"),
        "output": field.output,
        "in_features": field.in_features,
        **bounds,
    }


class Rate(float):
    """The current value of a rate that is an array: of a schedule, or one that is learned."""


def difference(description: Any, field: NeuralField) -> str:
    """What is first different in ``description`` and ``field``, in words; empty if it describes the field.

    The values of rates that are arrays in the field do not count.
    """
    return _difference(description, outline(field), "")


def _difference(given: Any, own: Any, name: str) -> str:
    if isinstance(own, Rate) and isinstance(given, (int, float)):
        return ""
    alike = type(given) is type(own)
    if alike and isinstance(own, dict) and given.keys() == own.keys():
        parts = [(given[k], own[k], f"{name}.{k}".removeprefix(".")) for k in own]
    elif alike and isinstance(own, list) and len(given) == len(own):
        parts = [(a, b, f"{name}.{i}") for i, (a, b) in enumerate(zip(given, own, strict=True))]
    elif alike and isinstance(own, list) and all(isinstance(v, dict) and "type" in v for v in [*given, *own]):
        # layers: the first one of another type, or the first one that is missing
        names = [[layer["type"] for layer in layers] + ["missing"] for layers in (given, own)]
        i = next(i for i, (a, b) in enumerate(itertools.zip_longest(*names)) if a != b)
        return f"{name}.{i} is {names[0][i]} there, and {names[1][i]} here"
    else:
        scheduled = name.rpartition(".")[2] in _SCHEDULED
        hint = " (if a schedule sets it, set it before fit, too)" if scheduled else ""
        there = f"{name or 'the architecture'} is {shown(given)} there, and {shown(own)} here{hint}"
        return "" if given == own else there
    return next(filter(None, itertools.starmap(_difference, parts)), "")


def construct(description: dict[str, Any]) -> NeuralField:
    """The field of a description, not built yet: the inverse of :func:`describe`.

    Only registered classes are called, with bools, ints, floats, strings, ``None``, other layers and lists; nothing is
    imported or executed, so a description from anywhere is safe to pass.

    Raises:
        ValueError: no description, one of a newer format, an unknown layer, or missing, unknown or invalid arguments.

    >>> field = cn.io.construct(cn.io.describe(cn.NeuralField(None, cn.MLP(2, 3)))).build()
    """
    check_format(description)
    needed = {"format", "version", "encoding", "network", "output", "in_features"}
    _check_names(description, needed | ({"bounds"} & set(description)), "the field")
    try:
        parts = {name: _construct(description[name], name) for name in ("encoding", "network")}
        output, in_features, bounds = (description.get(name) for name in ("output", "in_features", "bounds"))
        return NeuralField(**parts, output=output, in_features=in_features, bounds=bounds)  # type: ignore[arg-type]
    except RecursionError:
        raise ValueError("construct: the layers are nested too deep.") from None
    except TypeError as error:
        raise ValueError(f"construct: {error}") from None


def describe_layer(layer: Any) -> dict[str, Any]:
    """The description of a layer or network outside of a field; raises as :func:`describe`."""
    description = _describe(layer, type(layer).__name__)
    construct_layer(description)
    return description


def construct_layer(description: dict[str, Any]) -> Any:
    """The inverse of :func:`describe_layer`; raises as :func:`construct`."""
    return _construct(description, "the network", optional=False)


def check_format(description: Any) -> None:
    """Raise ``ValueError`` unless ``description`` is one of this format, in a version known here."""
    name = description.get("format") if isinstance(description, dict) else None
    known = isinstance(name, str) and name == FORMAT
    ensure(known, f"construct: no description of a field: 'format' must be {FORMAT!r}.")
    version = check_positive("construct", "version", description.get("version"))
    reads = f"this coopnet reads versions up to {VERSION}; install a newer one"
    ensure(version <= VERSION, f"construct: the format has version {version}, but {reads}.")


def _describe(layer: Any, where: str) -> Any:
    if layer is None:
        return None
    cls = nn.Sequential if type(layer) in (nn.MLP, nn.SIREN) else type(layer)
    name = next((name for name, known in _TYPES.items() if known is cls), None)
    if name is None:
        if any(isinstance(part, NeuralField) for part in children(layer)):
            cure = "save or pickle each field by itself"
            raise TypeError(f"describe: {where} holds a whole NeuralField, and only layers can be described; {cure}.")
        accepted = f"{', '.join(_TYPES)}, and classes passed to coopnet.io.register()"
        raise TypeError(f"describe: {where} is a {cls.__module__}.{cls.__qualname__}; accepted are {accepted}.")
    chain = isinstance(layer, _CONTAINERS) and cls is not nn.Heads
    kept = arguments(layer, nn.Sequential if chain else cls)
    for k in _SCHEDULED & set(kept):
        if isinstance(kept[k], dr.ArrayBase) and dr.width(kept[k]) == 1:
            kept[k] = Rate(kept[k][0])
    if cls in _OMITTED:
        kept = {k: v for k, v in kept.items() if (k, v) not in _ADDED[cls].items()}
    return {"type": name, **{k: _value(v, f"{where}.{k}") for k, v in kept.items()}}


def _value(v: Any, where: str) -> Any:
    """An argument of a layer as JSON."""
    if isinstance(v, np.generic):
        v = v.item()
    if isinstance(v, (list, tuple)):
        return [_value(item, f"{where}.{i}") for i, item in enumerate(v)]
    if isinstance(v, drnn.Module):
        return _describe(v, where)
    if isinstance(v, dict) and all(isinstance(item, drnn.Module) for item in v.values()):
        return {k: _value(item, f"{where}.{k}") for k, item in v.items()}
    check(isinstance(v, _PLAIN), "describe", where, v, "a bool, int, float, str, None, layer, or a list of those,")
    return v


def _construct(description: Any, where: str, optional: bool = True) -> Any:
    if description is None and optional:
        return None
    check(isinstance(description, dict), "construct", where, description, "a dictionary with a 'type'")
    name = description.get("type")
    cls: Any = _TYPES.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ValueError(f"construct: {where} has the type {shown(name)}; accepted are {', '.join(_TYPES)}.")
    if cls is nn.Heads:
        _check_names(description, {"type", "trunk", "heads"}, where)
        heads = description["heads"]
        check(isinstance(heads, dict), "construct", f"{where}.heads", heads, "a dictionary of layers")
        trunk = _construct(description["trunk"], f"{where}.trunk")
        try:
            return nn.Heads(trunk, {k: _construct(v, f"{where}.heads.{shown(k)}", False) for k, v in heads.items()})
        except TypeError as error:
            raise ValueError(f"construct: {where}: {error}") from None
    if issubclass(cls, _CONTAINERS):
        _check_names(description, {"type", "layers", "prefix"}, where)
        layers, prefix = description["layers"], description["prefix"]
        valid = isinstance(layers, list) and isinstance(prefix, str)
        ensure(valid, f"construct: {where} needs a list 'layers' and a string 'prefix'.")
        return cls(*(_construct(v, f"{where}.layers.{i}", False) for i, v in enumerate(layers)), prefix=prefix)
    parameters = constructor(cls)
    description = _ADDED.get(cls, {}) | description
    _check_names(description, {"type", *parameters}, where)
    values = {k: _argument(description[k], p, f"{where}.{k}") for k, p in parameters.items()}
    try:
        if cls in _CHECKED_BY:
            _CHECKED_BY[cls](**values)
        return cls(**values)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise ValueError(f"construct: {where}: {error}") from None


def _argument(value: Any, parameter: inspect.Parameter, where: str) -> Any:
    """``value``; raises unless its type is in the annotation of ``parameter``, or that of its default."""
    if isinstance(value, dict):
        return _construct(value, where)
    value = float(value) if isinstance(value, Rate) else value
    hint = type(parameter.default) if parameter.annotation is parameter.empty else parameter.annotation
    words = set(re.findall(r"\w+", hint.__name__ if isinstance(hint, type) else str(hint)))
    if isinstance(value, list):
        several = words & {"Sequence", "list", "tuple", "List", "Tuple"}
        ensure(several, f"construct: {where} is a list; a single value is needed.")
        return [_argument(item, parameter, f"{where}.{i}") for i, item in enumerate(value)]
    check(not isinstance(value, float) or math.isfinite(value), "construct", where, value, "a finite number")
    check(isinstance(value, _PLAIN), "construct", where, value, "a bool, int, float, str, None or layer")
    accepted = words & {"bool", "int", "float", "str", "None", "Optional"}
    given = "None" if value is None else type(value).__name__
    valid = given in words or (given == "int" and "float" in words) or (value is None and "Optional" in words)
    known = ", ".join(sorted(accepted))
    ensure(valid or not accepted, f"construct: {where} is {shown(value)}; accepted: {known}.")
    return value


def _check_names(description: dict, needed: set[str], where: str) -> None:
    names = set(description)
    if names != needed:
        faults = [f"lacks {', '.join(sorted(needed - names))}"] if needed - names else []
        faults += [f"has the unknown {', '.join(sorted(map(shown, names - needed)))}"] if names - needed else []
        raise ValueError(f"construct: {where} {' and '.join(faults)}.")
