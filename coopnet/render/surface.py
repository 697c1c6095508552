"""Signed distances for tracing: values, slopes along a ray, and gradients, of fields and functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import drjit as dr

from ..checks import check_same_backend, check_type, ensure
from ..derivatives import numerical_gradient
from ..field import NeuralField
from ..jit import kinds
from ..jit.lanes import only
from ..random.key import Key, check_key


class Surface:
    """The surface ``sdf(p) = 0`` of a :class:`NeuralField` or a function, for points of the type ``point``.

    Every method takes points and the active lanes; other lanes are evaluated at zero, and return zeros. A function
    is differentiated in forward mode, which does not change gradients of arrays that it depends on, unless it has a
    method ``value_and_grad``. ``h`` is half the distance of points for central differences of its gradient.

    Raises the errors that :func:`coopnet.render.sphere_trace` documents for ``sdf``.
    """

    def __init__(self, sdf: Any, key: Key | None, point: type, h: float, where: str):
        check_type(where, "sdf", sdf, Callable, "a NeuralField or a function p -> Float")
        check_key(where, key)
        self.sdf, self.point, self.leaf, self.h, self.where = sdf, point, dr.leaf_t(point), h, where
        self.is_field = isinstance(sdf, NeuralField)
        self.is_half = self.is_field and sdf.precision == "half"
        # traced here, outside loops, so that all evaluations share its parameters
        self.key = None if key is None else key.traced(dr.uint32_array_t(self.leaf))
        self.keys = () if key is None else (self.key,)
        if self.is_field and sdf.precision is not None:
            given = f"sdf is a field of {sdf.in_features} coordinates"
            ensure(sdf.in_features == 3, f"{where}: {given}; one of 3 is needed.")
        with dr.suspend_grad():  # only to check sdf; this is not part of any kernel
            self.value(point(0, 0, 0), dr.mask_t(self.leaf)(True))

    def value(self, p: Any, active: Any) -> Any:
        """The distance at ``p``, a ``Float``."""
        if self.is_field:
            return self._single(self.sdf(p, *(self.keys or (None,)), active))
        return dr.select(active, self._single(self.sdf(self._inside(p, active), *self.keys)), 0)

    def slope(self, p: Any, direction: Any, active: Any) -> tuple[Any, Any]:
        """Distance at ``p`` and its derivative along ``direction``, which is not differentiated further."""
        if self.is_field:
            value, slope = self.sdf.jvp(p, direction, self.key, active)
            return self._single(value), slope[0]
        if hasattr(self.sdf, "value_and_grad"):
            value, gradient = self.value_and_grad(p, active)
            return value, dr.dot(gradient, direction)
        value, slope = self._forward(self._inside(p, active), direction)
        return dr.select(active, value, 0), dr.select(active, slope, 0)

    def value_and_grad(self, p: Any, active: Any) -> tuple[Any, Any]:
        """Distance and gradient at ``p``; both can be differentiated."""
        if self.is_field:
            value, gradient = self.sdf.value_and_grad(p, self.key, active)
            return self._single(value), self.point(gradient)
        p = self._inside(p, active)
        if hasattr(self.sdf, "value_and_grad"):
            value, gradient = self.sdf.value_and_grad(p, *self.keys)
            value, gradient = self._single(value), self.point(gradient)
        else:
            value = self._single(self.sdf(p, *self.keys))
            axes = [self.point(*(float(i == j) for j in range(3))) for i in range(3)]
            gradient = self.point([self._forward(p, axis)[1] for axis in axes])
            if dr.grad_enabled(value):
                gradient = dr.replace_grad(gradient, numerical_gradient(self.sdf, p, self.h, *self.keys))
        return dr.select(active, value, 0), self.point(only(active, list(gradient)))

    def _inside(self, p: Any, active: Any) -> Any:
        return self.point(only(active, list(p)))

    def _forward(self, p: Any, direction: Any) -> tuple[Any, Any]:
        p = dr.detach(p)
        with dr.resume_grad():
            p = self.point(p)
            dr.enable_grad(p)
            value = self._single(self.sdf(p, *self.keys))
            dr.set_grad(p, direction)
            dr.forward_to(value, flags=dr.ADFlag.Default | dr.ADFlag.AllowNoGrad)  # it may not depend on p
            return dr.detach(value), dr.grad(value)

    def _single(self, value: Any) -> Any:
        """The result ``value`` of ``sdf`` as a ``Float``."""
        subject = f"{self.where}: what sdf returned"
        kind, leaf = kinds.in_kernels(value, subject, single=True)
        check_same_backend(f"{subject} lives", leaf, " and o", self.leaf)
        outputs = kinds.features(value, kind)
        ensure(outputs == 1, f"{subject} has {outputs} components; one, the distance, is needed.")
        part = value.array if kind == kinds.TENSOR else kinds.components(value)[0]
        return self.leaf(part)
