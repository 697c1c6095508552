"""Pickles of fields and networks, with the same contents as checkpoints.

Objects with parameters are pickled as a description and plain matrices, and built again when they are unpickled. The
reason is that a packed layout is valid for one GPU only, and the reading process may have another backend. Networks
without parameters are pickled like other Python objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from .. import backend as backends
from ..field import NeuralField, storage
from ..jit.scopes import check_outside
from ..nn.linear import Linear
from ..nn.module import Module
from ..nn.parameters import parameters
from .architecture import construct, construct_layer, describe, describe_layer

_TENSORS = {dr.VarType.Float16: "TensorXf16", dr.VarType.Float32: "TensorXf", dr.VarType.Float64: "TensorXf64"}


def _reduced(self: Module, protocol: Any) -> Any:
    """The result of ``__reduce_ex__``: a function, and the arguments with which it makes the object again."""
    weights = list(parameters(self))
    built = isinstance(self, NeuralField) and self.precision is not None
    if not weights or (isinstance(self, NeuralField) and not built):
        return object.__reduce_ex__(self, protocol)
    check_outside("pickle")
    backend = dr.backend_v(weights[0].storage).name.lower()
    values = {p.name: p.numpy("pickle").copy() for p in weights}
    if built:
        assert isinstance(self, NeuralField)
        return _field, (describe(self), values, backend, self.precision)
    # the precision is that of matrices: tables may be in single precision in a half-precision network
    matrices = [p for p in weights if isinstance(p.owner, Linear)] or weights
    views = [p.value for p in weights if isinstance(p.value, drnn.MatrixView)]
    layout = next((v.layout for v in views if v.layout != "row_major"), "training") if views else None
    return _network, (describe_layer(self), values, backend, _TENSORS[dr.type_v(matrices[0].storage)], layout)


def _field(description: dict, values: Mapping[str, np.ndarray], backend: str, precision: str) -> NeuralField:
    there = backend in backends.available()
    dtype, precision = storage(backend if there else "auto", precision if there else "auto", "pickle")
    field = construct(description).allocate(dtype, precision)
    _fill(field, values)
    return field.pack()


def _network(description: dict, values: Mapping[str, np.ndarray], backend: str, tensor: str, layout: str | None) -> Any:
    dtype = getattr(backends.namespace(backends.require(backend)), tensor)
    net = construct_layer(description).alloc(dtype)
    _fill(net, values)
    return net if layout is None else drnn.pack(net, layout=layout)


def _fill(module: Any, values: Mapping[str, np.ndarray]) -> None:
    for p in parameters(module):
        p.fill(values[p.name], "pickle")


setattr(Module, "__reduce_ex__", _reduced)  # noqa: B010 - coopnet.nn must not import io
