r"""Derivatives of fields with respect to their input, which can be differentiated again.

Tangents are computed layer by layer together with the value (forward mode), in the kernel that evaluates the field.
A tangent costs as much as an evaluation, so the Jacobian for ``n`` coordinates costs ``1 + n`` evaluations. To Dr.Jit,
tangents are ordinary arithmetic: ``dr.backward`` differentiates them with respect to weights and coordinates, for
losses on gradients and curvature (Gropp et al. 2020, *Implicit Geometric Regularization*).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import drjit as dr
import drjit.nn as drnn

from .checks import check_above, check_backend, check_type, ensure, is_flat
from .engine import input_gradient
from .jit import kinds
from .jit.half import widened
from .jit.kernel_parameters import kept
from .nn import Encoding, Identity
from .nn.sequential import apply, segments
from .random.key import Key


def pushforward(
    encoding: Any, network: Any, parts: list, tangents: list[list], work: type, key: Key | None
) -> tuple[Any, list[list]]:
    """``network(encoding(parts))`` as a ``CoopVec`` of type ``work``, and its tangents as lists of single precision.

    ``parts`` are the checked coordinates of a field, and ``tangents`` a list of directions, which may be empty.

    In half precision, tangents are scaled before the network, to a largest component in [1, 2), and scaled back after
    it, because derivatives of encodings can exceed the range of half precision. Tangents are linear, so this changes
    nothing else.
    """
    features, dfeatures = encoded(encoding, parts, tangents, key)
    return _through(network, features, dfeatures, work, key)


def _through(network: Any, features: list, tangents: list[list], work: type, key: Key | None) -> tuple[Any, list[list]]:
    """The part of :func:`pushforward` after the encoding."""
    scales = [_scale(t) for t in tangents] if dr.is_half_v(work) else []
    if scales:
        tangents = [[v * scale for v in t] for t, (scale, _) in zip(tangents, scales, strict=True)]
    y, *dys = apply([network], [kinds.UnpackedVector(map(work, vector)) for vector in (features, *tangents)], key)
    tangents = [widened(list(dy), dr.float32_array_t(work)) for dy in dys]
    if scales:
        tangents = [[v * inverse for v in t] for t, (_, inverse) in zip(tangents, scales, strict=True)]
    return y, tangents


def jacobian(
    encoding: Any, network: Any, parts: list, work: type, key: Key | None, attached: bool
) -> tuple[Any, list[list]]:
    """The value and its derivatives with respect to every coordinate.

    Networks with one output may use reverse mode, which is faster. Its result cannot be differentiated again, so it is
    not used with ``attached``: parameters or coordinates have gradients enabled.
    """
    features, dfeatures = encoded(encoding, parts, _unit_tangents(parts), key)
    chain = segments([network])
    ops = chain[0].ops if len(chain) == 1 and len(parts) > 1 and not attached else None
    if ops is not None and chain[0].output_width(len(features), work, key) == 1:
        backwards = input_gradient(ops, kinds.UnpackedVector(map(work, features)), key)
        if backwards is not None:
            y, gradient = backwards[0], widened(backwards[1], dr.float32_array_t(work))
            if encoding is not None:
                gradient = [dr.dot(kinds.nested(gradient), kinds.nested(t)) for t in dfeatures]
            return y, [[v] for v in gradient]
    return _through(network, features, dfeatures, work, key)


def encoded(encoding: Any, parts: list, tangents: list, key: Key | None) -> tuple[list, list[list]]:
    """Features, and their tangents in single precision."""
    if encoding is None:
        features, dfeatures = parts, tangents
    elif isinstance(encoding, (Encoding, Identity)):
        x = kinds.UnpackedVector(parts)
        features, dfeatures = encoding.jvp(x, tangents, key) if tangents else (encoding(x, key), [])
    else:
        features, *dfeatures = apply([encoding], [drnn.CoopVec(t) for t in (parts, *tangents)], key)
    return list(features), [list(map(type(parts[0]), t)) for t in dfeatures]


def _unit_tangents(parts: list) -> list[list]:
    """The unit vectors along the coordinates."""
    leaf = type(parts[0])
    return [[leaf(1 if i == j else 0) for j in range(len(parts))] for i in range(len(parts))]


def numerical_gradient(field: Any, p: Any, eps: Any, key: Key | None = None) -> Any:
    r"""The gradient of a field with one output by central differences, which can be differentiated again.

    .. math::
        g_i = \frac{f(p + \epsilon e_i) - f(p - \epsilon e_i)}{2 \epsilon}

    This costs two evaluations per coordinate. In hash grids, a loss on this gradient trains all cells within ``eps`` of
    a point, while a loss on :meth:`NeuralField.value_and_grad` trains only the cell of the point. Begin training with
    an ``eps`` of the size of coarse cells and shrink it to that of fine ones, so that details appear gradually (Li et
    al. 2023, *Neuralangelo*, section 3.2). The error is about :math:`\epsilon^2 |f'''| / 6`, plus the rounding of ``f``
    divided by ``eps``, about :math:`10^{-3} |f| / \epsilon` with networks in half precision.

    Args:
        field: a :class:`NeuralField`, or a function ``field(p)`` (``field(p, key)`` if there is a key).
        p: coordinates as a field takes them.
        eps: half the distance of the two points, in the units of ``p``: a positive number, or a Dr.Jit array with one
            entry or one per sample. Changing an array does not make a frozen function record again.
        key: as in a call of the field. All evaluations see the same dropout masks.

    Returns:
        The gradient, in the container of ``p``.

    Raises:
        ValueError: ``eps`` is not positive; the field has several outputs, or takes another number of coordinates.
        TypeError: ``p``, ``eps`` or the result of the field is of another type, or ``p`` in double precision.

    >>> normal = cn.numerical_gradient(sdf, p, eps=0.01)
    """
    where = "numerical_gradient"
    check_type(where, "field", field, Callable, "a NeuralField or a function")
    kind, leaf = kinds.in_kernels(p, where, single=True)
    single = dr.float32_array_t(leaf)
    if isinstance(eps, dr.ArrayBase):
        flat = is_flat(eps) and dr.is_float_v(eps)
        check_type(where, "eps", eps, dr.ArrayBase if flat else (), "a number or a Dr.Jit Float")
        check_backend(f"{where}: eps is", eps, leaf, "p")
        entries, samples = dr.width(eps), kinds.samples(p, kind)
        valid = entries > 0 and (1 in (entries, samples) or entries == samples)
        ensure(valid, f"{where}: eps has {entries} entries for {samples} samples; 1, or one for each, is needed.")
        eps = kept(single(eps))
    else:
        eps = kept(single(check_above(where, "eps", eps)))
    parts = [single(v) for v in kinds.rows(p, kind)]

    def at(i: int, step: Any) -> Any:
        shifted = [v + step if i == j else v for j, v in enumerate(parts)]
        y = field(kinds.rebuild(shifted, p), *(() if key is None else (key,)))
        kind_y, leaf_y = kinds.kind(y, f"{where}: the field's output")
        outputs, same = kinds.features(y, kind_y), kind_y != kinds.NUMPY and dr.backend_v(leaf_y) == dr.backend_v(leaf)
        ensure(outputs == 1, f"{where}: the field has {outputs} outputs; one is needed.")
        needed = "an array of the backend of p is needed"
        ensure(same, f"{where}: the field returned {type(y).__name__}; {needed}.", TypeError)
        return single(y.array if kind_y == kinds.TENSOR else kinds.components(y)[0])

    return kinds.rebuild([(at(i, eps) - at(i, -eps)) / (2 * eps) for i in range(len(parts))], p)


def _scale(tangent: list) -> tuple[Any, Any]:
    """A power of two that brings the largest component of a tangent to [1, 2), and its inverse."""
    largest = abs(dr.detach(tangent[0]))
    for v in tangent[1:]:
        largest = dr.maximum(largest, abs(dr.detach(v)))
    power = dr.exp2(dr.clip(dr.floor(dr.log2(largest)), -100, 100))
    power = dr.select(largest > 0, power, 1)
    return 1 / power, power
