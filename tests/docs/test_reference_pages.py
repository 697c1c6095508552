"""The reference has a place for every public name, and every one of them an example that runs."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import json
import re
import sys

import drjit as dr
import numpy as np
import pytest
from support.machines import ROOT

import coopnet as cn
import coopnet.interop.tcnn
from coopnet import reference as ref

sys.path.insert(0, str(ROOT / "scripts"))
PAGES = ROOT / "docs" / "reference"


def rooms():
    """Public names by the module that they are public in."""
    found = {m.__name__: list(m.__all__) for m in (cn, cn.nn, cn.training, cn.render, cn.backend, cn.io)}
    found["coopnet.interop.tcnn"] = list(coopnet.interop.tcnn.__all__)
    found["coopnet.interop.torch"] = ["Module"]
    for name, needed in (
        ("coopnet.image", ("PIL", "matplotlib")),
        ("coopnet.mesh", ("PIL", "matplotlib", "trimesh", "igl")),
    ):
        if all(map(importlib.util.find_spec, needed)):
            found[name] = list(importlib.import_module(name).__all__)
    if importlib.util.find_spec("mitsuba"):
        import mitsuba as mi

        if mi.variant() is None:
            mi.set_variant("llvm_ad_rgb")
        found["coopnet.mitsuba"] = list(cn.mitsuba.__all__)
    return found


def documented():
    """Targets of the directives on the pages; of modules, their names."""
    text = "\n".join(p.read_text(encoding="utf-8") for p in PAGES.glob("*.rst"))
    targets = set(re.findall(r"\.\. (?:auto\w+|py:data):: (\S+)", text))
    return targets


def test_every_public_name_is_on_a_page():
    targets = documented()
    names = {f"{module}.{name}" for module, of in rooms().items() for name in of}
    values = {}
    for target in targets - {"coopnet.interop.torch.Module"}:
        module, _, name = target.rpartition(".")
        if module in ("coopnet.mitsuba", "coopnet.image", "coopnet.mesh") and target not in names:
            continue
        room = importlib.import_module(module)
        values[id(getattr(room, name, None))] = target
    missing = []
    for full in sorted(names - targets):
        module, _, name = full.rpartition(".")
        value = getattr(importlib.import_module(module), name)
        if id(value) not in values and not inspect.ismodule(value):
            missing.append(full)
    assert not missing


def test_the_ground_truth_is_on_its_page():
    text = (PAGES / "numpy.rst").read_text(encoding="utf-8")
    modules = {v.__module__ for v in ref.OPS.values()} | {
        v.__module__ for v in vars(ref).values() if getattr(v, "__module__", "").startswith("coopnet.reference")
    }
    assert all(f"automodule:: {m}\n" in text for m in modules), modules


def functions():
    """What other tests of docstrings leave out: by name, functions and classes of these rooms."""
    found = {f"reference.{n}": v for n, v in vars(ref).items() if inspect.isfunction(v) or inspect.isclass(v)}
    found = {n: v for n, v in found.items() if v.__module__.startswith("coopnet.reference") and "._" not in n}
    found = {n: v for n, v in found.items() if v.__name__ == n.partition(".")[2]}
    for room, label in ((cn.backend, "backend"), (cn.io, "io")):
        values = {f"{label}.{n}": getattr(room, n) for n in room.__all__}
        found |= {n: v for n, v in values.items() if callable(v)}
    if all(map(importlib.util.find_spec, ("PIL", "matplotlib"))):
        rooms = {"image": ("safetensors",), "mesh": ("safetensors", "trimesh", "igl")}
        for label, needed in rooms.items():
            if all(map(importlib.util.find_spec, needed)):
                room = importlib.import_module(f"coopnet.{label}")
                values = {f"{label}.{n}": getattr(room, n) for n in room.__all__}
                found |= {n: v for n, v in values.items() if inspect.isfunction(v)}
    # run with a field, a figure and files in tests/test_docstrings.py
    others = ("BackendError", "io.read", "io.atomic_write", "io.load", "io.save", "io.register")
    return {n: v for n, v in found.items() if not n.endswith(others)}


FUNCTIONS = functions()


#: Numbers of the examples that would take long.
SMALLER = {
    "image.fit_image": {"steps=2,": 'steps=2, encoding="sinusoidal", width=8, depth=1,'},
    "mesh.fit_mesh": {"width=16, steps=200, points=4000": "width=8, steps=2, points=1000"},
}


class Runner(doctest.DocTestRunner):
    def report_unexpected_exception(self, out, test, example, exc_info):
        if isinstance(exc_info[1], ImportError):  # of a package that is not here
            raise exc_info[1]
        super().report_unexpected_exception(out, test, example, exc_info)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_examples_print_what_they_say(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    field = (
        cn.NeuralField(None, cn.MLP(2, 3, width=8, depth=1, dropout=0.1)).build()
        if name.startswith(("io.", "image."))
        else None
    )
    label = name.partition(".")[0]
    room = {label: importlib.import_module(f"coopnet.{label}")} if label in ("image", "mesh") else {}
    corners = np.stack(np.meshgrid([0, 1], [0, 1], [0, 1], indexing="ij"), -1).reshape(-1, 3)
    sides = [(1, 2, 4, 3), (5, 7, 8, 6), (1, 5, 6, 2), (3, 4, 8, 7), (1, 3, 7, 5), (2, 6, 8, 4)]
    lines = [f"v {x} {y} {z}" for x, y, z in corners] + [f"f {' '.join(map(str, side))}" for side in sides]
    (tmp_path / "cube.obj").write_text("\n".join(lines))
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    for number, smaller in SMALLER.get(name, {}).items():
        assert number in text, number
        text = text.replace(number, smaller)
    test = doctest.DocTestParser().get_doctest(
        text, {"cn": cn, "dr": dr, "ref": ref, "np": np, "field": field} | room, name, None, 0
    )
    assert test.examples, f"{name} has no example"
    said = []
    Runner(verbose=False).run(test, out=said.append, clear_globs=False)
    assert not said, "".join(said)


def test_there_are_many():
    assert len(FUNCTIONS) > 80


def test_every_layer_has_a_row():
    from pages import layers

    assert set(layers.EXAMPLES) == set(layers.layers())
    times = [row["layer"] for row in json.loads(layers.RESULTS.read_text())["results"]]
    assert set(times) == set(layers.EXAMPLES)


def test_rows_of_layers_say_what_is_so():
    from pages import layers

    relu, linear, grid = layers.facts("ReLU"), layers.facts("Linear"), layers.facts("Permutohedral")
    assert (relu.features, relu.parameters, layers.order(relu)) == (64, 0, "1")
    assert (linear.parameters, layers.order(linear)) == (64 * 64 + 64, "1, 2 (parameters)")
    assert layers.order(grid) == "1, 2 (parameters)"
    assert layers.tcnn_names()["Grid"] == ["Grid", "HashGrid", "TiledGrid", "DenseGrid"]
