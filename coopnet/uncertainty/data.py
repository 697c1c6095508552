"""The batches on which a trained field is examined, drawn as in :func:`coopnet.fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import drjit as dr

from ..checks import check_int, check_type, check_unsigned, ensure, entries
from ..field import NeuralField, check_built
from ..jit import kinds
from ..jit.scopes import check_outside
from ..random.key import Key


class Batch(NamedTuple):
    """Coordinates (or other inputs of predictions) and targets, a list of evaluated arrays each, and the
    key that they were drawn with."""

    coordinates: Any
    targets: list
    key: Key


def check_trained(field: Any, where: str) -> None:
    """Raise unless ``field`` is a built field with parameters, and nothing is being recorded."""
    check_built(where, field, cure="call field = field.build(), and train it")
    ensure(len(field), f"{where}: the field has no parameters.")
    check_outside(where)


def draw(
    field: NeuralField, batch: Any, count: Any, seed: Any, where: str, name: str, inputs: bool = False
) -> Iterator[Batch]:
    """``count`` batches: those of the first steps of a training with ``seed``. ``name`` is the name of the argument
    ``count``.

    With ``inputs``, the first entry of a batch is any PyTree.
    """
    check_type(where, "batch", batch, Callable, "a function key -> (coordinates, targets)")
    count = check_int(where, name, count, 1, 2**32 - 1)
    seed = check_unsigned(where, "seed", seed)
    return _drawn(field, batch, count, seed, where, inputs_and_targets if inputs else pair)


def _drawn(
    field: NeuralField, batch: Callable, count: int, seed: int, where: str, checked: Callable
) -> Iterator[Batch]:
    uint32 = dr.uint32_array_t(field.float32)
    for step in range(count):
        key = Key(seed, None, step).traced(uint32)
        with dr.suspend_grad():
            inputs, targets = checked(batch(key), field, where, "batch() returned")
        dr.make_opaque(inputs, targets)
        yield Batch(inputs, targets, key)


def inputs_and_targets(drawn: Any, field: NeuralField, where: str, what: str) -> tuple[Any, list]:
    """The inputs and the components of the targets in ``drawn``, which must be a pair."""
    is_pair = isinstance(drawn, (tuple, list)) and len(drawn) == 2
    ensure(is_pair, f"{where}: {what} a {type(drawn).__name__}; a pair (inputs, targets) is needed.", TypeError)
    inputs, targets = drawn
    kind, leaf = kinds.in_kernels(targets, f"{where}: targets", single=True)
    return inputs, [dr.float32_array_t(leaf)(v) for v in kinds.rows(targets, kind)]


def pair(drawn: Any, field: NeuralField, where: str, what: str) -> tuple[list, list]:
    """Components of the ``(coordinates, targets)`` in ``drawn``, which must have equally many samples."""
    several = isinstance(drawn, (tuple, list))
    given = f"{len(drawn)} things" if several else f"a {type(drawn).__name__}"
    is_pair = several and len(drawn := entries(where, "data", drawn)) == 2
    ensure(is_pair, f"{where}: {what} {given}; a pair (coordinates, targets) is needed.", TypeError)
    parts = []
    for value, part in zip(drawn, ("coordinates", "targets"), strict=True):
        kind, leaf = kinds.in_kernels(value, f"{where}: {part}", single=True)
        single = dr.float32_array_t(leaf)
        parts.append([single(v) for v in kinds.rows(value, kind)])
    coordinates, targets = parts
    count = len(coordinates)
    ensure(count == field.in_features, f"{where}: {what} {count} coordinates, but the field takes {field.in_features}.")
    kinds.check_sizes([*coordinates, *targets], where)
    with dr.suspend_grad():
        outputs = len(list(field(coordinates)))  # traced, not run
    count = len(targets)
    ensure(count == outputs, f"{where}: {what} targets with {count} components, but the field has {outputs} outputs.")
    samples = dr.width([*coordinates, *targets])
    return [kinds.of_width(v, samples) for v in coordinates], [kinds.of_width(v, samples) for v in targets]
