"""A Gaussian posterior of a trained field's parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import drjit as dr
import drjit.nn as drnn
import numpy as np

from ..bounds import to_unit
from ..checks import check_int, check_squarable, check_type, ensure
from ..field import NeuralField
from ..jit.collection import no_collection
from ..jit.half import widened
from ..jit.kinds import nested
from ..jit.turns import TURNS
from ..kernels import fixed_point
from ..nn import Composite, Linear, Pad, Sequential
from ..nn.drawn import Drawn, DrawnGrid, DrawnLinear
from ..nn.dropout import Dropout
from ..nn.lattice import Lattice
from ..nn.parameters import parameters
from ..nn.sequential import flatten
from ..nn.tree import children
from .data import check_trained, draw
from .displacement import DisplacementSums, displaced
from .layers import grids, is_activation, rebuilt
from .linearized import GridPart, Linearized

_WHERE = "laplace"


def laplace(
    field: NeuralField,
    batch: Callable[[Any], tuple],
    steps: int,
    *,
    seed: int = 0,
    samples: int | None = None,
    noise: float | None = None,
    prior: float | None = None,
    spatial: int | Sequence[int] | None = None,
    predict: Callable[[NeuralField, Any], Any] | None = None,
) -> NeuralField:
    r"""A Gaussian posterior of the parameters of a trained field, by a Laplace approximation (Daxberger et al. 2021,
    *Laplace Redux*; for grids as in Goli et al. 2024, *Bayes' Rays*).

    With independent errors of variance :math:`s^2`, and a prior of independent parameters of variance :math:`\tau^2`,
    the Gauss-Newton approximation of the precision of the parameters is

    .. math::
        P = \frac{1}{s^2} \sum_n \sum_o \nabla_\theta f_o(x_n)\, \nabla_\theta f_o(x_n)^T + \frac{1}{\tau^2} I

    summed over samples and outputs, each with derivatives of its own rather than those of a batch's mean. It covers

    - the features of grids, if the encoding is one, or a :class:`Composite` or ``Pad`` with some in it: the diagonal of
      :math:`P`. A vertex of weight :math:`w` adds :math:`w^2 (\partial f_o / \partial \phi)^2`, of the feature
      :math:`\phi`, to its entry. Entries that no sample has visited keep the variance :math:`\tau^2`, so that unseen
      places have large deviations;
    - the last linear layer, in full: :math:`P = \frac{1}{s^2} \sum_n g_n^2 \tilde h_n \tilde h_n^T + I / \tau^2`, one
      matrix for all outputs. :math:`\tilde h` is the layer's input, with a bias :math:`(h, 1)`. :math:`g^2` is the mean
      square, over outputs, of the slope of an activation after the layer, and 1 if there is none.

    Parameters of the layers in between are held fixed. The result is a :class:`NeuralField` with the same values. Its
    ``std(p)`` is the deviation of its outputs by linearization, in one kernel. An evaluation **with a key draws
    parameters**. Each of them depends only on the key's seed and step and on the parameter's place. So all samples of a
    picture see the same function, in every batch and, to the bit, on every backend (``docs/dropout.md`` has the law).
    :func:`mc_dropout`, ``ray_march`` and ``render_mc`` treat it like dropout.

    **With** ``spatial`` it is a posterior of positions instead. A grid displaces the coordinates, while the parameters
    of the field are held fixed (Goli et al. 2024). The field needs no grid and no linear layer, and may be one that is
    only observed along rays. Coordinates move by :math:`D(x) = \sum_v w_v(x)\, d_v`, with the weights :math:`w_v` of
    linear interpolation between vertices that reach from corner to corner of the field's ``bounds``, or of the unit
    cube. The precision of component :math:`k` of :math:`d_v`, at zero displacement, is

    .. math::
        P_{vk} = \frac{1}{s^2} \sum_n \sum_o \Big(\frac{\partial f_o(n)}{\partial d_{vk}}\Big)^2 + \frac{1}{\tau^2},
        \qquad \frac{\partial f_o(n)}{\partial d_{vk}} = \sum_i w_v(x_i)\, \frac{\partial f_o(n)}{\partial x_{ik}}

    over the samples :math:`x_i` from which prediction :math:`n` is made: one for a field of coordinates, those along a
    ray for a color. ``std(p)`` is then one number: how far the point ``p`` may move without changing the fit, in the
    units of ``p``, :math:`\lVert \sum_v w_v(p)\, \sigma_v \rVert` with :math:`\sigma_{vk} = P_{vk}^{-1/2}`. A key draws
    the displacements, by the same law. (The authors' program adds :math:`10^{-4} / M^3` to a mean of squares over rays,
    for :math:`M^3` vertices of the unit cube: ``samples=1, noise=1, prior=100 * M**1.5``.)

    Sums over grids are taken in fixed point: they do not depend on the order of the samples.

    Args:
        field: a built and trained :class:`NeuralField`; it stays as it is. Without ``spatial``, its network ends in a
            linear layer, optionally with activations after it.
        batch: the training data, as in :func:`fit`: traced code from a key to ``(coordinates, targets)``,
            arrays or nested arrays of equal length, converted to single precision; with ``predict`` to ``(inputs,
            targets)``, where ``inputs`` are any PyTree, such as rays.
        steps: number of batches: the first ones of ``fit`` with this seed.
        seed: int in [0, 2^64).
        samples: how many independent measurements there are in all, such as the pixels of a picture. Sums are scaled to
            this number. ``None`` if every sample that ``batch`` draws is a measurement.
        noise: :math:`s`; the root mean square of the errors over the batches if ``None``.
        prior: :math:`\tau`. If ``None``, it is the root mean square of the features that samples have visited, for each
            grid, and that of the last layer's weights. For displacements it is in the units of the coordinates, by
            default the side of a cell.
        spatial: vertices of the grid of displacements along every axis, an int of at least 2, or one for each of the
            first coordinates, such as ``(16, 16, 16)`` for a position that a direction follows. ``None`` for a
            posterior of parameters. Memory is allocated for a cube with the largest of these numbers along every axis,
            at most 2^26 displacements.
        predict: with ``spatial``, traced code ``(field, inputs) -> predictions``, in single precision, which are
            compared with the targets; ``None`` for ``field(coordinates)``. It must evaluate the given field once, at
            equally many samples for each prediction: sample ``i`` belongs to prediction ``i`` modulo their number.
            ``ray_march`` does so (in mode ``"wide"``, which it chooses automatically here). Samples around one vertex
            must be consecutive, as they are along a straight ray.

    Returns:
        A field that draws parameters. It can be saved, moved, frozen and used in loops like any other.

    Raises:
        ValueError: arguments out of range; a field that is not built, draws parameters already, has a grid in a product
            of encodings or in an encoding of another kind, or does not end in a linear layer; errors that are not
            finite; with ``spatial``, fewer than a tenth of the samples in the box, or predictions that do not fit the
            targets or the samples.
        TypeError: arguments of another kind.
        RuntimeError: called while Dr.Jit records a function or loop; ``predict`` evaluates the field in one.

    >>> posterior = cn.laplace(field, batch, steps=4)
    >>> deviation = posterior.std(p)
    >>> one_of_many = posterior(p, cn.Key(seed=1))

    How far places of a radiance field may move, where ``rays`` draws ``((o, d), colors)``:

    >>> def predict(field, inputs):
    ...     return cn.render.ray_march(field, *inputs, 0.5, 3.5, steps=64).color
    >>> floaters = cn.laplace(volume, rays, steps=4, spatial=16, predict=predict)
    """
    check_trained(field, _WHERE)
    if samples is not None:
        samples = check_int(_WHERE, "samples", samples, 1, 2**53)
    noise = None if noise is None else check_squarable(_WHERE, "noise", noise)
    prior = None if prior is None else check_squarable(_WHERE, "prior", prior)
    needed = "spatial is None, which takes no predict; pass spatial=16, say"
    ensure(predict is None or spatial is not None, f"{_WHERE}: predict is given, but {needed}.")
    check_type(_WHERE, "predict", predict, Callable | None, "a function (field, inputs) -> predictions")
    batches = draw(field, batch, steps, seed, _WHERE, "steps", inputs=predict is not None)
    once = not any(isinstance(layer, Drawn) for layer in children(field))
    ensure(once, f"{_WHERE}: field draws parameters already; pass the trained field.")
    sums: Any
    if spatial is None:
        posterior = _with_draws(field)
        sums = _ParameterSums(posterior)
    else:
        posterior = displaced(field, spatial)
        sums = DisplacementSums(posterior, predict)
    with TURNS, no_collection():  # sums are recorded by dr.freeze
        for drawn in batches:
            sums.add(drawn.coordinates, drawn.targets)
    variance = noise**2 if noise is not None else sums.squares / sums.terms
    valid = math.isfinite(variance) and variance > 0
    ensure(valid, f"{_WHERE}: the mean square of the errors is {variance:g}; a positive number is needed: pass noise.")
    sums.finish((1.0 if samples is None else samples / sums.samples) / variance, prior)
    return posterior


def _with_draws(field: NeuralField) -> NeuralField:
    """A copy of ``field`` with layers that draw parameters; their deviations are zero so far."""
    streams = itertools.chain([0], itertools.count(2))  # 1 is the last layer's
    encoding = _encoding_with_draws(field.encoding, streams)
    drawn = [] if encoding is None else [m for m in children(encoding) if isinstance(m, DrawnGrid)]
    hint = "its entries would be taken as known; make it the encoding itself, or part of a Composite or Pad"
    inside = len(drawn) == len(grids(field.encoding))
    ensure(inside, f"{_WHERE}: a grid is part of another encoding, or of a product of encodings; {hint}.")
    layers = list(flatten([field.network]))
    index = max((i for i, layer in enumerate(layers) if isinstance(layer, drnn.Linear)), default=-1)
    ends = index >= 0 and all(is_activation(v) or isinstance(v, Dropout) for v in layers[index + 1 :])
    last = f"it ends in a {type(layers[-1]).__name__}" if layers else "it has no layers"
    ensure(ends, f"{_WHERE}: the network must end in a linear layer, optionally followed by activations; {last}.")
    linear = layers[index] if isinstance(layers[index], Linear) else Linear(*layers[index].config)
    layers[index] = DrawnLinear(linear)
    return rebuilt(field, encoding, Sequential(*layers), _new_parameters)


def _encoding_with_draws(encoding: Any, streams: Iterator[int]) -> Any:
    """``encoding`` with grids that draw features, each from a stream of its own; grids in products are unchanged."""
    if isinstance(encoding, Lattice):
        return DrawnGrid(encoding, next(streams))
    product = isinstance(encoding, Composite) and encoding.reduction == "product"
    if not isinstance(encoding, Composite | Pad) or product:
        return encoding
    return encoding._mapped(lambda part: _encoding_with_draws(part, streams))


def _new_parameters(layer: Any) -> list:
    """Owners of the parameters in ``layer`` that the field did not have."""
    if isinstance(layer, DrawnGrid):
        return [layer.deviation.value]
    return [layer.factor] if isinstance(layer, DrawnLinear) else []


class _ParameterSums:
    """Sums of products of derivatives over samples."""

    def __init__(self, field: NeuralField):
        self.field, self.frozen = field, dr.freeze(_products)
        #: Sums of squares for the entries of each grid, in single precision, and of outer products for the last layer.
        self.entries: list = []
        self.matrix = np.zeros(())
        self.squares, self.terms, self.samples = 0.0, 0, 0

    def add(self, coordinates: list, targets: list) -> None:
        with dr.suspend_grad():
            entries, matrix, squares = self.frozen(self.field, coordinates, targets)
        self.entries = [a + b for a, b in zip(self.entries, entries, strict=True)] if self.entries else entries
        dr.eval(self.entries)
        self.matrix = self.matrix + matrix.numpy()
        self.squares += float(squares.numpy()[0])
        width = dr.width(coordinates)
        self.samples += width
        self.terms += width * len(targets)

    def finish(self, weight: float, prior: float | None) -> None:
        """Give the field its deviations."""
        squares = [entries.numpy().astype(np.float64) * weight for entries in self.entries]
        fine = all(np.isfinite(v).all() for v in (self.matrix, *squares))
        ensure(fine, f"{_WHERE}: derivatives by parameters are not finite; finite coordinates are needed.")
        _set_last(self.field, self.matrix * weight, prior)
        for part, of_grid in zip(Linearized(self.field).grids, squares, strict=True):
            _set_grid(self.field, part.layer, of_grid, prior)


def _products(field: NeuralField, coordinates: list, targets: list) -> tuple[list, Any, Any]:
    """The terms of one batch in the sums for each grid's entries, for the last layer's matrix, and for the errors."""
    linear = Linearized(field)
    unit = to_unit(coordinates, field.bounds)
    derivatives = linear.at(unit)
    single, n = type(unit[0]), len(derivatives.slopes)
    squares = sum(dr.square(y - t) for y, t in zip(derivatives.values, targets, strict=True))
    slope = dr.sqrt(sum(dr.square(g) for g in derivatives.slopes) * (1 / n))
    hidden = [v * slope for v in widened(list(derivatives.hidden), single)]
    if linear.last.linear.config[2]:
        hidden.append(slope + 0 * hidden[0])
    table = dr.tensor_t(single)(nested(hidden))
    double = dr.float64_array_t(type(table))
    by_entry = [_squares(unit, rows) for rows in derivatives.rows]
    dr.eval(squares, table, by_entry)  # in one kernel, and not in one for each sum
    entries = [_entry_sums(part, unit, sums) for part, sums in zip(linear.grids, by_entry, strict=True)]
    # in double precision: features are often nearly collinear, and rounding would hide their smallest eigenvalues
    table = double(table)
    return entries, dr.matmul(table, table, Bt=True), dr.sum(squares)


def _squares(unit: list, rows: list[list]) -> list:
    """The squares of the derivatives with respect to every feature of a grid."""
    squares = [sum(dr.square(v) for v in column) for column in zip(*rows, strict=True)]
    return [v + dr.zeros(type(v), dr.width(unit[0])) for v in squares]


def _entry_sums(part: GridPart, unit: list, squares: list) -> Any:
    """The sums of the evaluated ``squares`` (see :func:`_squares`) for every entry of a grid."""
    grid = part.layer.grid.grid.value
    n, single = grid.n_features, grid.dtype
    terms = single(dr.opaque_width(squares[0])) * grid.vertices
    most = dr.max(fixed_point.bound(squares))
    scale, broken = fixed_point.scale(most, terms), fixed_point.broken(most)
    dr.eval(scale, broken)
    sums = dr.zeros(dr.int64_array_t(single), dr.width(grid.data))
    for level, weight, index in part.walk(unit):
        column = squares[level * n : level * n + n]
        fixed_point.add(sums, [v * dr.square(weight) * scale for v in column], index)
    dr.eval(sums)
    return fixed_point.finish(sums, scale, broken)


def _set_last(field: NeuralField, matrix: np.ndarray, prior: float | None) -> None:
    """Give the last layer a factor of its covariance, the inverse of ``matrix`` plus the precision of the prior."""
    linear = Linearized(field)
    name = next(p.name for p in parameters(field) if p.owner is linear.last.factor).rpartition(".factor.")[0]
    weights = field.matrix(f"{name}.linear.weights")
    tau = _root_mean_square(weights) if prior is None else prior
    values, vectors = np.linalg.eigh(matrix)
    # rounding may have made the smallest ones negative
    factor = vectors.T / np.sqrt(np.maximum(values, 0) + tau**-2)[:, None]
    linear.last.scale = scale = float(np.abs(factor).max())
    columns = weights.shape[1]
    field.set_matrix(f"{name}.factor.weights", factor[:, :columns] / scale)
    if factor.shape[1] > columns:
        field.set_matrix(f"{name}.factor.bias", factor[:, columns] / scale)


def _set_grid(field: NeuralField, layer: DrawnGrid, squares: np.ndarray, prior: float | None) -> None:
    """Give a grid the deviations of its features."""
    means, deviations = layer.grid.grid.value, layer.deviation.value
    names = {id(p.owner): p.name for p in parameters(field)}
    visited = field.matrix(names[id(means)])[squares > 0]
    tau = _root_mean_square(visited) if prior is None else prior
    field.set_matrix(names[id(deviations)], 1 / np.sqrt(squares + tau**-2))


def _root_mean_square(values: np.ndarray) -> float:
    rms = float(np.sqrt(np.mean(np.square(values.astype(np.float64))))) if values.size else 0.0
    return rms if rms > 0 else 1.0
