"""Hostile arguments, and every public callable to give them to.

A call takes valid arguments for one of :func:`targets` and puts hostile values in the place of some. :func:`judge` says
what came of it: ``returned``, ``clear`` (an error of a documented kind whose message begins with a name of ours and
fits 400 characters), or ``unclear``. Used by ``test_fuzz.py``, in one process, and ``slow/fuzz.py``, in others that may
die.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

import coopnet as cn
import coopnet.io
from coopnet.interop import export, tcnn

#: Longest message that is clear.
LONGEST = 400


class Boom(Exception):
    """Raised by hostile objects: none of the documented kinds."""


def _raise(*args: Any, **options: Any) -> Any:
    raise Boom("this method raises")


class Evil:
    """An object none of whose methods works."""

    __repr__ = __str__ = __len__ = __iter__ = __index__ = __int__ = __float__ = __bool__ = __getitem__ = _raise
    __contains__ = __array__ = __fspath__ = __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __mul__ = _raise
    __radd__ = __rmul__ = __round__ = __complex__ = __format__ = __bytes__ = __call__ = __enter__ = _raise
    __hash__ = object.__hash__


class EvilFloat(float):
    __repr__ = __str__ = __format__ = _raise


class EvilInt(int):
    __repr__ = __str__ = __format__ = _raise


class EvilStr(str):
    __repr__ = __str__ = __format__ = _raise


class EvilList(list):
    __repr__ = __str__ = __len__ = __iter__ = __getitem__ = _raise


class Index:
    """An integer by its ``__index__`` alone."""

    def __init__(self, value: int):
        self.value = value

    def __index__(self) -> int:
        return self.value


def _cyclic_list() -> list:
    found: list = []
    found.append(found)
    return found


def _cyclic_dict() -> dict:
    found: dict = {}
    found["encoding"] = found["nested"] = found
    return found


def _cyclic(container: Callable, attribute: str) -> Any:
    found = container(cn.ReLU())
    setattr(found, attribute, (found,) if attribute == "layers" else found)
    return found


def _deep(depth: int) -> list:
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


def _attached(value: Any) -> Any:
    dr.enable_grad(value)
    return value


_INTS = (
    -(10**20), -(2**31), -7, -1, 0, 1, 2, 3, 7, 8, 16, 17, 32, 255, 256, 1000, 65535, 65536, 2**24 + 1, 2**31 - 1,
    2**31, 2**32 - 1, 2**32, 10**10, 2**63, 2**64 - 1, 2**64, 10**400, 10**5000,
)  # fmt: skip
_FLOATS = (float("nan"), float("inf"), -float("inf"), -1.0, -0.0, 0.0, 1e-320, 0.5, 1.0, 2.0, 1.5, 1e30, 1e300)
_STRINGS = (
    "", " ", "x", "none", "relu", "auto", "llvm", "float32", "weights", "network.weights", "layers.0.weight", "1", "{",
    "{}", '{"encoding": 1}', "a\nb", "a\0b", "\u202e\U0001f4a5", "a" * 5000, "{" * 5000, "[" * 200000, "%s%n{0}",
)  # fmt: skip


def values(ns: ModuleType) -> dict[str, Callable[[], Any]]:
    """Hostile values by label; each call makes a new one.

    Only ones that can be made: a ``CoopVec`` of arrays of 2 and 3 entries aborts when it is evaluated, whoever does it,
    and does not tell its sizes.
    """
    found: dict[str, Callable[[], Any]] = {}

    def add(label: str, make: Callable[[], Any]) -> None:
        assert label not in found, label
        found[label] = make

    for i in _INTS:
        add(f"int {i}" if abs(i) < 10**30 else f"int of {i.bit_length()} bits", lambda i=i: i)
    for x in _FLOATS:
        add(f"float {x}", lambda x=x: x)
    for n, text in enumerate(_STRINGS):
        add(f"str {n} {text[:20]!r}", lambda text=text: text)
    plain: dict[str, Callable[[], Any]] = {
        "None": lambda: None, "True": lambda: True, "False": lambda: False, "complex": lambda: 1j,
        "Fraction": lambda: Fraction(1, 3), "Decimal": lambda: Decimal("0.5"), "bytes": lambda: b"x" * 3,
        "long bytes": lambda: b"x" * 5000, "bytearray": lambda: bytearray(3), "list": list, "tuple": tuple,
        "dict": dict,
        "set": set, "[None]": lambda: [None], "mixed list": lambda: [1, "a", None, 2.5], "ints": lambda: [1, 2, 3],
        "negative ints": lambda: [-1, -1], "floats": lambda: [0.5, 0.25], "nested": lambda: [[1, 2], [3]],
        "strings": lambda: ["a", "b"], "pairs": lambda: [("a", 1)], "pairs of names": lambda: [("network.weights", 1)],
        "long list": lambda: [0] * 100_000, "deep list": lambda: _deep(3000), "cyclic list": _cyclic_list,
        "cyclic dict": _cyclic_dict, "dict of int": lambda: {1: 2}, "dict of str": lambda: {"a": 1.0, "otype": "x"},
        "range": lambda: range(3), "generator": lambda: (i for i in range(3)), "lambda": lambda: lambda *a, **k: None,
        "failing function": lambda: _raise, "int type": lambda: int, "object": object, "module": lambda: np,
        "Path": lambda: Path("no such file"), "NotImplemented": lambda: NotImplemented, "slice": lambda: slice(2),
        "Evil": Evil, "Evil class": lambda: Evil, "EvilFloat": lambda: EvilFloat(0.5), "EvilInt": lambda: EvilInt(2),
        "EvilStr": lambda: EvilStr("x"), "EvilList": lambda: EvilList([1]), "Index": lambda: Index(3),
        "negative Index": lambda: Index(-3), "list of Evil": lambda: [Evil()],
    }  # fmt: skip
    numpy: dict[str, Callable[[], Any]] = {
        "0": lambda: np.zeros(0), "scalar": lambda: np.array(1.0), "int scalar": lambda: np.array(3),
        "ones 3": lambda: np.ones(3), "2x3": lambda: np.ones((2, 3)), "2x3 single": lambda: np.ones((2, 3), np.float32),
        "2x0": lambda: np.ones((2, 0)), "0x3": lambda: np.ones((0, 3)), "1x1": lambda: np.ones((1, 1), np.float32),
        "1x1x1x1": lambda: np.ones((1, 1, 1, 1)), "int8": lambda: np.ones(3, np.int8), "bool": lambda: np.ones(3, bool),
        "uint32": lambda: np.arange(4, dtype=np.uint32), "uint64": lambda: np.arange(2, dtype=np.uint64),
        "int64": lambda: np.array([-1, 2]), "object": lambda: np.array([None, 1], object),
        "str": lambda: np.array(["a", "b"]), "bytes": lambda: np.array([b"a"]),
        "complex": lambda: np.ones((2, 3), complex),
        "structured": lambda: np.zeros(2, [("a", int), ("b", float)]), "half": lambda: np.ones((2, 3), np.float16),
        "long double": lambda: np.ones((2, 3), np.longdouble), "strided": lambda: np.ones((4, 6), np.float32)[::2, ::2],
        "reversed": lambda: np.ones((2, 3), np.float32)[:, ::-1], "Fortran": lambda: np.ones((2, 3), order="F"),
        "big endian": lambda: np.ones((2, 3), ">f4"), "broadcast": lambda: np.broadcast_to(np.float32(1), (2, 3)),
        "NaN": lambda: np.full((2, 3), np.nan), "dates": lambda: np.zeros(2, "M8[s]"),
        "spans": lambda: np.zeros(2, "m8[s]"),
        "float32()": lambda: np.float32(0.5), "float16()": lambda: np.float16(0.5), "int64()": lambda: np.int64(3),
        "uint64()": lambda: np.uint64(2**64 - 1), "bool_": lambda: np.bool_(True), "str_": lambda: np.str_("x"),
        "masked": lambda: np.ma.ones((2, 3)), "matrix": lambda: np.matrix([[1.0]]), "dtype": lambda: np.dtype("f4"),
        "float32 type": lambda: np.float32,
    }  # fmt: skip
    for label, make in plain.items():
        add(label, make)
    for label, make in numpy.items():
        add(f"NumPy {label}", make)
    for space in ("ad", "detached", "scalar"):
        _add_arrays(add, ns, space)
    drjit: dict[str, Callable[[], Any]] = {
        "attached": lambda: _attached(ns.Float(1, 2)), "attached Array2f": lambda: _attached(ns.Array2f([1, 2], 3)),
        "unevaluated": lambda: dr.arange(ns.Float, 5) * 2, "NaN": lambda: ns.Float(float("nan"), 1),
        "mixed Array2f": lambda: ns.Array2f([1, 2], 0.5), "CoopVec 1": lambda: drnn.CoopVec(ns.Float(1)),
        "CoopVec 2": lambda: drnn.CoopVec(ns.Float(1, 2), ns.Float(3)),
        "CoopVec 16": lambda: drnn.CoopVec([ns.Float(i, 1) for i in range(16)]),
        "CoopVec half": lambda: drnn.CoopVec(ns.Float16(1), ns.Float16(2)),
        "CoopVec double": lambda: drnn.CoopVec(ns.Float64(1), ns.Float64(2)),
        "CoopVec int": lambda: drnn.CoopVec(ns.Int(1), ns.Int(2)),
        "list": lambda: [ns.Float(1, 2), ns.Float(3)], "tuple": lambda: (ns.Float(1), ns.Float(3)),
        "list of types": lambda: [ns.Float(1), ns.Float16(3)],
        "list of sizes": lambda: [ns.Float(1, 2), ns.Float(1, 2, 3)],
        "list of empty": lambda: [ns.Float(), ns.Float()], "list with None": lambda: [ns.Float(1), None],
        "list of nested": lambda: [ns.Array2f(1, 2)], "list of tensors": lambda: [ns.TensorXf([1.0])],
        "list of half": lambda: [ns.Float16(1), ns.Float16(2)], "long": lambda: [ns.Float(1)] * 300,
        "mask": lambda: ns.Bool(True), "Float type": lambda: ns.Float, "TensorXf type": lambda: ns.TensorXf,
        "TensorXf16 type": lambda: ns.TensorXf16, "TensorXu type": lambda: ns.TensorXu,
        "ArrayXf type": lambda: ns.ArrayXf,
        "JitBackend": lambda: dr.JitBackend.Invalid, "rng": lambda: dr.rng(seed=1), "ArrayBase": lambda: dr.ArrayBase,
    }  # fmt: skip
    ours: dict[str, Callable[[], Any]] = {
        "ReLU class": lambda: cn.ReLU, "ReLU": cn.ReLU, "Linear": lambda: cn.Linear(2, 3), "Identity": cn.Identity,
        "Dropout": lambda: cn.Dropout(0.5), "Module": cn.Module, "drjit.nn.Linear": lambda: drnn.Linear(2, 3),
        "drjit.nn.ReLU": drnn.ReLU, "Frequency": lambda: cn.Frequency(2), "empty Sequential": cn.Sequential,
        "unbuilt field": lambda: cn.NeuralField(cn.Frequency(2), cn.MLP(-1, 3)), "Encoding": cn.Encoding,
        "allocated": lambda: cn.Linear(2, 3).alloc(ns.TensorXf), "no body": cn.Residual, "no heads": cn.Heads,
        "cyclic Sequential": lambda: _cyclic(cn.Sequential, "layers"), "cyclic Skip": lambda: _cyclic(cn.Skip, "body"),
        "cyclic Residual": lambda: _cyclic(cn.Residual, "body"), "Key": lambda: cn.Key(1), "module coopnet": lambda: cn,
        "Key of 3": lambda: cn.Key(1, index=ns.UInt32(1, 2, 3)), "Key of 4 on host": lambda: cn.Key(1, np.arange(4)),
        "Key of none": lambda: cn.Key(1, index=ns.UInt32()), "Adam": lambda: cn.training.Adam(1e-3),
        "EMA": lambda: cn.training.EMA(), "FitResult": cn.FitResult, "Key class": lambda: cn.Key,
        "wide": lambda: cn.Linear(2, 65535), "deep": lambda: cn.MLP(2, 2, depth=500),
        "huge": lambda: cn.Linear(60000, 60000), "huge table": lambda: cn.Embedding(2**30, 2),
    }  # fmt: skip
    for label, make in drjit.items():
        add(f"Dr.Jit {label}", make)
    for label, make in ours.items():
        add(f"coopnet {label}", make)
    return found


def _add_arrays(add: Callable, ns: ModuleType, space: str) -> None:
    """Dr.Jit arrays of every depth, type and width."""
    import importlib

    backend = ns.__name__.split(".")[1]
    module = {"ad": ns, "detached": importlib.import_module(f"drjit.{backend}"), "scalar": dr.scalar}[space]
    for name in ("Float16", "Float", "Float64", "Int8", "UInt8", "Int", "UInt", "Int64", "UInt64", "Bool"):
        tp = getattr(module, name)
        if isinstance(tp, type) and issubclass(tp, dr.ArrayBase):
            for width in (0, 1, 4) if space == "ad" else (4,):
                add(f"{space} {name} {width}", lambda tp=tp, width=width: dr.zeros(tp, width) if width else tp())
    nested = (
        "Array1f", "Array2f", "Array3f", "Array4f", "ArrayXf", "ArrayXu", "Array2f16", "Array2f64", "Array2u",
        "Array2b",
        "Array22f", "Matrix2f", "Complex2f", "Quaternion4f",
    )  # fmt: skip
    for name in nested:
        tp = getattr(module, name, None)
        if tp is not None:
            for width in (1, 4):
                if "X" in name and space == "scalar":
                    continue
                shape = (2, width) if "X" in name else width
                add(f"{space} {name} {width}", lambda tp=tp, shape=shape: dr.zeros(tp, shape))
    for name in ("TensorXf", "TensorXf16", "TensorXf64", "TensorXu", "TensorXb"):
        tp = getattr(module, name)
        for shape in ((0,), (1,), (4,), (2, 4), (4, 2), (2, 0), (2, 2, 2), ()):
            if space == "ad" or shape == (2, 4):
                add(f"{space} {name} {shape}", lambda tp=tp, shape=shape: dr.zeros(tp, shape))


# ---- Callables ---------------------------------------------------------------------------------------------

#: Public names that are not called with arguments of the user's, and why.
NOT_CALLED = {
    "BackendError": "an exception", "FitResult": "holds results", "Checkpoint": "holds results",
    "LLVM": "holds results", "March": "holds results", "MarchMoments": "holds results", "SurfaceHit": "holds results",
    "image ImageFit": "holds results", "mesh MeshFit": "holds results", "mesh Mesh": "holds what load() read",
    "mesh Samples": "holds results", "Configuration": "holds results",
    "prepare": "takes no arguments", "available": "takes no arguments",
    "info": "takes no arguments", "llvm_cure": "takes no arguments", "kernel_cache": "takes no arguments",
    "has_optix": "takes no arguments",
    "find_llvm": "takes folders of its own", "found_llvm": "takes folders of its own",
    "format_info": "takes what info() returned", "as_json": "takes what info() returned",
    "name_version": "takes paths that were found",
    "MPIGroup": "needs other processes", "TorchGroup": "needs other processes", "Exported": "holds results",
    "mitsuba BSDFFit": "holds results", "mitsuba register": "takes no arguments",
}  # fmt: skip
#: Methods by which layers and engine talk, with arguments that were checked before.
INNER = {
    "params", "bodies", "parts", "traced", "words", "allocate", "pack", "active", "width", "applied", "op",
    "output_width", "side_by_side", "LAW", "check_backend", "holds", "skip",
}  # fmt: skip
#: Special methods that users call by their operators.
OPERATORS = ("__call__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__eq__")
MAPPING = ("get", "pop", "setdefault")


class Target:
    """A callable with valid arguments by name; ``slow`` ones compile a kernel or more at every call."""

    def __init__(self, name: str, function: Callable, arguments: dict[str, Any], slow: bool = False):
        self.name, self.function, self.slow = name, function, slow
        try:
            self.parameters = dict(inspect.signature(function).parameters)
        except (TypeError, ValueError):  # a built-in one
            self.parameters = {}
        self.arguments = {k: v for k, v in arguments.items() if k in self.parameters}

    def call(self, replaced: dict[str, Any]) -> Any:
        """Call with the valid arguments, but for those ``replaced``."""
        given = self.arguments | replaced
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for name, p in self.parameters.items():
            if name not in given:
                continue
            value = given[name]
            if p.kind is p.VAR_POSITIONAL:
                positional += list(value) if type(value) in (list, tuple) else [value]
            elif p.kind is p.VAR_KEYWORD:
                keywords |= value if type(value) is dict and all(type(k) is str for k in value) else {}
            elif p.kind is p.POSITIONAL_ONLY or (positional and p.kind is p.POSITIONAL_OR_KEYWORD and not keywords):
                positional.append(value)
            else:
                keywords[name] = value
        return self.function(*positional, **keywords)


def _callables(backend: str) -> dict[str, Any]:
    """Every public callable by name; those for Mitsuba and PyTorch, where these are, with a prefix."""
    found: dict[str, Any] = {}
    for module in (cn, cn.nn, cn.training, cn.render, cn.io, cn.backend, tcnn, export):
        for name in module.__all__:
            if callable(value := getattr(module, name)):
                found.setdefault(name, value)
    if _installed("mitsuba.python"):  # without it, the folder of tests of that name is what is found
        plugins = _plugins(backend)
        found |= {f"mitsuba {name}": v for name in plugins.__all__ if callable(v := getattr(plugins, name))}
    for name, package in (("image", "PIL"), ("mesh", "igl")):
        if _installed(package):
            module = importlib.import_module(f"coopnet.{name}")
            found |= {f"{name} {k}": v for k in module.__all__ if callable(v := getattr(module, k))}
    if _installed("torch"):
        found["torch Module"] = importlib.import_module("coopnet.interop.torch").Module
    return found


def _installed(name: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec(name) is not None
    return False


def _plugins(backend: str) -> ModuleType:
    importlib.import_module("mitsuba").set_variant(f"{backend}_ad_rgb")
    return importlib.import_module("coopnet.mitsuba")


def targets(ns: ModuleType) -> dict[str, Target]:
    """Every public callable and method, with valid arguments."""
    backend = ns.__name__.split(".")[1]
    found: dict[str, Target] = {}
    valid = _valid(ns, backend)
    slow = ("fit", "runs_coopvec", "mc_dropout", "image fit_image", "mesh fit_mesh")
    slow += tuple(f"mitsuba {n}" for n in ("RadianceCache", "fit_bsdf", "render_mc"))
    for name, value in _callables(backend).items():
        if name in NOT_CALLED:
            continue
        arguments = valid["*"] | valid.get(name, {})
        found[name] = Target(name, value, arguments, slow=name in slow)
        found[name].parameters.pop("properties", None)  # of plugins: what Mitsuba read
        if inspect.isclass(value) and not name.startswith("mitsuba "):  # methods of plugins are called by Mitsuba
            for method, bound in _methods(value, ns, backend):
                key = f"{name}.{method}"
                found[key] = Target(key, bound, valid["*"] | valid.get(method, {}) | valid.get(key, {}), "audit" in key)
    material = {"field": _instance(export.Reflection, ns, backend), "target": "c", "path": "material.c"}
    found["export.of a material"] = Target("export.of a material", cn.export, material)
    found["Novograd.step"] = Target("Novograd.step", _stepping(ns, backend), {})
    return found


def _stepping(ns: ModuleType, backend: str) -> Callable:
    """Steps of an optimizer that is made anew for each, and whose parameters have gradients."""

    @functools.wraps(cn.training.Novograd.step)
    def step(_: Any = None, **options: Any) -> Any:
        optimizer = _instance(cn.training.Novograd, ns, backend)
        for value in optimizer.values():
            dr.set_grad(value, 0.5)
        return optimizer.step(**options)

    step.__signature__ = inspect.signature(cn.training.Novograd(1e-3).step)  # type: ignore[attr-defined]
    return step


def _methods(cls: type, ns: ModuleType, backend: str) -> list[tuple[str, Any]]:
    if cls in (cn.Module, cn.Encoding, cn.nn.Activation):
        return []  # abstract
    made = _instance(cls, ns, backend)
    if made is None:
        return []
    names = {k for c in cls.__mro__ if c.__module__.startswith("coopnet") for k, f in vars(c).items() if callable(f)}
    public = sorted(n for n in names if not n.startswith("_") and n not in INNER)
    special = [n for n in OPERATORS if any(n in vars(c) for c in cls.__mro__ if c.__module__.startswith("coopnet"))]
    mapping = list(MAPPING) if isinstance(made, cn.Module) else []
    return [(n, getattr(made, n)) for n in [*public, *special, *mapping]]


def _instance(cls: type, ns: ModuleType, backend: str) -> Any:
    """An object of ``cls`` that is ready to be used."""
    if cls is cn.NeuralField:
        return cn.NeuralField(None, cn.MLP(2, 1, width=4, depth=1, dropout=0.1, bias=True)).build(backend)
    if cls is cn.Key:
        return cn.Key(1, step=2)
    if cls is cn.training.EMA:
        return cn.training.EMA(_instance(cn.NeuralField, ns, backend), 0.5)
    if cls in (cn.training.Adam, cn.training.Novograd, cn.training.SGD):
        return cls(1e-3, params=_instance(cn.NeuralField, ns, backend))
    if cls is export.Reflection:
        return cls(cn.NeuralField(None, cn.MLP(6, 3, width=4, depth=1)).build(backend), directions="plain")
    if cls.__module__ == "coopnet.interop.torch":
        return cls(_instance(cn.NeuralField, ns, backend))
    made = {
        cn.render.OccupancyGrid: lambda: cn.render.OccupancyGrid(4, backend=backend),
        cn.render.Visits: lambda: cn.render.Visits(4, backend=backend),
        cn.render.Cameras: lambda: cn.render.Cameras(
            [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], 4, 3, 40, backend=backend
        ),
        cn.Residual: lambda: cn.Residual(cn.Linear(2, 2)),
        cn.Skip: lambda: cn.Skip(cn.Linear(2, 2)),
        cn.Heads: lambda: cn.Heads(None, {"a": cn.Linear(2, 1), "b": cn.Linear(2, 2)}),
        cn.Composite: lambda: cn.Composite([cn.Frequency(2), cn.Identity()], [1, 1]),
        cn.Sequential: lambda: cn.Sequential(cn.Linear(2, 2), cn.ReLU()),
        cn.MLP: lambda: cn.MLP(2, 1, 4, 1),
        cn.SIREN: lambda: cn.SIREN(2, 1, 4, 1),
        cn.Linear: lambda: cn.Linear(2, 2),
        cn.Embedding: lambda: cn.Embedding(4, 2),
        cn.SphericalHarmonics: lambda: cn.SphericalHarmonics(2),
        cn.HashGrid: lambda: cn.HashGrid(2, 2, hashmap_size=64),
        cn.Grid: lambda: cn.Grid(2, n_levels=2, hashmap_size=64),
        cn.Permutohedral: lambda: cn.Permutohedral(2, 2, hashmap_size=64),
        cn.DropLevels: lambda: cn.DropLevels(0.5, n_features_per_level=2),
        cn.SparseProjection: lambda: cn.SparseProjection(2, 4, 1.0),
    }.get(cls, cls)()
    if not isinstance(made, cn.Module):
        return made
    size = getattr(made, "in_features", -1)
    tensor = ns.TensorXf16 if backend == "cuda" else ns.TensorXf
    made = made.alloc(tensor, size if isinstance(size, int) and size > 0 else -1 if cls is cn.Embedding else 2)
    linear = cls in (cn.Residual, cn.Skip, cn.Heads, cn.Sequential, cn.MLP, cn.SIREN, cn.Linear)
    return drnn.pack(made, layout="training") if linear else made


def _valid(ns: ModuleType, backend: str) -> dict[str, dict[str, Any]]:
    """Valid arguments by parameter, for all callables (``"*"``), a method, or one callable."""
    field = _instance(cn.NeuralField, ns, backend)
    x = drnn.CoopVec(ns.Float(0.25, 0.5, 0.75), ns.Float(0.125, 0.25, 0.5))
    p = ns.Array2f([0.25, 0.5, 0.75], [0.1, 0.2, 0.3])
    y = [ns.Float(0.5, 1, 2)]

    def batch(key: Any) -> Any:
        q = cn.uniform(2, key, ns.Float, 8)
        return q, [q[0]]

    o, d = ns.Array3f([0, 0.1], 0, -2), ns.Array3f(0, 0, 1)
    sdf = cn.NeuralField(None, cn.MLP(3, 1, width=4, depth=1)).build(backend)
    volume = cn.NeuralField(None, cn.MLP(3, 4, width=4, depth=1, dropout=0.1)).build(backend)
    rays = {"o": o, "d": d, "t_max": 4.0, "near": 0.5, "far": 3.0, "width": 0.1, "sdf": sdf, "active": True}
    marched = {"field": volume, "steps": 2, "jitter": True, "density": "softplus", "color": "sigmoid"}
    counted = {"field": volume, "near": 0.5, "far": 3.5, "steps": 2, "density": "softplus"}
    three = drnn.CoopVec(ns.Float(0.25), ns.Float(0.5), ns.Float(0.75))
    picture, solid = np.full((6, 4, 3), 0.5, np.float32), _solid()
    small = {"steps": 1, "width": 4, "depth": 1, "encoding": "identity", "batch": 8, "progress": False}
    return (_valid_in_mitsuba(backend) if _installed("mitsuba.python") else {}) | {
        "*": {
            "x": x, "p": p, "key": None, "field": field, "net": field, "params": field, "dtype": ns.TensorXf,
            "tangents": [x], "v": p, "y": y, "target": y, "name": "layers.0.weights", "backend": backend,
            "steps": 1, "lr": 1e-3, "limit": 1.0, "amount": 0.5, "rates": {"layers.0": 0.5}, "batch": batch,
            "layers": [cn.Linear(2, 3), cn.ReLU()], "body": cn.Linear(2, 2), "path": "file.safetensors",
        },
        "Dropout": {"p": 0.5}, "DropPath": {"p": 0.5}, "GaussianDropout": {"p": 0.5}, "Key": {"seed": 1},
        "ConcreteDropout": {"p": 0.5}, "DropLevels": {"p": 0.5, "n_features_per_level": 2},
        "ConcreteDropout.__call__": {"x": x, "key": cn.Key(1)}, "DropLevels.__call__": {"x": x, "key": cn.Key(1)},
        "concrete_penalty": {"net": _concrete(backend), "samples": 10, "length": 0.1, "noise": 0.1},
        "dropout": {"p": 0.5, "key": cn.Key(1)}, "dropout_mask": {"n": 3, "p": 0.5, "key": cn.Key(1, ns.UInt32(1, 2))},
        "seeded_dropout": {"x": y[0], "p": 0.5, "seed": 3, "convention": "triton"},
        "uniform": {"n": 2, "key": cn.Key(1), "dtype": ns.Float, "samples": 3},
        "integers": {"n": 9, "key": cn.Key(1), "dtype": ns.UInt32, "samples": 3},
        "stratified": {"n": 2, "key": cn.Key(1), "dtype": ns.Float, "samples": 3},
        "philox4x32": {"counter": (1, 2, 3, ns.UInt32(4, 5)), "key": (1, 2)}, "gradient_path": {"name": "auto"},
        "sparsification": {"error": np.arange(4.0), "uncertainty": np.ones(4), "norm": "rms"},
        "posthoc_dropout": {"field": _plain(backend), "tolerance": 0.1, "batches": 1, "loss": None},
        "ensemble": {"fields": [field, _plain(backend)]}, "calibrate": {"held_out": (p, y), "samples": 2},
        "auroc": {"score": np.arange(4.0), "positive": np.arange(4) > 1},
        "negative_log_likelihood": {"mean": np.ones(4), "deviation": np.ones(4), "target": np.ones(4)},
        "calibration_error": {"mean": np.ones(4), "deviation": np.ones(4), "target": np.ones(4), "levels": 9},
        "laplace": {"steps": 1, "samples": 100, "noise": 0.1, "prior": 0.1},
        "mc_dropout": {"x": p, "key": cn.Key(1), "samples": 2}, "numerical_gradient": {"eps": 0.1},
        "from_config": {"n_in": 2, "n_out": 1, "config": {}}, "exponential": {"decay": 0.5}, "cosine": {"steps": 10},
        "fit": {"steps": 1, "progress": False}, "gaussian_nll": {"y": [*y, *y]},
        "Composite": {"nested": [cn.Frequency(2)]},
        "relative_l2_luminance": {"y": y * 3, "target": y * 3}, "construct": {"description": cn.io.describe(field)},
        "register": {"cls": cn.ReLU}, "atomic_write": {"write": lambda path: path.write_text("x")},
        "Heads": {"heads": {"a": cn.Linear(2, 1)}}, "EMA": {"net": field}, "Adam": {"params": None},
        "SGD": {"params": None}, "Novograd": {"params": None},
        "alloc": {"size": 2}, "explain": {"batch": 1000}, "fold_in": {"step": 1}, "build": {"backend": backend},
        "set_matrix": {"value": np.ones((4, 2), np.float32)}, "matrix": {"name": "layers.0.weights"},
        "SparseProjection.dense": {"dtype": np.float32}, "Heads.split": {"y": three},
        "transpose": {"y": drnn.CoopVec([*x, *x])},
        "__getitem__": {"key": "network.weights"}, "__contains__": {"key": "network.weights"},
        "__setitem__": {"key": "network.weights", "value": field["network.weights"]}, "__delitem__": {"key": "weights"},
        "__eq__": {"value": field, "other": field}, "get": {"key": "weights"}, "pop": {"key": "weights"},
        "setdefault": {"key": "weights"}, "update": {"other": {}, "net": field},
        "SphericalHarmonics.__call__": {"x": three}, "SphericalHarmonics.jvp": {"x": three, "tangents": [three]},
        "Embedding.__call__": {"x": ns.UInt32(1, 2)}, "Embedding.jvp": {"x": drnn.CoopVec(ns.Float(1)), "tangents": []},
        "Dropout.__call__": {"x": x, "key": cn.Key(1)}, "DropPath.__call__": {"x": x, "key": cn.Key(1)},
        "GaussianDropout.__call__": {"x": x, "key": cn.Key(1)}, "save": {"path": "saved.safetensors"},
        "fit_arguments": {"field": None}, "sphere_trace": rays | {"steps": 2}, "ray_march": rays | marched,
        "soft_visibility": rays | {"traced": cn.render.sphere_trace(sdf, o, d, 4, 2)},
        "OccupancyGrid": {"resolution": 4, "lower": -1.0, "upper": 1.0}, "OccupancyGrid.occupied": {"p": o},
        "box_interval": rays | {"lower": -1.0, "upper": 1.0},
        "OccupancyGrid.interval": rays, "OccupancyGrid.update": {"field": volume, "key": cn.Key(1)},
        "OccupancyGrid.set_density": {"values": np.ones(64), "threshold": 0.5},
        "Visits": {"resolution": 4, "lower": -1.0, "upper": 1.0}, "Visits.unseen": {"p": o},
        "Visits.add": rays | counted, "Visits.along": rays | counted, "Visits.interval": rays,
        "to": {"tree": [{"field": field}, (p, y)]}, "export": {"target": "c", "path": "field.c", "name": "field"},
        "Reflection": {"decoder": field, "latent": (0.1, 0.2)},
        "with_backend": {"function": lambda *values, **options: values, "args": [p, field], "kwargs": {"y": y}},
        "torch Module": {"field": field}, "torch Module.forward": {"x": _rows_of_torch()},
        "image fit_image": {"image": picture, "directory": "learned"} | small, "image load": {"path": "picture.png"},
        "image make_field": {"width": 4, "height": 6}, "image save": {"path": "saved.png", "values": picture},
        "image pixels": {"index": ns.UInt32(0, 1), "width": 4, "height": 6}, "image psnr": {"a": picture, "b": picture},
        "image render": {"width": 4, "height": 6}, "image render_mc": {"width": 4, "height": 6, "samples": 2},
        "image training_pixels": {"count": 9, "fraction": 0.5, "seed": 1}, "mesh load": {"path": "mesh.obj"},
        "mesh render": {"field": sdf, "width": 4, "height": 6}, "mesh draw_samples": {"mesh": solid, "count": 8},
        "mesh fit_mesh": {"mesh": solid, "directory": "learned", "points": 1000} | small,
        "mesh load_surface": {"path": "file.safetensors"}, "mesh save": {"path": "copy.ply", "mesh": solid},
        "mesh extract": {"field": sdf, "resolution": 6},
    }  # fmt: skip


def _solid() -> Any:
    """A tetrahedron, if there is a package for meshes."""
    if not _installed("igl"):
        return None
    corners = np.array([[0.1, 0.1, 0.1], [0.9, 0.1, 0.1], [0.1, 0.9, 0.1], [0.1, 0.1, 0.9]])
    faces = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
    return importlib.import_module("coopnet.mesh").Mesh(corners, faces, True, (0.0, 0.0, 0.0), 1.0)


def _plain(backend: str) -> cn.NeuralField:
    """A field without dropout."""
    return cn.NeuralField(None, cn.MLP(2, 1, width=4, depth=1)).build(backend)


def _concrete(backend: str) -> cn.NeuralField:
    return cn.NeuralField(None, cn.Sequential(cn.ConcreteDropout(), cn.Linear(2, 1))).build(backend)


def _rows_of_torch() -> Any:
    return importlib.import_module("torch").zeros((3, 2)) if _installed("torch") else None


def _valid_in_mitsuba(backend: str) -> dict[str, dict[str, Any]]:
    plugins, mi = _plugins(backend), importlib.import_module("mitsuba")
    features = importlib.import_module("coopnet.mitsuba.bsdf.directions").count("rusinkiewicz", None)
    unbuilt = cn.NeuralField(None, cn.MLP(2, 3, width=4, depth=1))
    decoder = cn.NeuralField(None, cn.MLP(features + 2, 3, width=4, depth=1, dropout=0.1)).build(backend)
    material = plugins.NeuralBSDF(plugins.Decoder(decoder), (0.1, 0.2))
    film = {"type": "hdrfilm", "width": 4, "height": 4}
    scene = {"type": "scene", "sensor": {"type": "perspective", "film": film}, "integrator": {"type": "direct"}}
    scene = mi.load_dict(scene | {"shape": {"type": "sphere", "bsdf": material}})
    glass = {"field": None, "reference": mi.load_dict({"type": "roughdielectric"}), "steps": 1, "samples": 64}
    return {
        "mitsuba build": {"field": unbuilt}, "mitsuba load": {"filename": "file.safetensors"},
        "mitsuba hand_over": {"name": "field", "value": unbuilt}, "mitsuba Decoder": {"field": decoder},
        "mitsuba NeuralTexture": {"field": unbuilt.build(backend)},
        "mitsuba NeuralBSDF": {"decoder": plugins.Decoder(decoder), "latent": (0.1, 0.2)},
        "mitsuba RadianceCache": {"scene": scene, "field": None}, "mitsuba MERL": {"filename": "file.binary"},
        "mitsuba rgl": {"filename": "file.bsdf"},
        "mitsuba fit_bsdf": glass, "mitsuba render_mc": {"scene": scene, "samples": 2, "key": cn.Key(1), "spp": 1},
    }  # fmt: skip


#: Arguments that are called, whose own errors reach the caller as they are.
CALLED = {
    "batch", "objective", "loss", "penalty", "metric", "write", ("numerical_gradient", "field"), ("fit", "lr"),
    ("sphere_trace", "sdf"), ("soft_visibility", "sdf"), ("ray_march", "field"), ("OccupancyGrid.update", "field"),
    ("Visits.add", "field"), ("Visits.along", "field"), ("with_backend", "function"),
}  # fmt: skip
#: Values that ask for work of hours rather than make an error: (target, parameter) -> most of an int.
PATIENCE = {
    ("fit", "steps"): 20,
    ("mc_dropout", "samples"): 1000,
    ("posthoc_dropout", "batches"): 4,
    ("laplace", "steps"): 4,
    ("calibrate", "samples"): 1000,
    ("calibration_error", "levels"): 10_000,
    ("dropout_mask", "n"): 4096,
    ("image fit_image", "steps"): 4,
    ("image render_mc", "samples"): 100,
    ("mesh fit_mesh", "steps"): 4,
    ("mitsuba fit_bsdf", "steps"): 4,
    ("mitsuba fit_bsdf", "samples"): 1 << 16,
    ("mitsuba render_mc", "samples"): 20,
    ("mitsuba render_mc", "spp"): 256,
}


def pick_target(known: dict[str, Target], pick: Callable[[list], Any]) -> Target:
    """A target: functions are as likely as classes with all their methods."""
    groups: dict[str, list[str]] = {}
    for name in sorted(known):
        groups.setdefault(name.partition(".")[0], []).append(name)
    return known[pick(groups[pick(list(groups))])]


def choose(target: Target, labels: list[str], pick: Callable[[list], Any]) -> dict[str, str]:
    """Which parameters get which hostile values; ``pick`` chooses from a list."""
    names = [n for n, p in target.parameters.items()]
    count = min(len(names), pick([1, 1, 1, 2, 3]))
    chosen: dict[str, str] = {}
    for _ in range(count):
        chosen[pick(names)] = pick(labels)
    return chosen


def patient(target: Target, replaced: dict[str, Any]) -> bool:
    """Would the call end soon if its arguments were valid?"""
    for (name, parameter), most in PATIENCE.items():
        value = replaced.get(parameter)
        if target.name == name and isinstance(value, (int, np.integer)) and value > most:
            return False
    return True


# ---- Outcomes ----------------------------------------------------------------------------------------------


@functools.cache
def _names() -> set[str]:
    """Names that a message of ours may begin with."""
    found = {"Checkpoints", "The", "No", "CoopVec", "missing"}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "coopnet":
            found.add(name.split(".")[-1])
            for key, value in vars(module).items():
                if (getattr(value, "__module__", None) or "").startswith("coopnet"):
                    found.add(key)
                    if inspect.isclass(value):
                        found |= {k for k in vars(value) if not k.startswith("__")}
    return found


_START = re.compile(r"([A-Za-z_]\w*)")


def run(target: Target, replaced: dict[str, Any], evaluate: bool) -> None:
    """Make a call, enter what has to be entered, and ``evaluate`` its result if asked to."""
    result = target.call(replaced)
    if isinstance(result, contextlib.AbstractContextManager) and not isinstance(result, dr.ArrayBase):
        with result:
            pass
    if evaluate and not any(result is value for value in replaced.values()):  # not what was hostile before
        # together: one by one, each would compile a kernel, hundreds for an encoding
        dr.eval([value for value in _arrays(result, 3) if dr.width(value) < 1 << 20])


def _arrays(result: Any, depth: int) -> list:
    """Dr.Jit arrays in a result."""
    if isinstance(result, dr.ArrayBase):
        return [result] if dr.is_jit_v(result) else []
    if isinstance(result, drnn.CoopVec):
        return list(result)
    if isinstance(result, cn.Module):
        return list(result.values())
    if depth and type(result) in (list, tuple):
        return [v for item in result[:100] for v in _arrays(item, depth - 1)]
    if depth and type(result) is dict:
        return _arrays(list(result.values()), depth)
    return []


def judge(target: Target, replaced: dict[str, Any], error: BaseException | None) -> str:
    """``returned``, ``clear``, or ``unclear`` and why."""
    if error is None:
        return "returned"
    if isinstance(error, OSError):
        return "clear"
    if any(callable(v) and (k in CALLED or (target.name, k) in CALLED) for k, v in replaced.items()):
        return "clear"  # the error of the function that was to be called
    documented = _documented(target)
    kinds = (ValueError, TypeError, cn.BackendError, ImportError)
    name = type(error).__name__
    if isinstance(error, UnicodeError) or not (isinstance(error, kinds) or name in documented):
        return f"unclear: {name} is no documented kind: {str(error)[:150]}"
    message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if len(message) > LONGEST:
        return f"unclear: {len(message)} characters: {message[:150]}"
    start = _START.match(message)
    if start is None or start[1] not in _names():
        return f"unclear: not from here: {name}: {message[:150]}"
    return "clear"


def _documented(target: Target) -> set[str]:
    """Kinds of errors beside the usual ones that a docstring names."""
    function = target.function
    texts = [inspect.getdoc(function) or "", inspect.getdoc(getattr(function, "__self__", None)) or ""]
    found = {kind for kind in ("RuntimeError", "KeyError", "NotImplementedError") if any(kind in t for t in texts)}
    if target.name.rpartition(".")[2] in ("__getitem__", "__setitem__", "pop", "setdefault", "update"):
        found.add("KeyError")
    return found
