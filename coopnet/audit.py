"""Errors of a field in working precision: every layer is compared with the reference in double precision."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from . import engine, reference
from .nn import Composite, Embedding, Encoding, Fourier, Identity, Module, Pad, Permutohedral
from .nn.containers import Branches, Parallel
from .nn.dropout import Dropout, GaussianDropout
from .nn.lattice import Lattice
from .nn.parameters import parameters
from .nn.report import aligned
from .nn.sequential import apply, flatten
from .random.key import Key

# Layers of drjit.nn whose counterparts in the reference have other names.
_ALIASES = {"SinEncode": "Sinusoidal", "TriEncode": "Triangular", "Cast": "Identity"}
# Attributes of a layer that its counterpart takes from the shapes of arrays instead.
_SHAPES = {"in_features", "out_features", "channels"}


@dataclass(frozen=True)
class LayerAudit:
    """One layer of an :class:`Audit`.

    Errors are relative, and are computed over finite values only. ``max_error`` is the largest difference from the
    reference divided by the largest value of the reference; ``rms_error`` is the same with root mean squares. Both
    accumulate from the coordinates on. ``own_error`` is the rms error that this layer alone adds to its input. All
    three are ``None`` for a layer without a counterpart in the reference, after which errors start again from zero.
    ``non_finite`` counts infinities and NaN, ``overflows`` those for which the reference is finite. ``dead`` is the
    number of units, of ``features``, that are zero for all samples; ``None`` for layers other than ReLU.
    """

    name: str
    layer: str
    features: int
    max_error: float | None
    rms_error: float | None
    own_error: float | None
    non_finite: int
    overflows: int
    dead: int | None


@dataclass(frozen=True)
class Audit:
    """Errors of a field's layers, in order of evaluation; ``print`` it for a table."""

    backend: str
    precision: str
    samples: int
    layers: tuple[LayerAudit, ...]

    @property
    def finite(self) -> bool:
        """Is every value of every layer finite?"""
        return not any(layer.non_finite for layer in self.layers)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of the layers without a counterpart in the reference."""
        return tuple(layer.name for layer in self.layers if layer.max_error is None)

    def __str__(self) -> str:
        rows: list[tuple] = [("layer", "", "max error", "rms error", "own rms", "non-finite", "overflows", "dead")]
        for r in self.layers:
            errors = ("unknown" if e is None else f"{e:.1e}" for e in (r.max_error, r.rms_error, r.own_error))
            dead = "" if r.dead is None else f"{r.dead} of {r.features}"
            rows.append((r.name, r.layer, *errors, str(r.non_finite), str(r.overflows), dead))
        where = f"{self.backend.upper()}, {self.precision} precision, {self.samples} samples"
        return f"{where}, relative to double precision\n{aligned(rows, 2)}"


def audit(encoding: Any, network: Any, parts: list, work: type, precision: str, key: Key | None) -> Audit:
    """Evaluate the layers in working and in double precision; ``parts`` are single-precision coordinates."""
    single = type(parts[0])
    samples = dr.width(parts)
    if key is not None and key.index is None:
        key = Key(key.seed, dr.arange(dr.uint32_array_t(single), samples), key.step)
    run = _Run(samples, key, parts)
    if isinstance(encoding, (Encoding, Identity)):
        run.layer("encoding", encoding, lambda x: encoding(x, key))
    elif encoding is not None:
        run.layers("encoding", [encoding])
    if work is not single:
        run.row("cast", "float16", [work(v) for v in run.values], run.exact, run.exact_here)
    run.layers("network", [network])
    return Audit(dr.backend_v(single).name.lower(), precision, samples, tuple(run.rows))


class _Run:
    """Evaluates layers in working and in double precision, side by side, and collects :attr:`rows`."""

    def __init__(self, samples: int, key: Key | None, parts: list):
        self.samples, self.key = samples, key
        self.values = parts
        self.exact = self.exact_here = self._numpy(parts)
        self.rows: list[LayerAudit] = []

    def layers(self, name: str, layers: list) -> None:
        """Evaluate layers one after the other, including those inside containers."""
        for i, layer in enumerate(flatten(layers)):
            if isinstance(layer, Parallel):
                self.fork(f"{name}.{i}", layer)
            else:
                self.layer(f"{name}.{i}", layer, lambda x, layer=layer: apply([layer], [drnn.CoopVec(x)], self.key)[0])

    def fork(self, name: str, layer: Parallel) -> None:
        """Evaluate the bodies of a container, and merge them."""
        start, ends = (self.values, self.exact, self.exact_here), []
        for label, body in zip(getattr(layer, "names", ("body", "body")), layer.bodies(), strict=True):
            self.values, self.exact, self.exact_here = start
            self.layers(f"{name}.{label}", body)
            ends.append((drnn.CoopVec(self.values), self.exact, self.exact_here))
        values, exact, here = zip(*ends, strict=True)
        merged = list(engine.Branching([], layer.merge).join(values))
        dr.eval(merged)
        join: Any = sum if layer.merge == "sum" else np.concatenate
        self.row(name, _short(layer), merged, join(exact), join(here))

    def layer(self, name: str, layer: Any, evaluate: Any) -> None:
        """Evaluate a layer and its counterpart, the latter on its own input and on that of the layer."""
        values = list(evaluate(self.values))
        dr.eval(values)
        exact, here = (_twin(layer, x, self.key, self.samples) for x in (self.exact, self.exact_here))
        relu = isinstance(layer, drnn.ReLU) or (isinstance(layer, Module) and getattr(layer, "function", "") == "relu")
        self.row(name, _short(layer), values, exact, here, relu)

    def row(self, name: str, layer: str, values: list, exact: Any, here: Any, relu: bool = False) -> None:
        """Add a row that compares a layer's output ``values`` with those of the reference.

        ``exact`` is the reference's output for exact inputs, ``here`` that for the layer's own inputs.
        """
        output = self._numpy(values)
        bad = ~np.isfinite(output)
        largest = rms = rounding = None
        overflows = 0
        if exact is not None:
            (largest, rms), (_, rounding) = _errors(output, exact), _errors(output, here)
            overflows = int(np.sum(bad & np.isfinite(exact)))
        dead = int(np.sum(~np.any(output != 0, axis=1))) if relu else None
        self.rows.append(
            LayerAudit(name, layer, len(output), largest, rms, rounding, int(np.sum(bad)), overflows, dead)
        )
        self.values, self.exact, self.exact_here = values, output if exact is None else exact, output

    def _numpy(self, parts: list) -> np.ndarray:
        rows = [dr.detach(v).numpy().astype(np.float64) for v in parts]
        return np.stack([np.broadcast_to(row, self.samples) for row in rows])


def _twin(layer: Any, x: np.ndarray, key: Key | None, samples: int) -> np.ndarray | None:
    """The output for ``x`` of the layer's counterpart in the reference, or ``None`` if there is none.

    The counterpart is the entry of ``reference.OPS`` for the name of the layer's type. Besides ``x``, its arguments are
    the layer's attributes of the same names, and those of :func:`_extra_arguments`.
    """
    name = type(layer).__name__
    twin = reference.OPS.get(_ALIASES.get(name, name))
    if twin is None or type(layer).__module__.split(".")[0] not in ("coopnet", "drjit"):
        return None  # or a user's layer of the same name
    with np.errstate(all="ignore"):
        if isinstance(layer, Composite):
            ys = [_twin(encoding, x[begin : begin + n], key, samples) for encoding, begin, n in layer.parts(len(x))]
            known = all(y is not None for y in ys)
            parts: list = [(0, 0, lambda _, y=y: y) for y in ys]
            return reference.composite(x, parts, layer.reduction) if known else None
        if isinstance(layer, Pad):
            y = _twin(layer.nested, x, key, samples)
            return None if y is None else reference.pad(y, layer.before, layer.after, layer.value)
        options = _extra_arguments(layer, key, samples)
        if isinstance(layer, Dropout) and (key is None or options["p"] == 0):
            return x
        if isinstance(layer, drnn.Linear):
            return reference.linear(x=x, **options)
        arguments = _arguments(layer, twin, options)
        x = np.rint(x[0]).astype(np.int64) if isinstance(layer, Embedding) else x
        return None if arguments is None else np.asarray(twin(x, **arguments), np.float64)


def _extra_arguments(layer: Any, key: Key | None, samples: int) -> dict[str, Any]:
    """Arguments of a layer's counterpart that are not attributes of the layer: arrays, computed values, the key."""
    if isinstance(layer, drnn.Linear):
        values = {p.name: p.numpy("audit") for p in parameters(layer)}
        return {"W": values["weights"], "b": values.get("bias")}
    if isinstance(layer, Dropout):
        p = layer.p
        if isinstance(p, dr.ArrayBase):
            # as in kernels, which cannot raise an error: clip to the largest value that still keeps elements
            largest = 1 - 2.0 ** -(24 if isinstance(layer, GaussianDropout) else layer.bits)
            p = min(max(float(dr.detach(p)[0]), 0.0), largest)
        if key is None:
            return {"p": p}
        index, step, (low, high) = key.words(np.uint32, samples)
        seed = int(low[0]) + (int(high[0]) << 32)
        return {"p": p, "seed": seed, "index": index, "step": step, "stream": layer.stream or 0}
    if isinstance(layer, Fourier):
        return {"frequencies": dr.detach(layer.frequencies.value.data).numpy().reshape(layer.n_frequencies, -1)}
    if isinstance(layer, Embedding):
        return {"table": dr.detach(layer.table.value.data).numpy()}
    if isinstance(layer, Lattice):
        grid = layer.grid.value
        options = {name: getattr(layer, name) for name in ("hashmap_size", "base_resolution", "storage")}
        options |= {"level_scales": [level.scale for level in grid.levels], "multiple": layer._MULTIPLE}
        options |= {} if layer.max_level is None else {"max_level": dr.detach(layer.max_level).numpy()}
        options |= {} if isinstance(layer, Permutohedral) else {"interpolation": layer.interpolation}
        return options | {"params": dr.detach(grid.data).numpy()}
    return {}


def _arguments(layer: Any, twin: Any, held: dict[str, Any]) -> dict[str, Any] | None:
    """The counterpart's arguments besides the input, or ``None`` if the layer does not have all of them."""
    arguments = dict(held)
    _, *rest = inspect.signature(twin).parameters.values()
    for parameter in rest:
        if parameter.name in held or parameter.default is None or parameter.kind is parameter.VAR_KEYWORD:
            continue
        if isinstance(value := getattr(layer, parameter.name, None), (int, float, str)):
            arguments[parameter.name] = value
        elif parameter.default is inspect.Parameter.empty:
            return None
    if held:
        return arguments
    for name in getattr(type(layer), "DRJIT_STRUCT", None) or ():
        # The counterpart does not take this number of the layer, so it is another function.
        if isinstance(getattr(layer, name, None), (int, float)) and name not in arguments and name not in _SHAPES:
            return None
    return arguments


def _errors(got: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """Largest and rms difference, relative to the largest and rms value of ``exact``, over finite values."""
    finite = np.isfinite(got) & np.isfinite(exact)
    if not finite.any():
        return math.nan, math.nan
    e, value = np.abs(got[finite] - exact[finite]), np.abs(exact[finite])
    return _ratio(e.max(), value.max()), _ratio(math.sqrt(np.mean(e**2)), math.sqrt(np.mean(value**2)))


def _ratio(a: float, b: float) -> float:
    return float(a / b) if b > 0 else (0.0 if a == 0 else math.inf)


def _short(layer: Any) -> str:
    if isinstance(layer, drnn.Linear):
        return f"Linear({layer.config[0]}, {layer.config[1]})"
    return "Heads" if isinstance(layer, Branches) else type(layer).__name__
