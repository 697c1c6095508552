"""Fields and their training from the JSON configurations of tiny-cuda-nn (see ``docs/config.md``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drjit.opt import Optimizer

from ... import training
from ...bounds import check_count, checked
from ...checks import check_choice, check_positive, shown
from ...checks.sizes import check_features
from ...checks.warn import warn
from ...field import NeuralField
from . import json_files
from .encodings import read_encoding
from .keys import IGNORED, WHERE, check_known, section
from .losses import read_loss
from .networks import read_network
from .optimizers import read_optimizer
from .padding import padded

_OF_NERF = (
    "it belongs to instant-ngp's radiance fields; make a field of its own of it, or ignore it with unknown='warn'"
)
#: The factor by which tiny-cuda-nn multiplies losses.
LOSS_SCALE = 128.0
#: Sections of instant-ngp beside those that it shares with tiny-cuda-nn.
_NO_SECTIONS = dict.fromkeys(("dir_encoding", "rgb_network", "distortion_map", "envmap"), _OF_NERF) | {
    "snapshot": "weights are not read from instant-ngp's snapshots; ignore it with unknown='warn'"
}


@dataclass(frozen=True)
class Configuration:
    """The result of :func:`from_config`.

    ``field`` is not built yet. ``loss`` is the name of a loss, or a function if the loss differs from all of coopnet's,
    for example in the derivative where prediction and target are equal. ``optimizer()`` makes a new optimizer. ``lr``
    is the learning rate, a number or a function of the step. ``ema`` is the decay per step of an exponential moving
    average of the parameters, to be used for inference, or ``None``.

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
        """Keyword arguments of :func:`coopnet.fit`, with a new optimizer for every call.

        If ``field``, the built one, is given and the configuration has a moving average, a new average is among them as
        ``"ema"``. ``"loss_scale"`` is tiny-cuda-nn's. It matters because tiny-cuda-nn's optimizers skip entries of
        grids whose gradient is 0, also if it is 0 only because half precision rounded it.
        """
        arguments = {"loss": self.loss, "optimizer": self.optimizer(), "lr": self.lr, "loss_scale": LOSS_SCALE}
        if field is not None and self.ema is not None:
            arguments["ema"] = training.EMA(field, self.ema, debias=True)
        return arguments


def from_config(
    n_in: int, n_out: int, config: Mapping[str, Any] | str | Path, *, pad: str = "none", unknown: str = "error",
    bounds: Any = None,
) -> Configuration:  # fmt: skip
    """A field, its loss and its optimizer from a JSON configuration of tiny-cuda-nn.

    The sections are ``"encoding"``, ``"network"``, ``"loss"`` and ``"optimizer"``. Sections and keys that are left out
    have tiny-cuda-nn's defaults. ``docs/config.md`` lists the counterparts, and differences in behavior.
    As in tiny-cuda-nn, names of components and activations may be in any case, and JSON may have comments, and commas
    after the last entry. A file may name a ``"parent"``, relative to its folder; the file is then a merge patch (RFC
    7386) for it, as in instant-ngp.

    Args:
        n_in: number of coordinates.
        n_out: number of outputs.
        config: a dictionary, JSON text (which starts with a brace), or the path of a file.
        pad: ``"tcnn"`` fills the encoding's features up to a multiple of 16 as in tiny-cuda-nn, mostly with ones, so
            that the network has the same inputs. Parameters of tiny-cuda-nn (:meth:`NeuralField.load_tcnn`) need this.
            ``"none"`` does not pad.
        unknown: what to do about unknown keys, such as those that a patch of ``"otype"`` leaves behind
            and instant-ngp's further sections: raise an ``"error"``, or ``"warn"`` and ignore them.
        bounds: the box ``(low, high)`` of the coordinates, see :class:`coopnet.NeuralField`. Configurations have no
            bounds: their coordinates are in the unit cube.

    Returns:
        A :class:`coopnet.interop.tcnn.Configuration`: ``.field``, ``.loss``, ``.optimizer``, ``.lr``, ``.ema``.

    Raises:
        ValueError: text that is not JSON; an unknown component, key or value (the message names the nearest known one);
            a component without a counterpart here (the message gives the reason); a file among its own parents; a
            ``"parent"`` in a dictionary or text.
        TypeError: ``config`` is none of the above.
        OSError: the file, or a parent of it, cannot be read.

    Warns:
        UserWarning: with ``unknown="warn"``, names all keys that are ignored.

    >>> config = cn.from_config(2, 3, {"network": {"otype": "FullyFusedMLP", "n_neurons": 64, "n_hidden_layers": 2}})
    """
    n_in, n_out = check_positive(WHERE, "n_in", n_in), check_positive(WHERE, "n_out", n_out)
    for name, value in (("n_in", n_in), ("n_out", n_out)):
        check_features(WHERE, name, value)
    check_choice(WHERE, "pad", pad, ("none", "tcnn"))
    check_choice(WHERE, "unknown", unknown, ("error", "warn"))
    bounds = checked(WHERE, bounds)
    check_count(WHERE, bounds, n_in)
    ignored: dict[str, None] = {}  # a set in order
    token = IGNORED.set(ignored if unknown == "warn" else None)
    try:
        sections = json_files.read(WHERE, config)
        check_known("the configuration", sections, ("encoding", "network", "loss", "optimizer"), _NO_SECTIONS)
        encoding = read_encoding(section(sections.get("encoding", {}), "encoding"), "encoding", n_in)
        if pad == "tcnn":
            encoding = padded(encoding, n_in)
        network = read_network(section(sections.get("network", {}), "network"), n_out)
        loss = read_loss(section(sections.get("loss", {}), "loss"), n_out)
        optimizer, lr, ema = read_optimizer(section(sections.get("optimizer", {}), "optimizer"), "optimizer")
    except RecursionError:
        raise ValueError("from_config: the configuration is nested too deep, or contains itself.") from None
    finally:
        IGNORED.reset(token)
    if ignored:
        keys = ", ".join(map(shown, ignored))
        warn(f"from_config: ignored what is not known here: {keys}.", UserWarning)
    return Configuration(NeuralField(encoding, network, in_features=n_in, bounds=bounds), loss, optimizer, lr, ema)
