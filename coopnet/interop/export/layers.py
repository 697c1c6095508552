"""Layers in the exported language."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from ... import nn
from ...bounds import unit_map
from ...engine.activations import GELU_CUBIC, GELU_LIMIT, GELU_LINEAR, LN2
from ...nn.containers import Parallel
from ...nn.dropout import Dropout
from ...nn.parameters import parameters
from ...random.law import Law, MaskLaw
from ...random.philox import M0, M1, W0, W1
from .language import (
    F32, U32, At, Block, Cast, Do, Expr, LinearMap, Load, Map, Routine, Values, Var, Vec, call, clip, select,
    single, u32,
)  # fmt: skip
from .weights import Array, WeightFile


class Lowering:
    """Writes a field into a :class:`Block`, layer by layer.

    ``precision`` and ``grids`` are the precisions of the weights. Names of functions and constants begin with
    ``prefix``. ``key`` is the array of four words that dropouts draw from, or ``None``. With ``whole``, weights that
    only draws need are included even without a key.
    """

    def __init__(
        self, weights: WeightFile, precision: str, grids: str, prefix: str, half: bool, key: Var | None = None,
        whole: bool = False,
    ):  # fmt: skip
        self.weights, self.precision, self.grids, self.prefix = weights, precision, grids, prefix
        self.half, self.key = half, key  #: ``half``: does the field itself run in half precision?
        self.whole = whole or key is not None
        self.block = Block()
        self.functions: dict[str, Routine] = {}  #: functions that are called, by name
        self.where = ""  #: name of the current layer
        self._constants: dict[str, int] = {}

    def lower(self, layer: Any, x: Vec, where: str) -> Vec:
        """Write ``layer``, called ``where`` in the field, and return its output. An owned ``x`` may be overwritten.

        Raises ``TypeError`` for an unknown layer, and ``ValueError`` for numbers that cannot be exported.
        """
        rule = next((RULES[cls] for cls in type(layer).__mro__ if cls in RULES), None)
        if rule is None or type(layer).__module__.split(".")[0] not in ("coopnet", "drjit"):
            cls = type(layer)
            raise TypeError(f"export: {where} is a {cls.__module__}.{cls.__qualname__}, which cannot be exported.")
        outside, self.where = self.where, where
        try:
            return rule(self, layer, x)
        except ValueError as error:
            said = str(error)
            raise ValueError(said if said.startswith("export: ") else f"export: {where}: {said}.") from None
        finally:
            self.where = outside

    # ---- For rules ------------------------------------------------------------

    def comment(self, layer: Any, x: Vec, size: int) -> None:
        self.block.comment(f"{self.where}: {type(layer).__name__}, {x.size} to {size}")

    def new(self, size: int, layer: Any, x: Vec) -> Vec:
        """A new vector for the output of ``layer``."""
        self.comment(layer, x, size)
        return self.block.vector(self.where.removeprefix("network."), size)

    def own(self, layer: Any, x: Vec) -> Vec:
        """``x``, or a copy of it if ``layer`` must not overwrite it."""
        if x.owned:
            self.comment(layer, x, x.size)
            return x
        y = self.new(x.size, layer, x)
        self.block.copy(x, y)
        return y

    def merge(self, parts: list[Vec], y: Vec, reduction: str) -> Vec:
        """Set ``y`` to the sum or product of ``parts``, or concatenate them."""
        b, start = self.block, 0
        for k, part in enumerate(parts):
            if reduction not in ("sum", "product"):
                b.copy(part, y.part(start, part.size))
                start += part.size
            elif k == 0:
                b.copy(part, y)
            else:
                with b.loop("i", y.size) as i:
                    b.set(y.at(i), y.at(i) + part.at(i) if reduction == "sum" else y.at(i) * part.at(i))
        return y

    def table(self, part: str, array: np.ndarray, precision: str | None = None) -> Array:
        return self.weights.add(f"{self.where}.{part}", array, precision or self.precision)

    def constants(self, what: str, type: str, numbers: Any) -> Any:
        """A named list of constants."""
        n = self._constants[what] = self._constants.get(what, 0) + 1
        return Values(f"{self.prefix}_{what}{'' if n == 1 else n}", type, tuple(numbers))


def scalar(value: Any, what: str) -> float:
    """A number that may be a Dr.Jit array of one entry."""
    if isinstance(value, dr.ArrayBase):
        if dr.width(value) != 1:
            raise ValueError(f"{what} has {dr.width(value)} entries, one for each sample; one is needed")
        value = dr.detach(value).numpy().reshape(-1)[0]
    return float(value)


def lower_field(to: Lowering, field: Any, x: Vec, prefix: str = "") -> Vec:
    """The outputs of a :class:`NeuralField` at ``x``. Names of its layers begin with ``prefix``."""
    if field.bounds is not None:
        x = _to_unit(to, x, unit_map(field.bounds, x.size))
    for part in ("encoding", "network"):
        layer = getattr(field, part)
        if layer is not None:
            x = to.lower(layer, x, prefix + part)
    return x


def _to_unit(to: Lowering, x: Vec, sides: list[tuple[float, float]]) -> Vec:
    """The coordinates ``x`` mapped to the unit cube. ``sides`` has ``(low, scale)`` of each."""
    b = to.block
    b.comment("bounds: to the unit cube")
    y = b.vector("unit", x.size)
    if len(set(sides)) == 1:
        sides = sides[:1]
    low = to.constants("bounds_low", F32, [low for low, _ in sides])
    scale = to.constants("bounds_scale", F32, [scale for _, scale in sides])
    with b.loop("i", x.size) as i:
        which = u32(0) if len(sides) == 1 else i
        b.set(y.at(i), (x.at(i) - low.at(which)) * scale.at(which))
    return y


# ---- Linear layers and activations -------------------------------------------------------------------------


def _linear(to: Lowering, layer: Any, x: Vec) -> Vec:
    numbers = {p.attribute: p.numpy("export") for p in parameters(layer)}
    y = to.new(len(numbers["weights"]), layer, x)
    matrix = to.table("weights", numbers["weights"])
    bias = to.table("bias", numbers["bias"].reshape(-1)) if "bias" in numbers else None
    to.block.statements.append(LinearMap(y, x, matrix, bias))
    return y


def _elementwise(function: Callable[[Any], tuple[str, tuple]]) -> Callable:
    """The rule of an activation: ``function(layer)`` is its name among :data:`FUNCTIONS` and its parameters."""

    def rule(to: Lowering, layer: Any, x: Vec) -> Vec:
        name, params = function(layer)
        if name == "identity" and not params:
            return x

        def each(v: Expr) -> Expr:
            return FUNCTIONS[name](v, *params)

        each(Var("v", F32))  # raises for constants that cannot be written
        y = to.own(layer, x)
        to.block.statements.append(Map(y, each))
        return y

    return rule


def _sigmoid(x: Expr) -> Expr:
    return call("tanh", x * 0.5) * 0.5 + 0.5


def _relu(x: Expr) -> Expr:
    return call("max", x, 0)


def _leaky_relu(x: Expr, slope: float) -> Expr:
    return select(x < 0, x * slope, x)  # NaN stays NaN


def _softplus(x: Expr, beta: float) -> Expr:
    return _relu(x) + call("log", call("exp", call("abs", x) * -beta) + 1) * (1 / beta)


def _squareplus(x: Expr, beta: float) -> Expr:
    x = x * beta
    return (_relu(x) + single(2) / (call("abs", x) + call("sqrt", x * x + 4))) * (1 / beta)


def _gelu(x: Expr) -> Expr:
    inside = clip(x, -GELU_LIMIT, GELU_LIMIT)
    return x * (call("tanh", inside * (inside * inside * GELU_CUBIC + GELU_LINEAR)) * 0.5 + 0.5)


#: Activations, by their names in the engine.
FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "tanh": functools.partial(call, "tanh"),
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "squareplus": _squareplus,
    "gelu": _gelu,
    "silu": lambda x: x * _sigmoid(x),
    "sine": lambda x, frequency: call("sin", x * frequency),
    "exp": functools.partial(call, "exp"),
    "exp2": lambda x: call("exp", x * LN2),  # of drjit.nn
    "identity": lambda x, scale, offset: x * scale + offset,
}

# ---- Containers --------------------------------------------------------------------------------------------


def _sequential(to: Lowering, layer: Any, x: Vec) -> Vec:
    for i, part in enumerate(layer.layers):
        x = to.lower(part, x, f"{to.where}.layers.{i}")
    return x


def _parallel(to: Lowering, layer: Parallel, x: Vec) -> Vec:
    parts, names = [], list(getattr(layer, "names", ()))
    for i, body in enumerate(layer.bodies()):
        y = x
        for one in body:
            place = f"{to.where}.heads.{i}" if names else f"{to.where}.body"
            if names:
                to.block.comment(f"{place}: output {names[i]}")
            y = to.lower(one, replace(x, owned=False), place)
        parts.append(y)
    size = parts[0].size if layer.merge == "sum" else sum(p.size for p in parts)
    return to.merge(parts, to.new(size, layer, x), layer.merge)


# ---- Dropout -----------------------------------------------------------------------------------------------


def _dropout(to: Lowering, layer: Dropout, x: Vec) -> Vec:
    if to.key is None or not layer.active():
        return x
    law = layer.law
    if law.scheduled:
        scalar(law.p, "p")
    y, b = to.own(layer, x), to.block
    per_word = 32 // law.bits
    per_block = 4 * per_word
    words = b.array("words", 4, U32)
    change = changed(to, law)
    if law.shared:
        draw(to, words, _counter(to, u32(0), law), law.rounds)
        first = b.let("word", At(words, u32(0)))
        with b.loop("i", y.size) as i:
            b.set(y.at(i), change(y.at(i), first))
        return y
    with b.loop("block", -(-y.size // per_block)) as block:
        draw(to, words, _counter(to, block, law), law.rounds)
        stop = call("min", block * per_block + per_block, y.size) if y.size > per_block else y.size
        with b.loop("i", stop, block * per_block if y.size > per_block else 0) as i:
            word = At(words, (i >> per_word.bit_length() - 1) & 3)
            drawn = b.let("draw", word >> ((i & per_word - 1) * law.bits) if per_word > 1 else word)
            b.set(y.at(i), change(y.at(i), drawn))
    return y


def _counter(to: Lowering, block: Expr, law: Law) -> tuple[Expr, ...]:
    """The counter of Philox for a block of elements of a sample."""
    assert to.key is not None
    return block, At(to.key, u32(2)), At(to.key, u32(3)), u32(law.stream)


def draw(to: Lowering, words: Var, counter: tuple[Expr, ...], rounds: int) -> None:
    """Draw four random words: Philox of ``counter`` and the key's seed."""
    key, b = to.key, to.block
    assert key is not None
    for i, word in enumerate(counter):
        b.set(At(words, u32(i)), word)
    philox = to.functions.setdefault("philox", _philox(to.prefix))
    b.statements.append(Do(philox, (words, At(key, u32(0)), At(key, u32(1)), u32(rounds))))


def changed(to: Lowering, law: Law) -> Callable[[Expr, Expr], Expr]:
    """A function ``(element, word)``: the element after dropout, by the lowest bits of the word."""
    leaf = np.float16 if to.half else np.float32
    if isinstance(law, MaskLaw):
        threshold, scale = law.threshold(leaf), law.scale(leaf)

        def dropped(v: Expr, word: Expr) -> Expr:
            draw = word & 2**law.bits - 1 if law.bits < 32 else word
            return select(draw >= threshold, v * scale, 0)

        return dropped
    sigma = law.traced(leaf).sigma  # type: ignore[attr-defined]

    def noisy(v: Expr, word: Expr) -> Expr:
        b = to.block
        # an odd number of 24 bits and a sign, which single precision holds
        u = b.let("u", (Cast(F32, word >> 8) * 2 - (2**24 - 1)) * 2.0**-24)
        return v * (_erfinv(b, u) * (sigma * 2**0.5) + 1)

    return noisy


def _erfinv(b: Block, u: Expr) -> Expr:
    """The inverse error function in single precision (Giles 2010, *Approximating the erfinv function*)."""
    w = b.let("w", single(-1) * call("log", (single(1) - u) * (single(1) + u)))
    centre, tail = b.let("centre", w - 2.5), b.let("tail", call("sqrt", w) - 3)
    return select(w < 5, _polynomial(_CENTRE, centre), _polynomial(_TAIL, tail)) * u


_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


def _polynomial(coefficients: tuple[float, ...], x: Expr) -> Expr:
    return functools.reduce(lambda total, c: total * x + c, coefficients[1:], single(coefficients[0]))


def _philox(prefix: str) -> Routine:
    """Philox4x32, as a function that replaces four words of a counter by random ones."""
    words, key0, key1 = Var("words", U32, 4), Var("key0", U32), Var("key1", U32)
    rounds, b = Var("rounds", U32), Block()
    k0, k1 = b.let("k0", key0), b.let("k1", key1)
    w = [At(words, u32(i)) for i in range(4)]
    with b.loop("i", rounds):
        high0, low0 = b.let("high0", call("mulhi", w[0], M0)), b.let("low0", w[0] * M0)
        high1, low1 = b.let("high1", call("mulhi", w[2], M1)), b.let("low1", w[2] * M1)
        b.set(w[0], high1 ^ w[1] ^ k0)
        b.set(w[1], low1)
        b.set(w[2], high0 ^ w[3] ^ k1)
        b.set(w[3], low0)
        b.set(k0, k0 + W0)
        b.set(k1, k1 + W1)
    return Routine(f"{prefix}_philox", (key0, key1, rounds), (words,), b.statements, changed=True)


def _embedding(to: Lowering, layer: nn.Embedding, x: Vec) -> Vec:
    b, width, count = to.block, layer.width(1), layer.count
    y = to.new(width, layer, x)
    array = layer.table.value.data.numpy()
    # rounded to half precision, if its features are
    output = "half" if layer.output == "float16" or array.dtype == np.float16 else to.precision
    data = to.table("data", array.reshape(-1), output)
    number = b.let("id", call("round", x.at(0)))
    # limited to the last row in integers, as single precision may round it up
    row = b.let("row", call("min", Cast(U32, clip(number, 0, count - 1)), count - 1))
    with b.loop("i", width) as i:
        entry: Expr = Load(data, row * width + i)
        if layer.out_of_range == "zero":
            entry = select(number >= 0, select(number <= count - 1, entry, 0), 0)
        b.set(y.at(i), entry)
    return y


#: Rules by type of layer: ``rule(lowering, layer, x)`` as :meth:`Lowering.lower`. Encodings add theirs.
RULES: dict[type, Callable[[Lowering, Any, Vec], Vec]] = {
    drnn.Linear: _linear,
    nn.Activation: _elementwise(lambda layer: (layer.function, layer.params())),
    nn.Sequential: _sequential,
    drnn.Sequential: _sequential,
    Parallel: _parallel,
    Dropout: _dropout,
    nn.Embedding: _embedding,
    drnn.ReLU: _elementwise(lambda layer: ("relu", ())),
    drnn.LeakyReLU: _elementwise(lambda layer: ("leaky_relu", (layer.negative_slope,))),
    drnn.Tanh: _elementwise(lambda layer: ("tanh", ())),
    drnn.Exp: _elementwise(lambda layer: ("exp", ())),
    drnn.Exp2: _elementwise(lambda layer: ("exp2", ())),
}
