"""What the package shows to the world, and which of its rooms know which."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import coopnet as cn
from coopnet import reference as ref

ROOT = Path(cn.__file__).parent.parent


def test_every_public_name_exists_and_is_documented():
    assert len(cn.__all__) == len(set(cn.__all__))
    for module in (cn, cn.nn, cn.training):
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


def test_public_methods_are_documented():
    for name in cn.__all__:
        cls = getattr(cn, name)
        if inspect.isclass(cls) and cls.__module__.startswith("coopnet"):
            for method, value in vars(cls).items():
                if inspect.isfunction(value) and not method.startswith("_"):
                    inherited = any(getattr(getattr(b, method, None), "__doc__", None) for b in cls.__mro__)
                    assert inherited, f"{name}.{method}"


# What changes numbers; the others hold, load, save or train.
NOT_OPS = {
    "BackendError", "Encoding", "FitResult", "Key", "Module", "backend", "deterministic", "fit", "from_config",
    "gradient_path", "load", "nn", "save", "training", "uniform",
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
    done = subprocess.run(
        [sys.executable, "-c", BLOCK.format(names=set(OPTIONAL))],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    third_party = set(ast.literal_eval(done.stdout.splitlines()[-1]))
    assert {"coopnet", "drjit", "numpy"} <= third_party
    assert not third_party & set(OPTIONAL)


# ---- Which room imports which ------------------------------------------------------------------------------


def imports(path: Path) -> tuple[set[str], set[str]]:
    """(rooms of coopnet, other packages) that a module imports, anywhere in it."""
    package = path.relative_to(ROOT).with_suffix("").parts
    rooms, others = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level]) if node.level else []
            base += (node.module or "").split(".") if node.module else []
            names = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for name in names:
            if name[0] == "coopnet":
                rooms.add(name[1] if len(name) > 1 else "")
            else:
                others.add(name[0])
    return rooms, others


def room(name: str) -> list[Path]:
    path = ROOT / "coopnet" / name
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


# Each row may import what stands above it; philox <- key <- dropout <- nn <- field <- training, io
GROUND = {"checks", "limits", "philox", "kinds", "opaque", "backend"}
ALLOWED = {
    "checks": set(),
    "limits": {"checks"},
    "philox": {"checks", "limits"},
    "kinds": {"checks"},
    "registers": set(),
    "half": set(),
    "opaque": set(),
    "backend": {"checks"},
    "reference": set(),
    "key": GROUND,
    "modulation": GROUND | {"key", "registers"},
    "dropout": GROUND | {"key", "modulation"},
    "seeded": GROUND | {"key", "dropout"},
    "variants": GROUND | {"key", "modulation", "dropout"},
    "engine": GROUND | {"half", "key", "registers", "dropout", "variants"},
    "nn": GROUND | {"key", "dropout", "variants", "engine"},
    "call": GROUND | {"half", "key", "engine", "nn"},
    "derivatives": GROUND | {"half", "key", "dropout", "engine", "nn"},
    "audit": GROUND | {"reference", "key", "dropout", "variants", "engine", "nn"},
    "field": GROUND | {"reference", "key", "dropout", "engine", "nn", "call", "derivatives", "audit"},
    "uncertainty": GROUND | {"key", "dropout", "engine", "nn", "derivatives", "audit", "field"},
    "io": GROUND | {"key", "dropout", "variants", "engine", "nn", "derivatives", "field"},
    "training": GROUND | {"key", "dropout", "engine", "nn", "derivatives", "field", "io"},
    "config": GROUND | {"key", "dropout", "engine", "nn", "derivatives", "field", "io", "training"},
}
TOP = {"__init__", "__main__", "cli", "command", "image", "render"}  # nothing below may import these


@pytest.mark.parametrize("name", ALLOWED)
def test_imports_point_downwards(name):
    assert all(path.exists() for path in room(name))
    for path in room(name):
        assert imports(path)[0] <= ALLOWED[name] | {name, "__version__"}, path


def test_every_room_is_covered():
    rooms = {p.stem for p in (ROOT / "coopnet").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert rooms - TOP == set(ALLOWED)


def test_the_reference_is_plain_numpy():
    rooms, others = imports(ROOT / "coopnet" / "reference.py")
    assert not rooms and others - set(sys.stdlib_module_names) == {"numpy"}


def test_optional_packages_are_imported_inside_functions():
    """At the top of a module they would make `import coopnet` need them."""
    for path in (ROOT / "coopnet").rglob("*.py"):
        if path.relative_to(ROOT / "coopnet").parts[0].removesuffix(".py") in TOP - {"__init__"}:
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
