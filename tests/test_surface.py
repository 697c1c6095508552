"""What the package shows to the world, and which of its rooms know which."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import re
import sys
from pathlib import Path

import pytest
from support.machines import python, run

import coopnet as cn
from coopnet import reference as ref

ROOT = Path(cn.__file__).parent.parent
_spec = importlib.util.spec_from_file_location("house", ROOT / "scripts" / "house.py")
house = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(house)


def test_every_public_name_exists_and_is_documented():
    assert len(cn.__all__) == len(set(cn.__all__))
    for module in (cn, cn.nn, cn.training, cn.render):
        for name in module.__all__:
            assert hasattr(module, name), name
            value = getattr(module, name)
            if callable(value) or inspect.ismodule(value):
                assert inspect.getdoc(value), name
                assert not inspect.isclass(value) or value.__doc__, name


def test_nothing_public_is_forgotten():
    seen = {name for name in vars(cn) if not name.startswith("_")}
    submodules = {name for name in seen if inspect.ismodule(getattr(cn, name))}
    # importing a room binds its name in the package, unless a public name hides it (cn.dropout)
    assert seen - submodules == set(cn.__all__) - submodules
    seen = {name for name, value in vars(cn.render).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert seen - {"annotations"} == set(cn.render.__all__)


def test_public_methods_are_documented():
    for name, cls in [(name, getattr(module, name)) for module in (cn, cn.render) for name in module.__all__]:
        if inspect.isclass(cls) and cls.__module__.startswith("coopnet"):
            for method, value in vars(cls).items():
                if inspect.isfunction(value) and not method.startswith("_"):
                    inherited = any(getattr(getattr(b, method, None), "__doc__", None) for b in cls.__mro__)
                    assert inherited, f"{name}.{method}"


# What changes numbers; the others hold, load, save or train.
NOT_OPS = {
    "BackendError", "Encoding", "FitResult", "Key", "Module", "backend", "deterministic", "export", "fit", "fit_many",
    "from_config", "gradient_banks", "gradient_path", "load", "nn", "on_backend", "render", "save", "to", "training",
    "uniform", "with_backend",
}  # fmt: skip


def test_every_operation_has_a_twin_in_the_reference():
    ops = set(cn.__all__) - NOT_OPS
    assert ops <= set(ref.OPS), ops - set(ref.OPS)
    layers = {n for n in cn.nn.__all__ if inspect.isclass(getattr(cn.nn, n))} - {"Activation", "Encoding", "Module"}
    assert layers <= set(ref.OPS), layers - set(ref.OPS)
    assert set(cn.nn.ACTIVATIONS) == set(ref.ACTIVATIONS)


def test_layers_are_drjit_modules():
    import drjit.nn as drnn

    for name in cn.__all__:
        value = getattr(cn, name)
        if inspect.isclass(value) and issubclass(value, drnn.Module):
            assert list(inspect.signature(value.__call__).parameters)[1:] == (
                ["p", "key", "active"] if name == "NeuralField" else ["x", "key"]
            ), name
            assert inspect.signature(value.__call__).parameters["key"].default is None
            if name not in ("Module", "Encoding"):
                assert repr(value()), name  # default-constructible: drjit.nn.pack rebuilds layers
    assert issubclass(cn.Dropout, drnn.Module)


BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
import coopnet as cn
imported = {{name.split(".")[0] for name in sys.modules}}
print(sorted(imported - set(sys.stdlib_module_names)))
assert cn.philox4x32((0,) * 4, (0,) * 2)[0] == 0x6627E8D5
import numpy as np
assert cn.dropout(np.ones((3, 4)), 0.5, cn.Key(1)).shape == (3, 4)
"""
OPTIONAL = ["safetensors", "tqdm", "typer", "click", "PIL", "matplotlib", "torch", "jax", "mitsuba", "scipy"]


def test_import_needs_drjit_and_numpy_only():
    done = run(BLOCK.format(names=set(OPTIONAL)))
    assert done.returncode == 0, done.stderr
    third_party = set(ast.literal_eval(done.stdout.splitlines()[-1]))
    assert {"coopnet", "drjit", "numpy"} <= third_party
    assert not third_party & set(OPTIONAL)


# ---- Which room imports which ------------------------------------------------------------------------------

# A room may import what its arrows lead to, at once or by way of others; who asks for a backend may be any of them.
ARROWS = {
    "checks": "",
    "context": "",
    "version": "",
    "command": "",
    "deprecation": "checks",
    "reference": "",
    "jit": "checks context",
    "backend": "jit checks version",
    "random": "jit checks",
    "kernels": "random",
    "engine": "random",
    "nn": "kernels engine",
    "bounds": "checks",
    "call": "nn",
    "derivatives": "nn",
    "audit": "nn reference",
    "field": "bounds call derivatives audit",
    "sparsification": "jit checks",
    "io": "field version",
    "training": "io",
    "uncertainty": "field sparsification",
    "render": "training uncertainty",
    "mitsuba": "render interop",
    "interop": "training uncertainty",
    "image": "training uncertainty sparsification",
    "mesh": "image render",
    "bench": "field",
    "commands": "image mesh interop bench",
    "cli": "commands command",
    "__main__": "cli",
    "": "command interop sparsification render",  # the public names
}


@functools.cache
def graph():
    """Which module imports which; reading all of them takes a second."""
    return house.imports()


ASKS_NO_BACKEND = {"checks", "version", "command", "reference", "jit", "backend"}
TOP = {"cli", "command", "commands", "image", "mitsuba"}  # may import optional packages at the top of a module


def allowed(name: str) -> set[str]:
    arrows = {room: set(found.split()) for room, found in ARROWS.items()}
    assert not house.circle(arrows)
    return house.reached(arrows, name) | (set() if name in ASKS_NO_BACKEND else {"backend"})


def test_every_room_has_a_row():
    assert {house.room(module) for module in graph()} == set(ARROWS)


@pytest.mark.parametrize("name", ARROWS)
def test_imports_point_downwards(name):
    for module, found in graph().items():
        if house.room(module) == name:
            wrong = {n for n in found if house.room(n) not in allowed(name) | {name}}
            assert not wrong, f"{module} imports {', '.join(sorted(wrong))}"


def test_no_imports_go_around():
    """Not even those inside functions."""
    assert not house.circle(graph()), " -> ".join(house.circle(graph()))


@pytest.mark.parametrize("name", ["jit", "mitsuba"])
def test_sub_rooms_point_one_way(name):
    rooms: dict[str, set[str]] = {}
    for module, found in graph().items():
        inside = [n.split(".")[2] for n in (module, *found) if n.startswith(f"coopnet.{name}.")]
        if module.startswith(f"coopnet.{name}."):
            rooms.setdefault(inside[0], set()).update({*inside} - {inside[0]})
    assert not house.circle(rooms), " -> ".join(house.circle(rooms))


PACKAGES = {name: path for name, path in house.modules().items() if path.name == "__init__.py"}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_has_a_table_of_its_files(name):
    """In its docstring, with a row for every file and every package inside, and for nothing else."""
    room = PACKAGES[name].parent
    text = ast.get_docstring(ast.parse(PACKAGES[name].read_text(encoding="utf-8")))
    rows = re.findall(r"^:mod:`\.(\w+)`  ", text, re.MULTILINE)
    files = [p.stem for p in room.glob("*.py") if p.name != "__init__.py"]
    assert sorted(rows) == sorted(files + [p.parent.name for p in room.glob("*/__init__.py")])


def test_circles_are_found():
    assert house.circle({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []
    assert house.circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


@pytest.mark.parametrize("script", ["house", "strategies"])
def test_what_is_drawn_is_up_to_date(script):
    done = python(ROOT / "scripts" / f"{script}.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_two_classes_have_one_name():
    found: dict[str, str] = {}
    for name, path in house.modules().items():
        if name == "coopnet.interop.torch":
            continue  # its Module is called as PyTorch's users expect
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                assert node.name not in found, f"{node.name}: {found[node.name]} and {name}"
                found[node.name] = name


def test_the_reference_is_plain_numpy():
    for name, path in house.modules().items():
        if house.room(name) == "reference":
            found = {n.split(".")[0] for n in house.imported(path) if not n.startswith("coopnet.reference")}
            assert found - set(sys.stdlib_module_names) <= {"numpy"}, name


def test_optional_packages_are_imported_inside_functions():
    """At the top of a module they would make `import coopnet` need them."""
    for path in (ROOT / "coopnet").rglob("*.py"):
        if path.relative_to(ROOT / "coopnet").parts[0].removesuffix(".py") in TOP:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                name = node.names[0].name if isinstance(node, ast.Import) else (node.module or "")
                assert (node.__class__ is ast.ImportFrom and node.level) or name.split(".")[0] not in OPTIONAL, path


def test_what_functions_report_cannot_be_changed():
    """Results that others may hold, too, are values."""
    import dataclasses

    from coopnet.audit import Audit, LayerAudit
    from coopnet.backend import LLVM
    from coopnet.engine import Explanation
    from coopnet.interop.tcnn import Configuration
    from coopnet.nn.report import LayerSize, Report

    for cls in (Audit, LayerAudit, LLVM, Configuration, Explanation, LayerSize, Report):
        value = cls(*[None] * len(dataclasses.fields(cls)))
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(cls)[0].name, 1)


PROGRAMS = sorted(path for folder in ("benchmarks", "examples", "scripts") for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_programs_import_what_there_is(path):
    """Also within functions, which most runs do not reach."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "coopnet":
            if node.module.startswith("coopnet.mitsuba"):
                continue  # needs Mitsuba, and a variant
            assert importlib.util.find_spec(node.module), f"{path}: {node.module}"
            module = pytest.importorskip(node.module, exc_type=ImportError)  # packages of extras
            for name in node.names:
                found = hasattr(module, name.name) or importlib.util.find_spec(f"{node.module}.{name.name}")
                assert found, f"{path}: from {node.module} import {name.name}"
