"""Optimizers of a configuration, and their wrappers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from drjit.opt import Optimizer

from ...checks import ensure
from ...training import SGD, Adam, Novograd, exponential
from .keys import Option, choice, read, refuse, section

_MOMENTS = {
    "learning_rate": Option(1e-3, 0),
    "beta1": Option(0.9, 0, 1),
    "beta2": Option(0.999, 0, 1),
    "epsilon": Option(1e-8, 1e-18),  # its square must not vanish in single precision
    "relative_decay": Option(0.0, 0),
    "absolute_decay": Option(0.0, 0),
}
#: Optimizers by their name there: their keys with tiny-cuda-nn's defaults.
OPTIMIZERS: dict[str, dict[str, Option]] = {
    "Adam": {
        **_MOMENTS,
        "l2_reg": Option(1e-8, 0),
        "adabound": Option(False),
        "clipping_magnitude": Option(0.0, 0),
        "gradient_clipping_magnitude": Option(0.0, 0),
        "non_matrix_learning_rate_factor": Option(1.0, 0),
        "non_matrix_l2_reg": Option(0.0, 0),
        "optimize_matrix_params": Option(True),
        "optimize_non_matrix_params": Option(True),
        "skip_zero_grad_non_matrix_params": Option(True),
    },
    "Novograd": _MOMENTS,
    "SGD": {"learning_rate": Option(1e-3, 0), "l2_reg": Option(1e-8, 0)},
    "ExponentialDecay": {
        "decay_base": Option(0.1, 0),
        "decay_start": Option(10000, 0),
        "decay_end": Option(10000000, 0),
        "decay_interval": Option(10000, 1),
        "nested": Option({}),
    },
    "EMA": {"decay": Option(0.99, 0, 1), "full_precision": Option(False), "nested": Option({})},
    "Batched": {"batch_size_multiplier": Option(16, 1, 2**32), "nested": Option({})},
    "Lookahead": {"alpha": Option(0.5, 0), "n_steps": Option(16, 1, 2**32), "nested": Option({})},
}
NO_OPTIMIZERS = {
    "Average": "copies of all parameters would have to be kept, n_samples of them; EMA is the nearest",
    "Composite": "all parameters have one optimizer; Adam's non_matrix and optimize keys tell grids from networks",
    "Shampoo": "it needs roots of matrices, for which Dr.Jit has no solver; drjit.opt.Muon is the nearest",
}
#: Pairs of wrappers, the first around the second, that would mean something else, or nothing.
_NOT_AROUND = {
    ("Batched", "EMA"): "the average is taken at every step; put EMA around Batched",
    ("Lookahead", "Batched"): "steps are counted where parameters move; put Batched around Lookahead",
}


#: Keys, and their names as arguments of :class:`coopnet.training.Adam` and others.
_OURS = {
    "l2_reg": "l2_reg",
    "beta1": "beta_1",
    "beta2": "beta_2",
    "epsilon": "epsilon",
    "relative_decay": "relative_decay",
    "absolute_decay": "absolute_decay",
    "adabound": "adabound",
    "non_matrix_learning_rate_factor": "non_matrix_lr_factor",
    "non_matrix_l2_reg": "non_matrix_l2_reg",
    "optimize_matrix_params": "train_matrices",
    "optimize_non_matrix_params": "train_non_matrices",
    "skip_zero_grad_non_matrix_params": "skip_zero_grad",
}


def read_optimizer(given: dict[str, Any], where: str) -> tuple[Callable[[], Optimizer], Any, float | None]:
    """(factory, learning rate, decay of the moving average)"""
    wrappers: dict[str, dict[str, Any]] = {}  # from the outside in
    while True:
        name, keys = choice(f"{where}.otype", given.get("otype", "Adam"), OPTIMIZERS, NO_OPTIMIZERS)
        values = read(where, given, keys)
        if "nested" not in keys:
            break
        once = name not in wrappers
        ensure(once, f"from_config: {where} is a second {name} around one optimizer; one is possible.")
        for outer in wrappers:
            if reason := _NOT_AROUND.get((outer, name)):
                refuse(where, f"{name} inside {outer}", reason)
        wrappers[name] = values
        where += ".nested"
        given = section(values["nested"], where)
    lr, options = values["learning_rate"], {_OURS[key]: value for key, value in values.items() if key in _OURS}
    kinds: dict[str, type] = {"Adam": Adam, "Novograd": Novograd, "SGD": SGD}
    if name == "Adam":
        limits = {"weight_limit": "clipping_magnitude", "gradient_limit": "gradient_clipping_magnitude"}
        options |= {ours: values[theirs] or None for ours, theirs in limits.items()}  # 0 is none
    elif name == "Novograd":
        options["train_non_matrices"] = False  # tiny-cuda-nn's Novograd does not train grids
    if batched := wrappers.get("Batched"):
        options["accumulate"] = batched["batch_size_multiplier"]
    if slow := wrappers.get("Lookahead"):
        options |= {"lookahead": slow["n_steps"], "alpha": slow["alpha"]}
    factory = partial(kinds[name], lr, **options)
    if decay := wrappers.get("ExponentialDecay"):
        every = decay["decay_interval"]
        lr = exponential(lr, decay["decay_base"], every, decay["decay_start"] - every, decay["decay_end"])
        if batched and [*wrappers].index("Batched") < [*wrappers].index("ExponentialDecay"):
            moves = lr  # it counts the moves of its own optimizer
            lr = lambda step: moves(step // batched["batch_size_multiplier"])  # noqa: E731
    outside = [*wrappers][: [*wrappers].index("EMA")] if "EMA" in wrappers else []
    # an average inside Lookahead is not used: slow weights are used instead
    ema = None if "Lookahead" in outside else wrappers.get("EMA", {}).get("decay")
    return factory, lr, ema
