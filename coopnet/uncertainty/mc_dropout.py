"""Moments of a field over the masks of its dropout, or over other draws of its keys."""

from __future__ import annotations

from typing import Any

import drjit as dr
import drjit.nn as drnn

from ..checks import check, check_type, shown_typed, whole
from ..checks.warn import warn
from ..engine.modes import is_deterministic
from ..field import NeuralField
from ..jit import kinds
from ..jit.kernel_parameters import kernel_parameter
from ..nn.displaced import Displaced
from ..nn.drawn import Drawn, DrawnGrid
from ..nn.dropout import Dropout
from ..nn.lattice import Lattice
from ..nn.members import Members
from ..nn.tree import children
from ..random.key import Key
from .ensemble import ensemble_std, members_of

_WHERE = "mc_dropout"


def mc_dropout(field: Any, x: Any, key: Key, samples: int) -> tuple[Any, Any]:
    r"""Monte Carlo dropout (Gal and Ghahramani 2016): mean and standard deviation of ``field(x, key)`` over masks.

    .. math::
        \mu = \frac1n \sum_{i<n} y_i, \qquad \sigma = \sqrt{\frac1n \sum_{i<n} (y_i - \mu)^2}, \qquad
        y_i = \mathrm{field}(x, \mathrm{key.fold\_in}(\mathrm{key.step} \cdot n + i))

    The step of a pass is taken modulo :math:`2^{32}`. Calls with the same ``samples`` at different steps of the key
    share no mask. A key of step 0 uses the steps 0, 1, ..., n-1.

    All passes run in one kernel, a symbolic loop with the running moments of Welford (1962) in single precision,
    whatever the precision of the network:

    .. math::
        d = y_i - \mu, \quad \mu \leftarrow \mu + d / (i + 1), \quad S \leftarrow \mathrm{fma}(d, y_i - \mu, S), \quad
        \sigma = \sqrt{S / n}

    The number of passes is a parameter of the kernel, so another number compiles nothing. An exception is a network
    that is not packed and takes tensors: its matrix products are separate kernels, so it is evaluated pass by pass.

    :math:`\sigma` divides by :math:`n`, as in the paper and ``np.std``; multiply by :math:`\sqrt{n / (n - 1)}` for the
    root of the unbiased variance. It is the uncertainty of the *model*. The predictive deviation of a measurement with
    noise of variance :math:`1 / \tau` is :math:`\sqrt{\sigma^2 + 1 / \tau}` (section 4 there);
    ``examples/uncertainty.py`` fits :math:`\tau` on held-out data.

    Both results are differentiable in reverse mode with respect to ``x`` and the parameters of ``field``. The
    derivative is another loop that evaluates the passes again, so memory does not grow with ``samples``. As in all
    symbolic loops, gradients of weights are sums in no fixed order. Under ``dr.suspend_grad()`` that loop is not even
    traced.

    Args:
        field: a :class:`NeuralField` or another :class:`Module` with at least one :class:`Dropout`, or a field that
            :func:`posthoc_dropout`, :func:`laplace` or :func:`ensemble` has made.
        x: coordinates or another input of ``field``.
        key: :class:`Key`; in a loop or virtual call, one with an index.
        samples: number of passes, an int in [2, 2^24].

    Returns:
        The pair (mean, standard deviation), each of the same kind and type as ``field(x, key)``.

    Warns:
        RuntimeWarning: once, for a field with a grid whose features are not drawn: masks do not show which entries of
            such a grid no sample has visited.

    Raises:
        ValueError: ``field`` has no dropout; ``samples`` out of range; ``x`` empty or of another shape.
        TypeError: ``field`` is not a :class:`Module`; ``key`` is not a :class:`Key`; ``samples`` is not an int; ``x``
            is of another kind.
        RuntimeError: ``field`` tracks gradients inside :func:`coopnet.deterministic`.

    >>> mean, deviation = cn.mc_dropout(field, [x], cn.Key(seed=0), samples=64)
    """
    samples = _check(field, key, samples)
    kind, leaf = kinds.in_kernels(x, _WHERE)
    uint32 = dr.uint32_array_t(leaf)
    key = key.traced(uint32)
    if (found := _of_members(field, x, samples)) is not None:
        return found
    count = kernel_parameter(uint32, samples)
    first = key.step * count
    if kind == kinds.TENSOR:
        if not isinstance(field, NeuralField):
            return evaluated_passes(lambda i: field(x, key.fold_in(first + dr.opaque(uint32, i))), samples, leaf)
        # row by row, because a loop cannot make a tensor of arrays, which would take memory
        mean, deviation = mc_dropout(field, [row.array for row in x], key, samples)
        tensor = dr.tensor_t(type(mean[0]))
        return tensor(mean), tensor(deviation)

    parts = kinds.components(x)

    def evaluate(i: Any) -> Any:
        # In a loop, Dr.Jit 1.5 loses the gradient of variables from outside that are packed as they are.
        return field(kinds.rebuild([v * 1 for v in parts], x), key.fold_in(first + i))

    return over_passes(evaluate, count, leaf, _differentiable(field, parts))


def _of_members(field: Any, x: Any, samples: int) -> tuple[Any, Any] | None:
    """The moments of an ensemble's members, evaluated once each, if every pass would be one of them."""
    return (field(x), ensemble_std(field, x, _WHERE)) if each_once(field, samples) else None


def each_once(field: Any, samples: int) -> bool:
    """Do ``samples`` passes visit all members of an ensemble equally often, and does a key draw nothing else?"""
    members = members_of(field)
    if members is None or samples % len(members.networks):
        return False
    return not any(_draws(m) or not _known(m) for m in children(field) if m is not members)


def over_passes(evaluate: Any, count: Any, leaf: type, differentiable: bool = False) -> tuple[Any, Any]:
    """Mean and deviation of ``evaluate(i)`` over ``i < count``, a ``UInt32``, in one symbolic loop."""
    uint32, f32 = type(count), dr.float32_array_t(leaf)
    with dr.suspend_grad():
        like = evaluate(uint32(0))  # traced, not run, for the kind and number of the results
        outputs = kinds.components(like)
        width = dr.width(outputs)
        zeros = [dr.zeros(f32, width) for _ in outputs]

        def update(i: Any, mean: list, spread: list) -> tuple:
            values = [f32(v) for v in kinds.components(evaluate(i))]
            return (i + 1, *_welford(values, f32(i + 1), mean, spread))

        start, names = (uint32(0), zeros, list(zeros)), ("i", "mean", "spread")
        _, mean, spread = dr.while_loop(start, lambda i, *_: i < count, update, names, _WHERE, mode="symbolic")
        deviation = [dr.sqrt(s / f32(count)) for s in spread]
    if differentiable:
        mean, deviation = _with_gradient(evaluate, count, mean, deviation)
    leaf_out = type(outputs[0])
    return tuple(kinds.rebuild([leaf_out(v) for v in m], like) for m in (mean, deviation))  # type: ignore[return-value]


def _with_gradient(evaluate: Any, count: Any, mean: list, deviation: list) -> tuple[list, list]:
    r"""The same values with their derivatives, :math:`d\mu = \frac1n \sum dy_i` and
    :math:`d\sigma = \sum \frac{y_i - \mu}{n \sigma} dy_i`.

    Those are sums over the passes, the only kind of loop that Dr.Jit differentiates without storing its iterations.
    """
    f32 = type(mean[0])
    n = f32(count)
    weights = [dr.select(s > 0, 1 / (n * s), 0) for s in deviation]
    zeros = [dr.zeros(f32, dr.width(mean[0])) for _ in mean]

    def add(i: Any, sums: list, weighted: list) -> tuple:
        values = [f32(v) for v in kinds.components(evaluate(i))]
        sums = [s + v / n for s, v in zip(sums, values, strict=True)]
        terms = zip(weighted, values, mean, weights, strict=True)
        return i + 1, sums, [s + dr.detach((v - m) * w) * v for s, v, m, w in terms]

    start, names = (type(count)(0), zeros, list(zeros)), ("i", "sums", "weighted")
    options = {"mode": "symbolic", "max_iterations": -1, "label": f"{_WHERE}_gradient"}
    _, sums, weighted = dr.while_loop(start, lambda i, *_: i < count, add, names, **options)
    pairs = (mean, sums), (deviation, weighted)
    return tuple([dr.replace_grad(a, b) for a, b in zip(*pair, strict=True)] for pair in pairs)  # type: ignore[return-value]


def evaluated_passes(evaluate: Any, samples: int, leaf: type) -> tuple[Any, Any]:
    """Moments of a function that cannot run in a loop, one evaluated pass after the other."""
    f32 = dr.float32_array_t(leaf)
    mean, spread = [f32(0)], [f32(0)]
    for i in range(samples):
        y = evaluate(i)
        mean, spread = _welford([f32(y.array)], dr.opaque(f32, i + 1), mean, spread)
        if not dr.grad_enabled(mean):
            dr.eval(mean, spread)
    deviation = dr.sqrt(spread[0] / dr.opaque(f32, samples))
    array = type(y.array)
    return type(y)(array(mean[0]), y.shape), type(y)(array(deviation), y.shape)


def _welford(values: list, n: Any, mean: list, spread: list) -> tuple[list, list]:
    new_mean, new_spread = [], []
    for value, m, s in zip(values, mean, spread, strict=True):
        delta = value - m
        updated = m + delta / n
        new_mean.append(updated)
        # an explicit fma, so that all backends round alike
        new_spread.append(dr.fma(delta, value - updated, s))
    return new_mean, new_spread


def _differentiable(field: Any, parts: list) -> bool:
    weights = any(dr.grad_enabled(v) for v in field.values())
    if weights and is_deterministic():
        hint = "call it under dr.suspend_grad(), or evaluate the passes one by one"
        problem = "it cannot be differentiated: its loop would add gradients with atomics"
        raise RuntimeError(f"{_WHERE}: inside deterministic(), {problem}; {hint}.")
    return weights or dr.grad_enabled(parts)


_warned = False


def warn_unseen(field: Any, where: str) -> None:
    """Warn once if ``field`` has a grid whose features are not drawn: masks do not show its unvisited entries."""
    global _warned
    layers = list(children(field))
    noisy = any(isinstance(layer, (DrawnGrid, Displaced, Members)) for layer in layers)
    if _warned or noisy or not any(isinstance(layer, Lattice) for layer in layers):
        return
    _warned = True
    problem = "unvisited entries stay near 0 under every mask, so the field looks most certain there"
    what = "dropout cannot reveal unseen regions of a hash grid"
    warn(f"{where}: {what}: {problem}; use coopnet.laplace().")


def has_dropout(field: Any) -> bool:
    """Does ``field`` have a :class:`Dropout` that draws masks?"""
    return any(isinstance(m, Dropout) and m.active() for m in children(field))


def draws(field: Any) -> bool:
    """Does a key change the outputs of ``field``: by masks, drawn parameters, or members?"""
    return any(map(_draws, children(field)))


def _draws(layer: Any) -> bool:
    return layer.active() if isinstance(layer, Dropout) else isinstance(layer, (Drawn, Members))


def _known(layer: Any) -> bool:
    """Is it known what ``layer`` draws? Layers of other packages may draw masks, too."""
    return type(layer).__module__.split(".")[0] in ("coopnet", "drjit")


def _check(field: Any, key: Any, samples: Any) -> int:
    check_type(_WHERE, "field", field, drnn.Module, "a NeuralField or another Module")
    count = check_passes(_WHERE, key, samples)
    check_draws(_WHERE, field)
    return count


def check_passes(where: str, key: Any, samples: Any) -> int:
    """``samples`` as an int; raises unless it is a number of passes, and ``key`` a key."""
    check_type(where, "key", key, Key, "a coopnet.Key")
    count = whole(samples)
    if count is None:
        raise TypeError(f"{where}: samples is {shown_typed(samples)}; an int is needed.")
    check(2 <= count <= 2**24, where, "samples", samples, "an int in [2, 2^24]")
    return count


def check_draws(where: str, field: Any) -> None:
    """Raise ``ValueError`` unless ``field`` draws something; warn as :func:`warn_unseen`."""
    if all(map(_known, children(field))) and not draws(field):
        hint = "train it with some, such as MLP(..., dropout=0.1), or use posthoc_dropout, laplace or ensemble"
        raise ValueError(f"{where}: field has no Dropout with p > 0, so that all passes are equal; {hint}.")
    warn_unseen(field, where)
