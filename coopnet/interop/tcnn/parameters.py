"""The parameters of tiny-cuda-nn's models: one flat array, of the network's matrices and then of the encoding's grids.

Matrices are stored row by row, ``(out, in)``, from the first layer to the last, whose number of rows is padded to a
multiple of 16. The grids of the encoding follow, from the first to the last, level by level, each entry's features side
by side. The order is the same here, without the padding rows, which nothing reads.

The two functions are methods of :class:`coopnet.NeuralField`, which are added to it here, so that fields do not depend
on other systems.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ... import nn
from ...checks import check, check_type, ensure, on_host
from ...field import NeuralField, check_built
from ...nn.arguments import arguments
from ...nn.parameters import Parameter, parameters
from ...nn.tree import children
from .configuration import Configuration, from_config
from .padding import ALIGNMENT, next_multiple

#: Arguments of layers that do not change results for given parameters: sizes known otherwise, and initial values.
_NOT_COMPARED = {"in_features", "init", "gain", "init_scale", "max_level"}


def load_tcnn(self: NeuralField, params: Any, config: Configuration | Mapping[str, Any] | str | Path) -> None:
    """Take the parameters of a model that tiny-cuda-nn has trained.

    They are ``model.params`` of its PyTorch bindings, or ``params_binary`` of a snapshot (``numpy.frombuffer(...,
    numpy.float16)``). ``docs/config.md`` has their layout. An optimizer has parameters of its own: follow with
    ``opt.update(field)``. The field's ``bounds`` are not parameters, and stay: with them, it computes at ``p`` what the
    model does at ``(p - low) / (high - low)``.

    Args:
        params: 1D array of floating point numbers, NumPy's or one that can become NumPy's (``__array__``, DLPack); in
            half, single or double precision. A tensor of PyTorch may be on the GPU.
        config: an argument or the result of :func:`coopnet.from_config`. The field must be that of the configuration,
            read with ``pad="tcnn"``.

    Raises:
        ValueError: the field is not built, or not that of the configuration; an array of another length or shape;
            numbers too large for half precision; a tiled grid with levels that tiny-cuda-nn cannot number.
        TypeError: no array of floating point numbers.

    >>> config = {"encoding": {"otype": "OneBlob"}, "network": {"otype": "FullyFusedMLP", "n_neurons": 16}}
    >>> field = cn.from_config(2, 3, config, pad="tcnn").field.build()
    >>> field.load_tcnn(np.zeros(32 * 16 + 4 * 16 * 16 + 16 * 16), config)
    """
    where = "NeuralField.load_tcnn"
    pieces = list(_pieces(self, where))
    _check_same(self, config, where)
    given = _numbers(params, where)
    sizes = [p.shape[1] * rows if p.is_matrix else p.shape[0] for p, rows in pieces]
    each = ", ".join(f"{n} for {p.name}" for (p, _), n in zip(pieces, sizes, strict=True))
    valid = given.size == sum(sizes)
    ensure(valid, f"{where}: params has {given.size} numbers; {sum(sizes)} are needed: {each}.")
    split = np.split(given, np.cumsum(sizes)[:-1])
    parts = [a.reshape(rows, -1) if p.is_matrix else a for (p, rows), a in zip(pieces, split, strict=True)]
    values = [part[: p.shape[0]] for (p, _), part in zip(pieces, parts, strict=True)]
    for (p, _), value in zip(pieces, values, strict=True):
        p.fitting(value, where)  # before anything is changed
    for (p, _), value in zip(pieces, values, strict=True):
        p.write(value, where)
    last, unread = [(p, part) for (p, _), part in zip(pieces, parts, strict=True) if p.is_matrix][-1]
    self._tcnn_rows = unread[last.shape[0] :].astype(np.float32)


def to_tcnn(self: NeuralField) -> np.ndarray:
    """The parameters as tiny-cuda-nn has them, the inverse of :meth:`load_tcnn`.

    The field's ``bounds`` are not among them: if it has bounds, evaluate the model at coordinates in the unit cube,
    ``(p - low) / (high - low)``.

    Returns:
        1D array in single precision. Padding rows, which nothing reads, are those of :meth:`load_tcnn`, or zeros.

    Raises:
        ValueError: the field is not built; a network that is not a :class:`MLP` without biases, inputs of it that are
            not a multiple of 16, or an encoding with parameters that is not a :class:`Grid`.

    >>> field = cn.from_config(2, 3, {}, pad="tcnn").field.build()
    >>> np.save("params.npy", field.to_tcnn())
    """
    where = "NeuralField.to_tcnn"
    parts = []
    for p, rows in _pieces(self, where):
        part = p.numpy(where).astype(np.float32)
        if p.is_matrix and rows > len(part):
            unread = np.zeros((rows - len(part), part.shape[1]), np.float32)
            kept = getattr(self, "_tcnn_rows", unread)
            part = np.concatenate([part, kept if kept.shape == unread.shape else unread])
        parts.append(part.ravel())
    return np.concatenate(parts)


NeuralField.load_tcnn = load_tcnn
NeuralField.to_tcnn = to_tcnn


def _pieces(field: NeuralField, where: str) -> Iterator[tuple[Parameter, int]]:
    """The parameters in tiny-cuda-nn's order, and their numbers of rows there; raises if it has no such models."""
    check_built(where, field)
    net = field.network
    plain = isinstance(net, nn.Sequential) and all(isinstance(v, nn.Linear | nn.Activation) for v in net.layers)
    matrices, tables = list(parameters(net, "network")), list(parameters(field.encoding, "encoding"))
    plain = plain and all(p.is_matrix for p in matrices)
    ensure(
        plain and matrices,
        f"{where}: the network is none of tiny-cuda-nn's; an MLP without biases and dropouts is needed.",
    )
    width = matrices[0].shape[1]
    hint = f"multiples of {ALIGNMENT} are needed: read the configuration with from_config(..., pad='tcnn')"
    ensure(width % ALIGNMENT == 0, f"{where}: the encoding gives {width} features, and the network takes them; {hint}.")
    for p in matrices:
        yield p, next_multiple(p.shape[0], ALIGNMENT) if p is matrices[-1] else p.shape[0]
    grids = [layer for layer in children(field.encoding) if isinstance(layer, nn.Grid)]
    known = "the encoding has parameters that tiny-cuda-nn does not know; those of coopnet.Grid it does"
    ensure(len(grids) == len(tables), f"{where}: {known}.")
    for grid, p in zip(grids, tables, strict=True):
        for i, level in enumerate(grid.grid.value.levels):
            valid = grid.storage != "tiled" or level.resolution**grid.in_features < 2**32
            one = f"level {i} of {p.name} has more than 2^32 vertices, for which tiny-cuda-nn has one entry altogether"
            ensure(valid, f"{where}: {one}.")
        yield p, 1


def _numbers(params: Any, where: str) -> np.ndarray:
    """``params`` as a 1D array of floating point numbers."""
    params = on_host(params)
    try:
        array = np.from_dlpack(params) if not hasattr(params, "__array__") and hasattr(params, "__dlpack__") else params
        array = np.asarray(array)
    except Exception:
        array = np.empty(0, object)
    needed = "an array of floating point numbers"
    check(array.dtype.kind == "f", where, "params", params, needed, TypeError)
    ensure(array.ndim == 1, f"{where}: params has shape {array.shape}; a flat array is needed.")
    return array


def _check_same(field: NeuralField, config: Any, where: str) -> None:
    """Raise ``ValueError`` unless ``field`` is that of ``config``."""
    if not isinstance(config, Configuration):
        check_type(where, "config", config, (Mapping, str, Path), "a configuration, or what from_config() returned")
        outputs = [p.shape[0] for p in parameters(field.network)][-1]
        config = from_config(field.in_features, outputs, config, pad="tcnn")
    for name in ("encoding", "network"):
        current, needed = (_layout(getattr(f, name)) for f in (field, config.field))
        if current != needed:
            hint = "build the one that from_config(..., pad='tcnn') gives"
            raise ValueError(f"{where}: the field's {name} is not that of the configuration; {hint}.")


def _layout(value: Any) -> Any:
    """The arguments that determine what a layer, allocated or not, and the layers in it compute."""
    if isinstance(value, nn.Sequential):
        return [_layout(v) for v in value.layers]
    if isinstance(value, nn.Module):
        options = {k: _layout(v) for k, v in arguments(value).items() if k not in _NOT_COMPARED}
        return type(value).__name__, options
    return [_layout(v) for v in value] if isinstance(value, (list, tuple)) else value
