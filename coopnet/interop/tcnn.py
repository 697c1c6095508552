"""Fields and their training from the JSON configurations of tiny-cuda-nn (see ``docs/config.md``)."""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from drjit.opt import Optimizer

from .. import nn, training
from ..checks import check, check_choice, check_positive, check_text, ensure, is_number, shown
from ..checks.sizes import MAX_FEATURES, check_features
from ..field import NeuralField
from ..training import SGD, Adam, Novograd, exponential
from . import json_files
from .tcnn_padding import padded

_WHERE = "from_config"


@dataclass(frozen=True)
class Configuration:
    """What :func:`from_config` read.

    ``field`` is not built yet; ``loss`` is the name of a loss, or a function for one that has none; ``optimizer()``
    makes a new optimizer; ``lr`` is the learning rate, a number or a function of the step; ``ema`` is the decay per
    step of an exponential moving average of the parameters that inference should use, or ``None``.

    >>> config = cn.from_config(2, 3, "config.json")
    >>> field = config.field.build()
    >>> cn.fit(field, batch, 1000, **config.fit_arguments(field))
    """

    field: NeuralField
    loss: str | Callable[..., Any]
    optimizer: Callable[[], Optimizer]
    lr: float | Callable[[int], float]
    ema: float | None = None

    def fit_arguments(self, field: NeuralField | None = None) -> dict[str, Any]:
        """Keyword arguments of :func:`coopnet.fit`, with an optimizer of its own for every call.

        With ``field``, the built one, and a configuration that has a moving average, a new one is among them as
        ``"ema"``; without, it is left out.
        """
        arguments = {"loss": self.loss, "optimizer": self.optimizer(), "lr": self.lr}
        if field is not None and self.ema is not None:
            arguments["ema"] = training.EMA(field, self.ema)
        return arguments


def from_config(
    n_in: int, n_out: int, config: Mapping[str, Any] | str | Path, *, pad: str = "none", unknown: str = "error"
) -> Configuration:
    """A field, its loss and its optimizer from a JSON configuration of tiny-cuda-nn.

    The sections are ``"encoding"``, ``"network"``, ``"loss"`` and ``"optimizer"``; what a section leaves out, or a
    section left out, has tiny-cuda-nn's default. ``docs/config.md`` says what becomes what and where behavior differs.
    As there, names of components and activations may be in any case, and JSON may have comments, and commas behind the
    last entry. A file may name a ``"parent"``, seen from its folder, for which it is then a merge patch (RFC 7386), as
    in instant-ngp.

    Args:
        n_in: number of coordinates.
        n_out: number of outputs.
        config: a dictionary, JSON text (which starts with a brace), or the path of a file.
        pad: ``"tcnn"`` fills the encoding's features up to a multiple of 16 as tiny-cuda-nn does, mostly with ones, so
            that the network has the same inputs; with ``"none"`` it has the features alone. Parameters of tiny-cuda-nn
            (:meth:`NeuralField.load_tcnn`) need the former.
        unknown: what to do about keys that are not known here, such as those that a patch of ``"otype"`` leaves behind
            and instant-ngp's further sections: raise an ``"error"``, or ``"warn"`` and ignore them.

    Returns:
        A :class:`coopnet.interop.tcnn.Configuration`: ``.field``, ``.loss``, ``.optimizer``, ``.lr``, ``.ema``.

    Raises:
        ValueError: text that is no JSON; a component, key or value that is unknown, named with the nearest that is
            known, or that has no counterpart here, named with the reason; a file among its own parents; a parent of
            what is no file.
        TypeError: ``config`` is none of the above.
        OSError: the file, or a parent of it, cannot be read.

    Warns:
        UserWarning: with ``unknown="warn"``, names all keys that are ignored.

    >>> config = cn.from_config(2, 3, {"network": {"otype": "FullyFusedMLP", "n_neurons": 64, "n_hidden_layers": 2}})
    """
    for name, value in (("n_in", n_in), ("n_out", n_out)):
        check_features(_WHERE, name, check_positive(_WHERE, name, value))
    check_choice(_WHERE, "pad", pad, ("none", "tcnn"))
    check_choice(_WHERE, "unknown", unknown, ("error", "warn"))
    ignored: dict[str, None] = {}  # a set in order
    token = _IGNORED.set(ignored if unknown == "warn" else None)
    try:
        sections = json_files.read(_WHERE, config)
        _known("the configuration", sections, ("encoding", "network", "loss", "optimizer"), _NO_SECTIONS)
        encoding = _encoding(_object(sections.get("encoding", {}), "encoding"), "encoding", n_in)
        if pad == "tcnn":
            encoding = padded(encoding, n_in)
        network = _network(_object(sections.get("network", {}), "network"), n_out)
        loss = _loss(_object(sections.get("loss", {}), "loss"), n_out)
        optimizer, lr, ema = _optimizer(_object(sections.get("optimizer", {}), "optimizer"), "optimizer")
    except RecursionError:
        raise ValueError("from_config: the configuration is nested too deep, or contains itself.") from None
    finally:
        _IGNORED.reset(token)
    if ignored:
        keys = ", ".join(map(shown, ignored))
        warnings.warn(f"from_config: ignored what is not known here: {keys}.", UserWarning, stacklevel=2)
    return Configuration(NeuralField(encoding, network, in_features=n_in), loss, optimizer, lr, ema)


# ---- Reading ------------------------------------------------------------------------------------------------

_OF_NERF = (
    "it belongs to instant-ngp's radiance fields; make a field of its own of it, or ignore it with unknown='warn'"
)
#: Sections of instant-ngp beside those that it shares with tiny-cuda-nn.
_NO_SECTIONS = dict.fromkeys(("dir_encoding", "rgb_network", "distortion_map", "envmap"), _OF_NERF) | {
    "snapshot": "weights are not read from instant-ngp's snapshots; ignore it with unknown='warn'"
}
#: Keys that are not known, while they are ignored.
_IGNORED: ContextVar[dict[str, None] | None] = ContextVar("ignored", default=None)


def _object(value: Any, where: str) -> dict[str, Any]:
    check(isinstance(value, Mapping), _WHERE, where, value, "an object")
    return dict(value)


def _refuse(where: str, value: Any, reason: str) -> None:
    raise ValueError(f"from_config: {where} is {value}, which has no counterpart here: {reason}.")


@dataclass(frozen=True)
class Option:
    """A key of a component: its default, and what values it takes.

    Numbers are at least ``least`` and less than ``below``. ``only`` restricts a key to the default, because of that
    reason. ``names`` are what a string may be, in any case, and what is meant by it.
    """

    default: Any
    least: float = -math.inf
    below: float = math.inf
    only: str | None = None
    names: Mapping[str, Any] | None = None

    def read(self, value: Any, where: str) -> Any:
        """``value``, converted; raises ``ValueError`` if it is of another kind or out of range."""
        default = self.default
        if self.names is not None:
            return _choice(where, value, self.names)[1]
        if isinstance(default, bool):
            check(isinstance(value, bool), _WHERE, where, value, "true or false")
        elif isinstance(default, (int, float)):
            whole = isinstance(default, int)
            fits = is_number(value) and (not whole or value == int(value))
            check(fits, _WHERE, where, value, "an integer" if whole else "a number")
            value = type(default)(value)
            limit = f" and less than {self.below}" if self.below < math.inf else ""
            check(self.least <= value < self.below, _WHERE, where, value, f"at least {self.least}{limit}")
        elif isinstance(default, str):
            value = check_text(_WHERE, where, value)
        same = value.lower() == default.lower() if isinstance(default, str) else value == default
        if self.only is not None and not same:
            _refuse(where, shown(value), self.only)
        return value


def _read(where: str, given: Mapping[str, Any], keys: Mapping[str, Option]) -> dict[str, Any]:
    """Values of all ``keys``, given or default."""
    _known(where, given, ("otype", *keys))
    return {name: key.read(given.get(name, key.default), f"{where}.{name}") for name, key in keys.items()}


def _known(where: str, given: Mapping[str, Any], accepted: tuple[str, ...], refused: Mapping[str, str] = {}) -> None:
    """Raise unless all keys are ``accepted``, or note those that are not, while they are ignored."""
    ignored = _IGNORED.get()
    for name in given:
        if name in accepted:
            continue
        if ignored is not None:
            ignored[str(name) if where == "the configuration" else f"{where}.{name}"] = None
        elif name in refused:
            raise ValueError(f"from_config: {where} has the section {shown(name)}, which is not read: {refused[name]}.")
        else:
            raise ValueError(f"from_config: {where} has the unknown key {shown(name)}{_nearest(name, accepted)}")


def _choice(where: str, value: Any, table: Mapping[str, Any], refused: Mapping[str, str] = {}) -> tuple[str, Any]:
    """The entry of ``table`` with the name ``value``, in any case, and its name as written there."""
    known = {name.lower(): name for name in (*table, *refused)}
    name = known.get(check_text(_WHERE, where, value).lower(), "")
    if name in table:
        return name, table[name]
    if name in refused:
        _refuse(where, shown(value), refused[name])
    raise ValueError(f"from_config: {where} is {shown(value)}, which is unknown{_nearest(value, tuple(table))}")


def _nearest(name: Any, accepted: tuple[str, ...]) -> str:
    lower = {a.lower(): a for a in accepted}
    close = difflib.get_close_matches(str(name).lower(), lower, n=1)
    return f"; {f'did you mean {lower[close[0]]!r}? K' if close else 'k'}nown are {', '.join(accepted)}."


# ---- Encodings ----------------------------------------------------------------------------------------------

_DIMS = {"n_dims_to_encode": Option(0, 0), "dims_to_encode_begin": Option(0, 0)}
_STORAGE = {"Hash": "hash", "Tiled": "tiled", "Tile": "tiled", "Dense": "dense"}
_INTERPOLATION = {"Linear": "linear", "Nearest": "nearest", "Smoothstep": "smoothstep"}
_REDUCTION = {"Concatenation": "concatenation", "Sum": "sum", "Product": "product"}
_GRID = {
    "type": Option("Hash", names=_STORAGE),
    "n_levels": Option(16, 1),
    "n_features": Option(0, 0),  # of all levels, instead of their number; n_grid_features is an older name
    "n_grid_features": Option(0, 0),
    "n_features_per_level": Option(2, 1),
    "log2_hashmap_size": Option(19, 0, 32),
    "base_resolution": Option(16, 1),
    "per_level_scale": Option(2.0),
    "interpolation": Option("Linear", names=_INTERPOLATION),
    "stochastic_interpolation": Option(False, only="interpolation is exact"),
    "fixed_point_pos": Option(False, only="positions are floating point numbers"),
    "hash": Option("CoherentPrime", only="there is one hash function"),
}
_FREQUENCIES = {"n_frequencies": Option(12, 1)}
_NRC = {"n_frequencies": Option(12, 1), "n_bins": Option(4, 1)}

#: Encodings by their name there: (class in coopnet.nn, keys with tiny-cuda-nn's defaults).
ENCODINGS: dict[str, tuple[type, dict[str, Option]]] = {
    "Composite": (nn.Composite, {"nested": Option([]), "reduction": Option("Concatenation", names=_REDUCTION)}),
    "Frequency": (nn.Frequency, _FREQUENCIES),
    "Grid": (nn.Grid, _GRID),
    "HashGrid": (nn.Grid, _GRID),
    "TiledGrid": (nn.Grid, _GRID | {"type": Option("Tiled", names=_STORAGE)}),
    "DenseGrid": (nn.Grid, _GRID | {"type": Option("Dense", names=_STORAGE)}),
    "Identity": (nn.Identity, {"scale": Option(1.0), "offset": Option(0.0)}),
    "OneBlob": (nn.OneBlob, {"n_bins": Option(16, 1)}),
    "SphericalHarmonics": (nn.SphericalHarmonics, {"degree": Option(4, 1)}),
    "TriangleWave": (nn.TriangleWave, _FREQUENCIES),
    "NRC": (nn.Composite, _NRC),
    "OneBlobFrequency": (nn.Composite, _NRC),
}
_NO_ENCODINGS = {
    "Empty": "an encoding without features cannot feed a network",
    "Takikawa": "it needs the octree of a mesh; HashGrid is the nearest",
}


def _component(given: Mapping[str, Any], where: str) -> tuple[type, dict[str, Option]]:
    """Class and keys of an encoding."""
    return _choice(f"{where}.otype", given.get("otype", "OneBlob"), ENCODINGS, _NO_ENCODINGS)[1]


def _encoding(given: dict[str, Any], where: str, n_in: int) -> Any:
    cls, keys = _component(given, where)
    values = _read(where, given, keys)
    if keys is _NRC:
        wave = {"otype": "TriangleWave", "n_frequencies": values["n_frequencies"], "n_dims_to_encode": 3}
        blob = {"otype": "OneBlob", "n_bins": values["n_bins"], "n_dims_to_encode": 5}
        values = {"nested": [wave, blob, {"otype": "Identity"}], "reduction": "concatenation"}
    if cls is nn.Composite:
        return _composite(values, where, n_in)
    if cls is nn.Grid:
        if given_as := next((name for name in ("n_features", "n_grid_features") if name in given), None):
            values["n_levels"] = _n_levels(given, values, given_as, where)
        names = ("n_levels", "n_features_per_level", "base_resolution", "interpolation")
        options = {name: values[name] for name in names} | {"storage": values["type"]}
        options |= {"in_features": n_in, "hashmap_size": 2 ** values["log2_hashmap_size"]}
        growth = values["per_level_scale"] if "per_level_scale" in given else None
        grid = _make(cls, where, per_level_scale=growth, **options)
        grid.per_level_scale = grid._growth()  # the default follows from the other numbers, there and here
        return grid
    fits = cls is not nn.SphericalHarmonics or n_in == 3
    ensure(fits, f"from_config: {where} encodes directions, which have 3 coordinates, but there are {n_in}.")
    return _make(cls, where, **values)


def _n_levels(given: Mapping[str, Any], values: Mapping[str, Any], name: str, where: str) -> int:
    """Levels of a grid that has so many features, ``values[name]``, in all of them together."""
    both = f"from_config: {where} has {name} and n_levels; one follows from the other"
    ensure("n_levels" not in given, f"{both}.")
    n, each = values[name], values["n_features_per_level"]
    check(n > 0 and n % each == 0, _WHERE, f"{where}.{name}", n, f"a multiple of n_features_per_level, {each},")
    return n // each


def _composite(values: dict[str, Any], where: str, n_in: int) -> Any:
    given = values["nested"]
    check(isinstance(given, (list, tuple)) and given, _WHERE, f"{where}.nested", given, "a list of encodings")
    parts: list[tuple[str, dict, dict]] = []  # where each stands, what it is, the coordinates that it encodes
    for i, part in enumerate(given):
        inner = f"{where}.nested[{i}]"
        part = _object(part, inner)
        # before anything is concluded from the absence of a key: it may be misspelled
        _known(inner, part, ("otype", *_DIMS, *_component(part, inner)[1]))
        dims = {name: key.read(part.pop(name), f"{inner}.{name}") for name, key in _DIMS.items() if name in part}
        parts.append((inner, part, dims))
    left = n_in - sum(dims.get("n_dims_to_encode", 0) for *_, dims in parts)
    open_ones = [i for i, (*_, dims) in enumerate(parts) if "n_dims_to_encode" not in dims]
    placed = any("dims_to_encode_begin" in dims for *_, dims in parts)
    rule = "one encoding may leave it out, and none beside dims_to_encode_begin"
    clear = len(open_ones) <= (0 if placed else 1)
    ensure(clear, f"from_config: {where}.nested{open_ones} have no n_dims_to_encode; {rule}.")
    fits = left >= 0 or placed
    ensure(fits, f"from_config: {where}.nested encode {n_in - left} coordinates, but there are {n_in}.")
    nested, begins, sizes, end = [], [], [], 0
    for inner, part, dims in parts:
        begin, n = dims.get("dims_to_encode_begin", end), dims.get("n_dims_to_encode", left)
        end = begin + n
        ensure(end <= n_in, f"from_config: {inner} encodes up to coordinate {end} of {n_in}.")
        if n > 0:
            nested.append(_encoding(part, inner, n))
            begins.append(begin)
            sizes.append(n)
    if len(nested) == 1 and sizes == [n_in]:
        return nested[0]
    options = {"n_dims_to_encode": sizes, "dims_to_encode_begin": begins if placed else None, "in_features": n_in}
    return _make(nn.Composite, where, nested=nested, reduction=values["reduction"], **options)


def _make(cls: type, where: str, **arguments: Any) -> Any:
    try:
        return cls(**arguments)
    except ValueError as error:
        raise ValueError(f"from_config: {where}: {error}") from None


# ---- Networks, losses ---------------------------------------------------------------------------------------

#: Networks by their name there; the value says whether only certain widths are allowed.
NETWORKS = {"FullyFusedMLP": True, "MegakernelMLP": True, "CutlassMLP": False, "MLP": False}
#: Activations by their name there. Its Softplus and Squareplus have a sharpness of 10 (``K_ACT``).
ACTIVATIONS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "ReLU": nn.ReLU,
    "LeakyReLU": nn.LeakyReLU,
    "SiLU": nn.SiLU,
    "Exponential": nn.Exp,
    "Sine": nn.Sine,
    "Sigmoid": nn.Sigmoid,
    "Squareplus": lambda: nn.Squareplus(10.0),
    "Softplus": lambda: nn.Softplus(10.0),
    "Tanh": nn.Tanh,
}


_MLP = {
    "activation": Option("ReLU", names=ACTIVATIONS),
    "output_activation": Option("None", names=ACTIVATIONS),
    "n_neurons": Option(128, 1, MAX_FEATURES + 1),
    "n_hidden_layers": Option(5, 0, 2**10),  # one kernel holds all of them
}


def _network(given: dict[str, Any], n_out: int) -> Any:
    name, fused = _choice("network.otype", given.get("otype", "MLP"), NETWORKS)
    values = _read("network", given, _MLP)
    width, depth = values["n_neurons"], values["n_hidden_layers"]
    fits = not fused or (width in (16, 32, 64, 128) and depth >= 1)
    cure = f"{name} has 16, 32, 64 or 128 neurons and a hidden layer. Use CutlassMLP for others"
    ensure(fits, f"from_config: network has n_neurons {width} and n_hidden_layers {depth}; {cure}.")
    hidden, output = values["activation"](), values["output_activation"]()
    sine = isinstance(hidden, nn.Sine)
    net = nn.MLP(-1, n_out, width, depth, hidden, output, init="siren" if sine else "xavier_uniform")
    if sine:
        net.layers[0].gain = 30.0  # sin(x) instead of sin(30 x): the first layer has the frequency
    return net


def _huber(y: Any, target: Any, *, pdf: Any = None) -> Any:
    """instant-ngp's ``"Huber"``: the squared error up to an error of 0.1, then a line."""
    return 2 * training.huber(y, target, 0.1, pdf=pdf)


#: Losses by their name there; the last three are instant-ngp's for radiance fields, by formulas in its
#: ``nerf_device.cuh``.
LOSSES: dict[str, str | Callable[..., Any]] = {
    "L1": "l1",
    "L2": "l2",
    "RelativeL1": "relative_l1",
    "RelativeL2": "relative_l2",
    "RelativeL2Luminance": "relative_l2_luminance",
    "MAPE": "mape",
    "SMAPE": "smape",
    "CrossEntropy": "cross_entropy",
    "Variance": "variance",
    "Huber": _huber,
    "SmoothL1": _huber,
    "LogL1": "log_l1",
}


def _loss(given: dict[str, Any], n_out: int) -> str | Callable[..., Any]:
    name, loss = _choice("loss.otype", given.get("otype", "RelativeL2"), LOSSES)
    _read("loss", given, {})
    fits = loss != "relative_l2_luminance" or n_out >= 3
    ensure(fits, f"from_config: loss.otype is {name!r}, which needs at least 3 outputs, not {n_out}.")
    return loss


# ---- Optimizers ---------------------------------------------------------------------------------------------

#: Optimizers by their name there: their keys with tiny-cuda-nn's defaults.
OPTIMIZERS: dict[str, dict[str, Option]] = {
    "Adam": {
        "learning_rate": Option(1e-3, 0),
        "beta1": Option(0.9, 0, 1),
        "beta2": Option(0.999, 0, 1),
        "epsilon": Option(1e-8, 1e-18),  # its square must not vanish in single precision
        "l2_reg": Option(1e-8, 0),
        "relative_decay": Option(0.0, 0),
        "absolute_decay": Option(0.0, 0),
        "adabound": Option(False),
        "clipping_magnitude": Option(0.0, 0),
        "gradient_clipping_magnitude": Option(0.0, 0),
        "non_matrix_learning_rate_factor": Option(1.0, 0),
        "non_matrix_l2_reg": Option(0.0, 0),
        "optimize_matrix_params": Option(True),
        "optimize_non_matrix_params": Option(True),
        "skip_zero_grad_non_matrix_params": Option(True),
    },
    "Novograd": {
        "learning_rate": Option(1e-3, 0),
        "beta1": Option(0.9, 0, 1),
        "beta2": Option(0.999, 0, 1),
        "epsilon": Option(1e-8, 1e-18),
        "relative_decay": Option(0.0, 0),
        "absolute_decay": Option(0.0, 0),
    },
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
_NO_OPTIMIZERS = {
    "Average": "copies of all parameters would have to be kept, n_samples of them; EMA is the nearest",
    "Composite": "all parameters have one optimizer; Adam's non_matrix and optimize keys tell grids from networks",
    "Shampoo": "it needs roots of matrices, for which Dr.Jit has no solver; drjit.opt.Muon is the nearest",
}
#: Pairs of wrappers of which the first means something else around the second than inside it, or nothing.
_NOT_AROUND = {
    ("Batched", "EMA"): "the average is taken at every step; put EMA around Batched",
    ("Lookahead", "Batched"): "steps are counted where parameters move; put Batched around Lookahead",
}


#: Keys, and what :class:`coopnet.training.Adam` and its relatives call them.
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


def _optimizer(given: dict[str, Any], where: str) -> tuple[Callable[[], Optimizer], Any, float | None]:
    """(factory, learning rate, decay of the moving average)"""
    wrappers: dict[str, dict[str, Any]] = {}  # from the outside in
    while True:
        name, keys = _choice(f"{where}.otype", given.get("otype", "Adam"), OPTIMIZERS, _NO_OPTIMIZERS)
        values = _read(where, given, keys)
        if "nested" not in keys:
            break
        once = name not in wrappers
        ensure(once, f"from_config: {where} is a second {name} around one optimizer; one is possible.")
        for outer in wrappers:
            if reason := _NOT_AROUND.get((outer, name)):
                _refuse(where, f"{name} inside {outer}", reason)
        wrappers[name] = values
        where += ".nested"
        given = _object(values["nested"], where)
    lr, options = values["learning_rate"], {_OURS[key]: value for key, value in values.items() if key in _OURS}
    kinds: dict[str, type] = {"Adam": Adam, "Novograd": Novograd, "SGD": SGD}
    if name == "Adam":
        limits = {"weight_limit": "clipping_magnitude", "gradient_limit": "gradient_clipping_magnitude"}
        options |= {ours: values[theirs] or None for ours, theirs in limits.items()}  # 0 is none
    elif name == "Novograd":
        options["train_non_matrices"] = False  # it knows the layers of networks only
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
    # the slow weights of what is around an average are used instead of it
    ema = None if "Lookahead" in outside else wrappers.get("EMA", {}).get("decay")
    return factory, lr, ema
