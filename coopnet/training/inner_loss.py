"""The loss of a step, which the engine computes between the forward and the backward pass of a network."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable
from typing import Any

import drjit as dr

from ..call import converted, result_type
from ..engine import InnerLoss
from ..field import NeuralField
from ..nn.sequential import known_ops
from .losses import components


def samplewise(loss: Callable) -> bool:
    """Is ``loss`` marked as a function that treats every sample separately, and depends on its arguments only?"""
    if isinstance(loss, functools.partial):
        given = [*loss.args, *loss.keywords.values()]
        return samplewise(loss.func) and all(isinstance(v, numbers.Real) for v in given)
    return getattr(loss, "samplewise", False)


def loss_in_kernel(field: NeuralField, loss: Callable, drawn: Any, straight: bool) -> InnerLoss | None:
    """``loss`` for the batch ``drawn``, as a function of the network's outputs; ``None`` if it depends on anything
    else. ``straight``: was the batch traced without symbolic loops, conditionals and calls?
    """
    ops = known_ops([field.network])
    if ops is None or not samplewise(loss):
        return None
    coordinates, targets, *pdf = drawn
    parts = [components(targets, "fit: targets of batch()")]
    parts += [[p] if isinstance(p, numbers.Real) else components(p, "fit: pdf") for p in pdf]
    arrays = [v for part in parts for v in part if isinstance(v, dr.ArrayBase)]
    if dr.grad_enabled(coordinates, arrays):
        return None

    def function(outputs: list, inputs: list) -> Any:
        given = iter(inputs)
        targets, *pdf = [[next(given) if isinstance(v, dr.ArrayBase) else v for v in part] for part in parts]
        result = result_type(field.output, type(outputs[0]))
        return loss(converted(outputs, result), targets, **({"pdf": pdf[0]} if pdf else {}))

    return InnerLoss(ops, function, arrays, straight)
