"""The table of all layers: what is counted and tried on the layers themselves, and times from a benchmark."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import drjit as dr
import drjit.nn as drnn

import coopnet as cn

from . import markdown
from .markdown import number

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "layers-llvm.json"

#: A typical one of every layer, as Python, and the number of its inputs.
EXAMPLES: dict[str, tuple[str, int]] = {
    "Identity": ("cn.Identity()", 3),
    "Frequency": ("cn.Frequency(12)", 3),
    "Sinusoidal": ("cn.Sinusoidal(8)", 3),
    "TriangleWave": ("cn.TriangleWave(12)", 3),
    "Triangular": ("cn.Triangular(8)", 3),
    "OneBlob": ("cn.OneBlob(16)", 3),
    "SphericalHarmonics": ("cn.SphericalHarmonics(4)", 3),
    "Fourier": ("cn.Fourier(64, 10.0)", 3),
    "Grid": ("cn.Grid(n_levels=8, per_level_scale=1.5)", 3),
    "HashGrid": ("cn.HashGrid(n_levels=8, per_level_scale=1.5)", 3),
    "Permutohedral": ("cn.Permutohedral(n_levels=8, per_level_scale=1.5)", 3),
    "Composite": ("cn.Composite([cn.Frequency(6), cn.Identity()], [2, 1])", 3),
    "Pad": ("cn.nn.Pad(cn.OneBlob(5), after=1)", 3),
    "Embedding": ("cn.Embedding(10_000, 16)", 1),
    "SparseProjection": ("cn.SparseProjection(-1, 16, 0.1)", 256),
    "Linear": ("cn.Linear(-1, 64)", 64),
    "MLP": ("cn.MLP(-1, 3, width=64, depth=3)", 32),
    "SIREN": ("cn.SIREN(-1, 3, width=64, depth=3)", 3),
    "Sequential": ("cn.Sequential(cn.Linear(-1, 64), cn.ReLU(), cn.Linear(-1, 3))", 32),
    "Residual": ("cn.Residual(cn.Linear(-1, 64))", 64),
    "Skip": ("cn.Skip(cn.Linear(-1, 64))", 64),
    "Heads": ("cn.Heads(cn.Linear(-1, 64), {'a': cn.Linear(-1, 1), 'b': cn.Linear(-1, 3)})", 32),
    "ReLU": ("cn.ReLU()", 64),
    "LeakyReLU": ("cn.LeakyReLU()", 64),
    "SiLU": ("cn.SiLU()", 64),
    "GELU": ("cn.GELU()", 64),
    "Tanh": ("cn.Tanh()", 64),
    "Sigmoid": ("cn.Sigmoid()", 64),
    "Softplus": ("cn.Softplus()", 64),
    "Squareplus": ("cn.Squareplus()", 64),
    "Exp": ("cn.Exp()", 64),
    "Sine": ("cn.Sine()", 64),
    "Dropout": ("cn.Dropout(0.1)", 64),
    "DropPath": ("cn.DropPath(0.1)", 64),
    "DropLevels": ("cn.DropLevels(0.1, n_features_per_level=8)", 64),
    "ConcreteDropout": ("cn.ConcreteDropout()", 64),
    "GaussianDropout": ("cn.GaussianDropout(0.1)", 64),
}
#: Layers whose input are whole numbers.
IDS = ("Embedding",)


def layers() -> list[str]:
    """Names of all layers that the library exports; bases and ``NeuralField`` are none."""
    bases = (cn.Module, cn.nn.Activation, cn.nn.Encoding, cn.NeuralField)
    values = {name: getattr(room, name) for room in (cn.nn, cn) for name in room.__all__}
    return [n for n, v in values.items() if inspect.isclass(v) and issubclass(v, drnn.Module) and v not in bases]


def made(name: str, single: Any) -> tuple[Any, int]:
    """The example of a layer with parameters, packed if it has matrices, and the number of its inputs."""
    code, n = EXAMPLES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = eval(code, {"cn": cn}).alloc(dr.tensor_t(single), n, dr.rng(1))
        try:
            return drnn.pack(layer, layout="training"), n
        except (RuntimeError, TypeError):  # nothing to pack
            return layer, n


@dataclass
class Facts:
    features: int
    parameters: int
    first: bool  #: is there a derivative with respect to the input that is not zero everywhere?
    second: bool  #: and a second one?
    mixed: bool  #: of the first derivative with respect to parameters?


def facts(name: str) -> Facts:
    """Counts of an example, and which of its derivatives are not zero at two samples, on LLVM."""
    from drjit.llvm.ad import Float, UInt32

    layer, n = made(name, Float)
    kind = UInt32 if name in IDS else Float
    x = [kind(3 + i, 7 + i) if name in IDS else Float(0.31 + 0.002 * i, 0.57 - 0.003 * i) + 0 for i in range(n)]
    key = cn.Key(1)
    y = list(layer(drnn.CoopVec(*x) if name not in IDS else x, key))
    parameters = _parameters(layer)
    if name in IDS:  # the derivative of a row with respect to its number is zero
        return Facts(len(y), parameters, False, False, False)
    held = list(layer.values())
    dr.enable_grad(x, *held)
    direction = [Float(0.3 + 0.05 * i) for i in range(n)]
    _, (moved,) = cn.nn.tangents.jvp(layer, drnn.CoopVec(*x), [drnn.CoopVec(*direction)], key)
    moved = list(moved)
    first = any(dr.any(dr.detach(v) != 0) for v in moved)
    total = sum((dr.square(v) for v in moved), Float(0))
    if dr.grad_enabled(total):
        dr.backward(dr.sum(total))
    second = any(dr.any(dr.grad(v) != 0) for v in x)
    mixed = any(dr.any(dr.grad(p) != 0, axis=None) for p in held)
    return Facts(len(y), parameters, first, second, mixed)


def _parameters(layer: Any) -> int:
    try:
        return int(layer.report().parameters)
    except ValueError:  # there are none
        return 0


def tcnn_names() -> dict[str, list[str]]:
    """tiny-cuda-nn's names of layers, as ``from_config`` reads them."""
    from coopnet.interop.tcnn.encodings import ENCODINGS
    from coopnet.interop.tcnn.networks import ACTIVATIONS, NETWORKS

    found: dict[str, list[str]] = {"MLP": list(NETWORKS), "Pad": ["(padding to 16)"]}
    for name, (cls, _) in ENCODINGS.items():
        found.setdefault(cls.__name__, []).append(name)
    for name, make in ACTIVATIONS.items():
        if (activation := make()) is not None:
            found.setdefault(type(activation).__name__, []).append(name)
    return found


def order(known: Facts) -> str:
    """Which derivatives there are, in words."""
    if not known.first:
        return "0"
    second = ["input"] * known.second + ["parameters"] * known.mixed
    return "1, 2 (" + ", ".join(second) + ")" if second else "1"


def rows() -> Iterator[list[object]]:
    times = {row["layer"]: row for row in json.loads(RESULTS.read_text())["results"]}
    names = tcnn_names()
    for name, (code, n) in EXAMPLES.items():
        known, time = facts(name), times[name]
        room = "nn." if name not in cn.__all__ else ""
        backward = time["backward_ns"]
        yield [
            f"{{py:obj}}`{room}{name} <coopnet.{room}{name}>`",
            f"`{code.replace('cn.', '')}`",
            f"{n} → {known.features}",
            f"{known.parameters:,}" if known.parameters else None,
            number(time["forward_ns"], 2),
            number(backward, 2) if backward is not None else None,
            ", ".join(f"`{v}`" if v[0] != "(" else v for v in names.get(name, [])) or None,
            order(known),
        ]


def table() -> str:
    from .performance import place

    machine = json.loads(RESULTS.read_text())["machine"]
    head = ["layer", "example", "features", "parameters", "ns", "gradients, ns", "tiny-cuda-nn", "derivatives"]
    return f"Times: {place(machine)}.\n\n" + markdown.table(head, rows())


def activations() -> str:
    """Names of activations, in Markdown that is reST as well."""
    return ", ".join(f'``"{name}"``' for name in cn.nn.ACTIVATIONS)


def losses() -> str:
    return ", ".join(f'``"{name}"``' for name in cn.training.LOSSES)
