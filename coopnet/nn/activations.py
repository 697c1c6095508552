"""Activation layers."""

from __future__ import annotations

from typing import Any

import drjit.nn as drnn

from .. import engine
from ..checks import check_above, check_number, shown
from ..jit import kinds
from ..random.key import Key
from .arguments import fields
from .module import Module
from .tangents import check_bundle


class Activation(Module):
    """Applies a function to every component of a ``CoopVec``, tensor, array, nested array or list of arrays.

    Output and input agree in kind, shape and type (any floating point type; cooperative vectors are half precision on
    CUDA). Each has a float64 counterpart in ``coopnet.reference``. ``MLP`` takes activations by name, too.

    Raises:
        TypeError: the input is a NumPy array, not floating point, or of an unknown kind.
        ValueError: the input is empty.

    >>> y = cn.ReLU()(x)
    """

    function: str

    def params(self) -> tuple[float, ...]:
        """Constants of the function."""
        return tuple(getattr(self, name) for name in self.DRJIT_STRUCT)

    def op(self) -> engine.Nonlinearity:
        return engine.Nonlinearity(self)

    def __call__(self, x: Any, key: Key | None = None) -> Any:  # type: ignore[override]
        if not isinstance(x, kinds.UnpackedVector):  # its components were checked when it was made
            kinds.in_kernels(x, type(self).__name__)
        if isinstance(x, drnn.CoopVec):
            return engine.evaluate([self.op()], [x], key)[0]
        f, params = engine.FUNCTIONS[self.function], self.params()
        if isinstance(x, (list, tuple)):
            return type(x)(f.array(v, *params) for v in x)
        return f.array(x, *params)


class ReLU(Activation):
    r""":math:`\max(x, 0)`; the derivative at 0 is 0. Input and output as for :class:`coopnet.nn.Activation`.

    >>> net = cn.Sequential(cn.Linear(2, 64), cn.ReLU(), cn.Linear(64, 1))
    """

    function = "relu"


class LeakyReLU(Activation):
    r""":math:`\max(x, 0) + a \min(x, 0)` with ``negative_slope`` :math:`a`; the derivative at 0 is :math:`a`.
    ``ValueError`` unless it is a finite number. Input and output as for :class:`coopnet.nn.Activation`.

    >>> y = cn.LeakyReLU(negative_slope=0.1)(x)
    """

    function = "leaky_relu"

    def __init__(self, negative_slope: float = 0.01):
        self.negative_slope = check_number("LeakyReLU", "negative_slope", negative_slope)

    DRJIT_STRUCT = fields(__init__)


class Tanh(Activation):
    r""":math:`\tanh x`. Input and output as for :class:`coopnet.nn.Activation`.

    >>> y = cn.Tanh()(x)
    """

    function = "tanh"


class Sigmoid(Activation):
    r""":math:`1 / (1 + e^{-x})`; on cooperative vectors :math:`\tfrac12 \tanh(\tfrac12 x) + \tfrac12`. Input and
    output as for :class:`coopnet.nn.Activation`.

    >>> net = cn.MLP(2, 3, output_activation=cn.Sigmoid())
    """

    function = "sigmoid"


class _Sharp(Activation):
    def __init__(self, beta: float = 1.0):
        self.beta = check_above(type(self).__name__, "beta", beta)

    DRJIT_STRUCT = fields(__init__)


class Softplus(_Sharp):
    r""":math:`\log(1 + e^{\beta x}) / \beta`, evaluated as :math:`\max(x, 0) + \log(1 + e^{-\beta|x|}) / \beta`, which
    cannot overflow. The larger ``beta``, the closer to ReLU; tiny-cuda-nn's ``"Softplus"`` has 10. ``ValueError``
    unless it is a positive number. Input and output as for :class:`coopnet.nn.Activation`.

    >>> net = cn.MLP(3, 1, activation=cn.Softplus(beta=100.0))  # for a smooth signed distance
    """

    function = "softplus"


class Squareplus(_Sharp):
    r""":math:`\tfrac{1}{2\beta}(X + \sqrt{X^2 + 4})` with :math:`X = \beta x` (Barron 2021, *Squareplus*), a softplus
    without exponentials. The larger ``beta``, the closer to ReLU; tiny-cuda-nn's ``"Squareplus"`` has 10.

    Evaluated as :math:`(\max(X, 0) + 2 / (|X| + \sqrt{X^2 + 4})) / \beta`, without cancellation. On CUDA,
    values and derivatives are exact to 5e-3, values below 0.01 to 5e-5. ``ValueError`` unless ``beta`` is positive.
    Input and output as for :class:`coopnet.nn.Activation`.

    >>> y = cn.Squareplus(beta=10.0)(x)
    """

    function = "squareplus"


class GELU(Activation):
    r""":math:`\tfrac{x}{2}\bigl(1 + \tanh(\sqrt{2/\pi}\,(x + 0.044715\,x^3))\bigr)`, the hyperbolic tangent form of
    Hendrycks and Gimpel 2016 (PyTorch's ``approximate="tanh"``), at most 5e-4 from :math:`x \Phi(x)`.
    Input and output as for :class:`coopnet.nn.Activation`.

    >>> y = cn.GELU()(x)
    """

    function = "gelu"


class SiLU(Activation):
    r""":math:`x / (1 + e^{-x})` (Elfwing et al. 2018; also called Swish). Input and output as for
    :class:`coopnet.nn.Activation`.

    >>> y = cn.SiLU()(x)
    """

    function = "silu"


class Sine(Activation):
    r""":math:`\sin(\omega x)` with frequency ``omega`` (Sitzmann et al. 2020 use 30 in the first layer). On CUDA,
    it is exact to 3e-3 for :math:`|\omega x| \le 1200`; beyond, half-precision numbers are about a radian apart.
    ``ValueError`` unless it is a finite number. Input and output as for :class:`coopnet.nn.Activation`.

    >>> net = cn.MLP(2, 1, activation=cn.Sine(30.0), init="siren")
    """

    function = "sine"

    def __init__(self, omega: float = 1.0):
        self.omega = check_number("Sine", "omega", omega)

    DRJIT_STRUCT = fields(__init__)


class Exp(Activation):
    r""":math:`e^x`, which overflows half precision from :math:`x = 11.1` on. Input and output as for
    :class:`coopnet.nn.Activation`.

    >>> net = cn.MLP(3, 1, output_activation=cn.Exp())  # for a density
    """

    function = "exp"


class Identity(Activation):
    r""":math:`\mathrm{scale} \cdot x + \mathrm{offset}`, by default :math:`x` itself: an activation or an encoding.
    ``ValueError`` unless both are finite numbers. Input and output as for :class:`coopnet.nn.Activation`.

    >>> centered = cn.Identity(scale=2.0, offset=-1.0)  # [0, 1] to [-1, 1]
    """

    function = "identity"

    def __init__(self, scale: float = 1.0, offset: float = 0.0):
        self.scale, self.offset = check_number("Identity", "scale", scale), check_number("Identity", "offset", offset)

    DRJIT_STRUCT = fields(__init__)

    def params(self) -> tuple[float, ...]:
        return () if (self.scale, self.offset) == (1, 0) else super().params()

    def jvp(self, x: Any, tangents: list, key: Key | None = None) -> tuple[Any, list]:
        if isinstance(x, drnn.CoopVec):
            return super().jvp(x, tangents, key)
        check_bundle(self, x, tangents, arrays=True)
        return self(x, key), [[v * self.scale for v in t] for t in tangents]

    def width(self, size: int) -> int:
        """Number of output features for ``size`` input features."""
        return size

    def __repr__(self) -> str:
        return super().__repr__() if self.params() else "Identity()"


#: Activations by the name that ``MLP`` and checkpoints use.
ACTIVATIONS: dict[str, type[Activation]] = {
    cls.function: cls for cls in (ReLU, LeakyReLU, Tanh, Sigmoid, Softplus, Squareplus, GELU, SiLU, Sine, Exp, Identity)
}


#: Other names of activations.
SYNONYMS = {"swish": "silu"}


def activation(value: Any, where: str, name: str = "activation") -> Activation | None:
    """The activation layer for ``value``: a name, a layer, or ``None`` (also ``"none"``) for no activation."""
    if value is None or (isinstance(value, str) and value == "none"):
        return None
    if isinstance(value, Activation):
        return value
    if isinstance(value, str) and SYNONYMS.get(value, value) in ACTIVATIONS:
        return ACTIVATIONS[SYNONYMS.get(value, value)]()
    if isinstance(value, type) and issubclass(value, Activation):
        raise ValueError(f"{where}: {name} is the class {value.__name__}; pass a layer, {value.__name__}().")
    accepted = f"None, an Activation layer, or one of {sorted([*ACTIVATIONS, *SYNONYMS])}"
    raise ValueError(f"{where}: {name} is {shown(value)}; accepted are {accepted}.")
