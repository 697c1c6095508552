"""Fields to export, one for every layer, and what runs them."""

from __future__ import annotations

import ctypes
import runpy
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import drjit as dr
import drjit.nn as drnn
import numpy as np
from nn.test_contracts import EXAMPLES
from support.arrays import arrays

import coopnet as cn

SAMPLES = 200


class Case(NamedTuple):
    """A built field, coordinates ``(in_features, samples)``, and what the field gives there.

    ``y`` and ``jacobian`` (``(outputs * coordinates, samples)``) are computed in single precision, from the weights
    that the field has; ``own`` is what it gives in its own precision, which rounds more the more layers there are.
    """

    field: Any
    x: np.ndarray
    y: np.ndarray
    jacobian: np.ndarray
    own: np.ndarray


def make(name: str, size: int, ids: int = 0) -> cn.NeuralField:
    """A field whose layer of the given name stands where it would."""
    layer = EXAMPLES[name].make()
    if isinstance(layer, cn.NeuralField):
        return layer
    if isinstance(layer, (cn.Encoding, cn.Embedding)):
        return cn.NeuralField(layer, cn.Linear(-1, 3), in_features=size)
    return cn.NeuralField(None, cn.Sequential(cn.Linear(size, size), layer), in_features=size)


def case(field: Any, backend: str, precision: str, ids: int = 0, seed: int = 1, near: float = 1.0) -> Case:
    """``field``, built with biases that show, at random coordinates in [0, ``near``)."""
    field = field.build(backend, precision, seed=seed)
    rng = np.random.default_rng(seed)
    for p in cn.nn.parameters.parameters(field):
        if p.name.endswith("bias"):
            field.set_matrix(p.name, rng.normal(size=p.shape) * 0.3)
    n = field.in_features
    x = rng.integers(0, ids, (n, SAMPLES)) if ids else rng.random((n, SAMPLES)) * near
    return evaluated(field, x.astype(np.float32), backend)


def evaluated(field: Any, x: np.ndarray, backend: str, key: Any = None) -> Case:
    exact = cn.to(field, "llvm", precision="single")
    p = _points(x, "llvm")
    y, slopes = list(exact(p, key)), [v for row in exact.jacobian(p, key) for v in row]
    both = _rows([*y, *slopes], x.shape[1])  # in one kernel
    y, jacobian = both[: len(y)], both[len(y) :]
    return Case(field, x, y, jacobian, y if exact is field else _values(field, backend, x, key))


def _points(x: np.ndarray, backend: str) -> list:
    return arrays(cn.backend.namespace(backend), x)


def _values(field: Any, backend: str, x: np.ndarray, key: Any) -> np.ndarray:
    return _rows(field(_points(x, backend), key), x.shape[1])


def _rows(parts: Any, samples: int) -> np.ndarray:
    parts = list(parts)
    dr.eval(parts)  # one by one, each would be a kernel
    return np.stack([np.broadcast_to(dr.detach(v).numpy().astype(np.float32), samples) for v in parts])


def agree(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Are all entries within the tolerance, relative to the largest?"""
    assert actual.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max()))
    worst = float(np.abs(actual - expected).max())
    assert worst <= tolerance * scale, f"{worst} of {scale}"


def words(written: Any) -> np.ndarray | None:
    """The weights that an export wrote beside the source."""
    return None if written.weights is None else np.fromfile(written.weights, np.uint32)


#: Dropouts, and how many elements they are given: more than a block of random words, and no whole number of them.
DROPOUTS = {
    "8 bits": (lambda: cn.Dropout(0.3, bits=8), 37),
    "16 bits": (lambda: cn.Dropout(0.3, stream=5), 37),
    "32 bits": (lambda: cn.Dropout(0.3, bits=32), 7),
    "7 rounds": (lambda: cn.Dropout(0.9, rounds=7), 3),
    "DropPath": (lambda: cn.DropPath(0.4, bits=8), 5),
    "GaussianDropout": (lambda: cn.GaussianDropout(0.3), 9),
}


def masked(kind: str) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """A field that is one dropout, coordinates of one, keys that differ in all words, and what it gives."""
    make, n = DROPOUTS[kind]
    field = cn.NeuralField(None, cn.Sequential(make(), cn.Linear(n, n, bias=False)), in_features=n).build("llvm")
    field.set_matrix("layers.1.weights", np.eye(n))
    x = np.ones((n, SAMPLES), np.float32)
    rng = np.random.default_rng(3)
    seed, step = 0xFEDCBA9876543210, 0xFFFFFFF0
    index = rng.integers(0, 2**32, SAMPLES, np.uint32)
    key = np.stack([np.full(SAMPLES, v, np.uint32) for v in (seed & 0xFFFFFFFF, seed >> 32, 0, step)])
    key[2] = index
    own = cn.Key(seed, cn.backend.namespace("llvm").UInt32(index), step)
    return field, x, key, _values(field, "llvm", x, own)


def _grid(*args, base_resolution=4, **options):
    options |= {"n_levels": 3, "hashmap_size": 64, "base_resolution": base_resolution, "init_scale": 1.0}
    return cn.Grid(*args, **options)


#: What the examples of layers leave out: other options, widths of 1, and nothing to store.
VARIANTS = {
    "no parameters": lambda: cn.NeuralField(cn.Frequency(9, in_features=1), cn.Tanh()),
    "the identity": lambda: cn.NeuralField(None, cn.Identity(), in_features=2),
    "one frequency": lambda: cn.NeuralField(cn.Fourier(1, in_features=1), cn.Linear(-1, 1)),
    "bounds": lambda: cn.NeuralField(_grid(2), cn.Linear(-1, 2), bounds=(-1, 2.5)),
    "bounds by coordinate": lambda: cn.NeuralField(None, cn.Linear(3, 2), bounds=([-1, 0.25, 0], [2, 0.75, 1e3])),
    "blobs in the unit interval": lambda: cn.NeuralField(
        cn.OneBlob(4, 2, periodic=False), cn.Linear(-1, 1), bounds=(0.4, 0.6)
    ),
    "one bin that is left": lambda: cn.NeuralField(
        cn.OneBlob(1, 1, periodic=False), cn.Linear(-1, 1), bounds=(0.4, 0.6)
    ),
    "8 bands": lambda: cn.NeuralField(cn.SphericalHarmonics(8), cn.Linear(-1, 1)),
    "1 band": lambda: cn.NeuralField(cn.SphericalHarmonics(1), cn.Linear(-1, 1)),
    "one bin": lambda: cn.NeuralField(cn.OneBlob(1, in_features=1), cn.Linear(-1, 1)),
    "shifted triangles": lambda: cn.NeuralField(cn.Triangular(3, 0.3, in_features=1), cn.Linear(-1, 1)),
    "simplices of one dimension": lambda: cn.NeuralField(cn.Permutohedral(1, 1, init_scale=1.0), cn.Linear(-1, 1)),
    "simplices of five": lambda: cn.NeuralField(
        cn.Permutohedral(5, n_levels=6, hashmap_size=2**12, init_scale=1.0), cn.Linear(-1, 2)
    ),
    "one level": lambda: cn.NeuralField(cn.HashGrid(1, 1, 1, init_scale=1.0), cn.Linear(-1, 1)),
    "tiled": lambda: cn.NeuralField(_grid(3, "tiled"), cn.Linear(-1, 1)),
    "dense": lambda: cn.NeuralField(_grid(2, "dense", base_resolution=5), cn.Linear(-1, 1)),
    "smoothstep": lambda: cn.NeuralField(_grid(2, interpolation="smoothstep"), cn.Linear(-1, 1)),
    "nearest": lambda: cn.NeuralField(_grid(2, interpolation="nearest"), cn.Linear(-1, 1)),
    "a product": lambda: cn.NeuralField(
        cn.Composite([cn.Identity(), cn.Identity(2.0, 1.0)], [2, 2], [0, 0], reduction="product"), cn.Linear(-1, 1)
    ),
    "a sum": lambda: cn.NeuralField(
        cn.Composite([cn.Sinusoidal(2), cn.Frequency(2)], [1, 1], reduction="sum"), cn.Linear(-1, 1)
    ),
    "layers of Dr.Jit": lambda: cn.NeuralField(
        drnn.SinEncode(2),
        drnn.Sequential(
            drnn.Linear(-1, 4),
            drnn.Exp2(),
            drnn.Linear(-1, 4),
            drnn.Tanh(),
            drnn.Linear(-1, 4),
            drnn.LeakyReLU(0.2),
            drnn.Exp(),
            drnn.Linear(-1, 4),
            drnn.ReLU(),
            drnn.Linear(-1, 2),
        ),
        in_features=2,
    ),
    "two branches of one input": lambda: cn.NeuralField(
        None,
        cn.Sequential(
            cn.Residual(cn.Sequential(cn.ReLU(), cn.Linear(3, 3))),
            cn.Heads(None, {"a": cn.Sequential(cn.Sine(2.0), cn.Linear(3, 1)), "b": cn.Linear(3, 1)}),
            cn.Skip(cn.Tanh()),
        ),
        in_features=3,
    ),
}


# ---- What runs exported sources ----------------------------------------------------------------------------


class Library:
    """C sources in one shared library."""

    def __init__(self, sources: list[Path], directory: Path, *flags: str):
        path = directory / "fields.so"
        options = ["-O1", "-std=c99", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *flags]
        subprocess.run(["cc", *options, *map(str, sources), "-o", str(path), "-lm"], check=True, timeout=240)
        self.functions = ctypes.CDLL(str(path))

    def run(self, name: str, weights: Path | None, x: np.ndarray, sizes: tuple[int, ...], key: Any = None) -> list:
        """Outputs of the given sizes, at all samples."""
        file = None if weights is None else np.fromfile(weights, np.uint32)
        outputs = [np.zeros((x.shape[1], n), np.float32) for n in sizes]
        columns, function = np.ascontiguousarray(x.T), getattr(self.functions, name)
        for i in range(x.shape[1]):
            rows = [columns[i], *([] if key is None else [np.ascontiguousarray(key[:, i])]), *(y[i] for y in outputs)]
            arguments = [*([] if file is None else [file]), *rows]
            function(*(ctypes.c_void_p(v.ctypes.data) for v in arguments))
        return [y.T for y in outputs]


def imported(path: Path) -> Any:
    """An exported NumPy module, of the source that is there now: none that was compiled before, and none is kept."""
    return SimpleNamespace(**runpy.run_path(str(path)))


def run_numpy(path: Path, name: str, weights: Path | None, x: np.ndarray, key: Any = None) -> list:
    module = imported(path)
    stem = name.removesuffix("_jacobian")
    first = [] if weights is None else [getattr(module, f"{stem}_load")(weights)]
    y = getattr(module, name)(*first, x, *([] if key is None else [key]))
    return list(y) if isinstance(y, tuple) else [y]
