"""Linear layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..checks import NetworkError, check_choice, check_flag, check_in_features, check_number, check_same_backend, ensure
from ..checks.sizes import check_entries, check_features
from ..engine import Affine, evaluate
from ..engine.strategies import reads_transposed
from ..jit import kinds
from ..jit.layout import Layout
from ..jit.unpacked import Constant
from ..random.key import Key
from .module import Module


class Linear(drnn.Linear, Module):
    r"""Affine map :math:`y = A x + b` of each sample.

    Biases start at 0, weights at ``gain`` times random numbers, with :math:`n, m` the widths of input and output:

    ===================== ============================================ ==============================================
    ``init``              law                                          source
    ===================== ============================================ ==============================================
    ``"xavier_uniform"``  uniform in :math:`\pm\sqrt{6 / (n + m)}`     Glorot and Bengio 2010, eq. 16
    ``"xavier_normal"``   normal, variance :math:`2 / (n + m)`         Glorot and Bengio 2010, eq. 12
    ``"kaiming_uniform"`` uniform in :math:`\pm\sqrt{6 / n}`           He et al. 2015, *Delving deep*, eq. 10
    ``"kaiming_normal"``  normal, variance :math:`2 / n`               He et al. 2015, *Delving deep*, eq. 10
    ``"siren"``           uniform in :math:`\pm\sqrt{6 / n}`           Sitzmann et al. 2020, after ``Sine(1 / gain)``
    ``"siren_first"``     uniform in :math:`\pm 1 / n`                 Sitzmann et al. 2020, section 3.2
    ``"zero"``            0
    ===================== ============================================ ==============================================

    Args:
        in_features: width of the input; -1 takes it from the layer before.
        out_features: width of the output; -1 keeps the width.
        bias: add ``b``?
        init: a name above.
        gain: factor of the initial weights.

    An input is a ``CoopVec`` (weights packed by ``drjit.nn.pack``) or a tensor ``(in_features, samples)`` (not packed),
    of the type of the weights. The output has the same kind and type.

    Raises:
        ValueError: arguments out of range; an input of another width.
        TypeError: an input of another kind, type or backend.
        NetworkError: no weights yet; a tensor for packed weights and vice versa; both widths unknown in ``alloc``.
            It is a ``ValueError``, a ``TypeError`` and, as in ``drjit.nn``, a ``RuntimeError``.

    >>> net = cn.Sequential(cn.Linear(2, 64, init="kaiming_uniform"), cn.ReLU(), cn.Linear(64, 1, init="zero"))
    """

    DRJIT_STRUCT = {**drnn.Linear.DRJIT_STRUCT, "layout": Constant, "init": str, "gain": float}

    def __init__(
        self, in_features: int = -1, out_features: int = -1, bias: bool = True, init: str = "xavier_uniform",
        gain: float = 1.0,
    ):  # fmt: skip
        in_features, out_features = (
            check_features("Linear", name, check_in_features("Linear", value, name))
            for name, value in (("in_features", in_features), ("out_features", out_features))
        )
        check_choice("Linear", "init", init, tuple(INITS))
        super().__init__(in_features, out_features, check_flag("Linear", "bias", bias))
        self.init, self.gain = init, check_number("Linear", "gain", gain)
        self.layout = Constant()

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        kind, leaf = kinds.kind(x, "Linear")
        if kind == kinds.COOPVEC:
            self.output_width(len(x), leaf, key)
            return evaluate([self.op()], [x], key)[0]
        given = {kinds.ARRAYS: "Dr.Jit arrays", kinds.NUMPY: "a NumPy array"}.get(kind, kind)
        accepted = "accepted are a drjit.nn.CoopVec and a tensor of shape (features, samples)"
        other = f"Linear: got {given}; {accepted}. A NeuralField takes arrays and lists, too."
        ensure(kind == kinds.TENSOR, other, TypeError)
        if self.weights is None or isinstance(self.weights, drnn.MatrixView):
            raise refused(self, x)
        check_input(self, x.shape[0], leaf)
        weights = self.weights if self.weights.shape[1] == self.config[0] else self.weights[:, : self.config[0]]
        y = weights @ x
        return y if self.bias is None else y + dr.reshape(self.bias, (self.bias.shape[0], 1))

    def op(self) -> Affine:
        return Affine(self)

    def output_width(self, width: int, leaf: type, key: Key | None) -> int:
        return checked_width(self, width, leaf)

    def _alloc(self, dtype: type, size: int, rng: Any, /) -> tuple[Linear, int]:  # type: ignore[override]
        n_in, n_out, bias = self.config
        wrong = f"Linear: in_features is {n_in}, but the layer before it (or the input) has {size} features"
        ensure(size < 1 or n_in < 1 or size == n_in, f"{wrong}; give in_features={size} or -1.")
        n_in = size if n_in < 0 else n_in
        unknown = "in_features is -1 and the size of the input is unknown"
        ensure(n_in > 0, f"Linear: {unknown}; call alloc(dtype, size).", NetworkError)
        n_out = n_in if n_out < 0 else n_out
        on_host = dr.backend_v(dtype) == dr.JitBackend.LLVM
        check_entries("Linear", "weights", (n_out, n_in), dr.itemsize_v(dtype), on_host)
        layer = Linear(n_in, n_out, bias, self.init, self.gain)
        numbers = _initial(self.init, self.gain, dr.float32_array_t(dr.array_t(dtype)), n_in, n_out, rng)
        layer._set_weights(dtype, numbers, n_out, n_in)
        if bias:
            layer.bias = dr.zeros(dtype, n_out)
        if dr.backend_v(dtype) == dr.JitBackend.CUDA and dr.is_half_v(dtype):
            shape = layer.weights.shape
            layer.layout = Constant(Layout.find(dtype, shape, bias, reads_transposed(shape)))
        return layer, n_out

    def _set_weights(self, dtype: type, numbers: Any, n_out: int, n_in: int) -> None:
        """Make ``numbers``, row by row, the weights of a layer that is not packed."""
        weights = dtype(dr.array_t(dtype)(numbers), (n_out, n_in))
        if n_in == 1 and dr.backend_v(dtype) == dr.JitBackend.CUDA:
            # pack() treats a matrix of one column as a vector, by which OptiX cannot multiply: add a column of zeros
            self.weights = dr.zeros(dtype, (n_out, 2))
            self.weights[:, :1] = weights.array
        else:
            self.weights = weights

    def __repr__(self) -> str:
        extra = "" if self.init == "xavier_uniform" else f", init={self.init!r}"
        extra += "" if self.gain == 1 else f", gain={self.gain}"
        return drnn.Linear.__repr__(self)[:-1] + extra + ")"


#: Initial weights by name: (law, function of input and output width that returns the law's bound or deviation).
INITS: dict[str, tuple[str, Callable[[int, int], float]]] = {
    "xavier_uniform": ("uniform", lambda n, m: math.sqrt(6 / (n + m))),
    "xavier_normal": ("normal", lambda n, m: math.sqrt(2 / (n + m))),
    "kaiming_uniform": ("uniform", lambda n, m: math.sqrt(6 / n)),
    "kaiming_normal": ("normal", lambda n, m: math.sqrt(2 / n)),
    "siren": ("uniform", lambda n, m: math.sqrt(6 / n)),
    "siren_first": ("uniform", lambda n, m: 1 / n),
    "zero": ("zero", lambda n, m: 0.0),
}


def uniform(leaf: type, count: int, bound: float, rng: Any) -> Any:
    """``count`` random numbers of type ``leaf``, uniform in ``[-bound, bound]``."""
    return dr.fma(rng.random(leaf, count), 2 * bound, -bound)


def _initial(init: str, gain: float, leaf: type, n_in: int, n_out: int, rng: Any) -> Any:
    law, width = INITS[init]
    scale = gain * width(n_in, n_out)
    if law == "zero":
        return dr.zeros(leaf, n_in * n_out)
    if law == "normal":
        return rng.normal(leaf, n_in * n_out, scale=scale)
    return uniform(leaf, n_in * n_out, scale, rng)


def checked_width(layer: drnn.Linear, features: int, leaf: type, key: Key | None = None) -> int:
    """Width of the output; raises unless ``layer`` is packed and takes vectors of ``features`` values of ``leaf``."""
    weights = layer.weights
    if not isinstance(weights, drnn.MatrixView):
        raise refused(layer, drnn.CoopVec(dr.zeros(leaf)))
    if features == layer.config[0] and type(weights.buffer) is leaf:
        check_precision(leaf, "Linear")
    else:
        check_input(layer, features, leaf)
    return int(weights.shape[0])


def refused(layer: drnn.Linear, x: Any) -> NetworkError:
    """The error that ``drjit.nn.Linear`` raises for the input ``x``, as a :class:`NetworkError`."""
    try:
        drnn.Linear.__call__(layer, x)
    except RuntimeError as error:
        return NetworkError(str(error))
    raise AssertionError("drjit.nn.Linear takes what was to be refused")


def check_input(layer: drnn.Linear, features: int, leaf: type) -> None:
    """Raise unless a vector of ``features`` values of type ``leaf`` fits ``layer``, which has weights."""
    weights, takes = layer.weights, layer.config[0]
    ensure(features == takes, f"Linear: the input has {features} features, but the layer takes {takes}.")
    packed = isinstance(weights, drnn.MatrixView)
    tp = type(weights.buffer) if packed else dr.array_t(weights)
    check_same_backend("Linear: the input lives", leaf, " and the weights", tp)
    if packed:
        check_precision(tp, "Linear")
    if dr.type_v(tp) != dr.type_v(leaf):
        raise TypeError(
            f"Linear: the input is {dr.type_v(leaf).name} and the weights are {dr.type_v(tp).name}; convert the input "
            f"with drjit.nn.Cast or drjit.nn.cast()."
        )


def check_precision(leaf: type, where: str) -> None:
    """Raise ``TypeError`` if the backend cannot multiply packed weights of ``leaf``: on CUDA, only half is possible."""
    if dr.itemsize_v(leaf) == 8:
        raise TypeError(f"{where}: the packed weights are Float64; cooperative vectors are half or single precision.")
    if dr.backend_v(leaf) == dr.JitBackend.CUDA and not dr.is_half_v(leaf):
        raise TypeError(
            f"{where}: the packed weights are {dr.type_v(leaf).name}, but CUDA's cooperative vectors multiply half "
            f"precision only; allocate the network with drjit.cuda.ad.TensorXf16, or use the LLVM backend."
        )
