"""The examples in docstrings: every public name has one, and all of them run."""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
import json
from pathlib import Path

import drjit as dr
import numpy as np
import pytest

import coopnet as cn

MODULES = (cn, cn.nn, cn.training, cn.render)
PARSER = doctest.DocTestParser()


def documented():
    """Public functions and classes by name, and those methods of classes that have an example."""
    found = {}
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if not callable(value) or value in found.values():
                continue
            found[name] = value
            for method, function in vars(value).items() if inspect.isclass(value) else ():
                if inspect.isfunction(function) and not method.startswith("_") and ">>>" in (function.__doc__ or ""):
                    found[f"{name}.{method}"] = function
    return found | {"io.read": cn.io.read, "io.atomic_write": cn.io.atomic_write}


NAMES = documented()


@pytest.mark.parametrize("name", NAMES)
def test_has_an_example(name):
    assert PARSER.get_examples(inspect.getdoc(NAMES[name])), f"{name} has no example call"


def surroundings(ns, backend, name):
    """What examples take for granted. Fields are small; ``p`` is what the one in the example wants."""
    rng = np.random.default_rng(0)
    u, v, w, density = (ns.Float(x) + 0 for x in rng.random((4, 64)).astype(np.float32) * 0.8 + 0.1)
    target = dr.sin(u)
    outputs = 1 if name in ("NeuralField.value_and_grad", "numerical_gradient", "fit") else 3
    field = cn.NeuralField(None, cn.MLP(2, outputs, width=16, depth=1, dropout=0.1)).build(backend)
    half = backend == "cuda"
    scope = {
        "cn": cn, "dr": dr, "drjit": dr, "np": np, "zip": zip, "field": field, "net": field.network, "sdf": field,
        "Float": ns.Float, "UInt32": ns.UInt32, "Array2f": ns.Array2f,
        "TensorXf": ns.TensorXf16 if half else ns.TensorXf,
        "u": u, "v": v, "uv": [v, w], "x": [u, v], "dx": [v, u], "p": ns.Array2f(u, v),
        "direction": ns.Array2f(v, u), "targets": [u, v, w], "target": target, "mean": u, "log_variance": v,
        "density": density, "error": dr.square(u - v), "ids": ns.UInt32(u * 900), "m": rng.random((3, 8)),
        "key": cn.Key(1), "loss": None, "ema": None, "opt": None, "figure": None,
    }  # fmt: skip

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 64)
        return [x, y], [x, y, x * y][: len(list(scope["field"](scope["p"])))]

    scope |= {"batch": batch, "points": lambda key: ns.Array2f(cn.uniform(2, key, ns.Float, 64))}
    scope |= {"opt": dr.opt.Adam(lr=1e-3, params=field), "ema": cn.training.EMA(field)}
    field.update(scope["opt"])
    scope["loss"] = dr.mean(field(scope["p"])[0])
    matrix = rng.random((4096, 8)).astype(np.float32)
    if name.partition(".")[0] in cn.render.__all__:
        o, d = ns.Array3f(u, v, -2), ns.Array3f(0, 0, 1)
        grid = cn.render.OccupancyGrid(32, -1, 1, backend)
        volume, sdf = (cn.NeuralField(None, cn.MLP(3, n, width=16, depth=1)).build(backend) for n in (4, 1))
        scope |= {"o": o, "d": d, "p": o, "grid": grid, "volume": volume, "sdf": sdf}
        scope["seen"] = cn.render.ray_march(volume, o, d, 0.5, 3.5, steps=4)
        scope["visits"] = cn.render.Visits(4, -1, 1, backend)
        scope["cameras"] = cn.render.Cameras(np.eye(4), 4, 4, 40, backend=backend)
    if name == "laplace":
        rays = [v + dr.zeros(ns.Float, 64) for v in (u, v, -2, 0, 0, 1)]
        scope["rays"] = lambda key: ((ns.Array3f(*rays[:3]), ns.Array3f(*rays[3:])), [u, v, w])
        scope["volume"] = cn.NeuralField(None, cn.MLP(3, 4, width=16, depth=1), bounds=(-2, 2)).build(backend)
    gridded = cn.NeuralField(cn.HashGrid(2, n_levels=2, hashmap_size=2**6), cn.MLP(out_features=3)).build(backend)
    return scope | {
        "SphericalHarmonics": {"direction": ns.Array3f(u, v, w)},
        "Heads": {"p": ns.Array3f(u, v, w)},
        "Module.matrix": {"field": cn.NeuralField(None, cn.MLP(16, 3)).build(backend)},
        "SparseProjection": {"x": matrix, "TensorXf": ns.TensorXf},
        "mc_dropout": {"x": u, "field": cn.NeuralField(None, cn.MLP(1, 1, 8, 1, dropout=0.1)).build(backend)},
        "seeded_dropout": {"x": u, "TensorXf": ns.TensorXf},
        "layer_multipliers": {"field": gridded, "opt": dr.opt.Adam(lr=1e-3, params=gridded)},
        "EMA.apply": {"net": field},
        "EMA.applied": {"net": field},
        "to": {"image": ns.TensorXf([1, 2], (2, 1))},
        "with_backend": {"train": lambda field, points: field, "points": ns.Array2f(u, v)},
        "io.atomic_write": {"atomic_write": cn.io.atomic_write, "figure": Figure()},
    }.get(name, {})


class Figure:
    """What Matplotlib's does here."""

    @staticmethod
    def savefig(path):
        path.write_bytes(b"png")


@pytest.mark.parametrize("name", [n for n, v in NAMES.items() if ">>>" in (inspect.getdoc(v) or "")])
def test_examples_run(ns, backend, name, tmp_path, monkeypatch):
    if backend == "cuda" and name not in ("fit", "NeuralField", "NeuralField.value_and_grad"):
        pytest.skip("slow to compile")
    monkeypatch.chdir(tmp_path)
    scope = surroundings(ns, backend, name)
    build = cn.NeuralField.build  # examples build for whatever backend there is

    def build_here(self, backend=backend, *args, **rest):
        return build(self, backend, *args, **rest)

    monkeypatch.setattr(cn.NeuralField, "build", build_here)
    for made in (cn.render.OccupancyGrid, cn.render.Visits, cn.render.Cameras, cn.render.load_cameras):

        def make_here(*args, made=made, **rest):
            return made(*args, backend=backend, **rest)

        monkeypatch.setattr(cn.render, made.__name__, make_here)
    train = cn.fit
    monkeypatch.setattr(cn, "fit", lambda f, b, steps, **rest: train(f, b, 3, progress=False, **rest))
    if name == "load_cameras":
        frame = {"file_path": "a.png", "transform_matrix": np.eye(4).tolist()}
        Path("transforms.json").write_text(json.dumps({"w": 4, "h": 4, "fl_x": 4, "frames": [frame]}))
    if name == "load" or name == "io.read":
        cn.save("field.safetensors", scope["field"])
    for example in PARSER.get_examples(inspect.getdoc(NAMES[name])):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            source = example.source if name == "BackendError" else example.source.replace('"cuda"', repr(backend))
            exec(compile(source, f"<example of {name}>", "single"), scope)
        if example.want:
            assert printed.getvalue() == example.want, example.source
    dr.eval(*(value for value in scope.values() if isinstance(value, dr.ArrayBase)))
