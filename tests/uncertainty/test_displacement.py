"""Posteriors of displacements of the coordinates, for fields of coordinates and fields seen along rays."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest
from support.arrays import arrays, assert_same, precisions
from support.kernels import launched
from support.networks import matrices

import coopnet as cn
from coopnet import reference as ref

N, STEPS, NOISE, PRIOR, EPS = 40, 2, 0.05, 0.3, 1e-5
LOW, HIGH = (-1.0, 0.0, -1.0), (1.0, 3.0, 1.0)


def make_field(backend, n=2, outputs=2, precision="auto", seed=1):
    network = cn.MLP(n, outputs, width=8, depth=1, activation="tanh", bias=True)
    field = cn.NeuralField(None, network, bounds=(LOW[:n], HIGH[:n])).build(backend, precision, seed=seed)
    for layer in ("layers.0", "layers.2"):  # not too flat
        field.set_matrix(f"{layer}.weights", 1.5 * field.matrix(f"{layer}.weights").astype(np.float64))
    return field


def box(unit):
    """Coordinates in the box at some of the unit cube."""
    n = len(unit)
    low, high = (np.array(side[:n])[:, None] for side in (LOW, HIGH))
    return low + unit * (high - low)


def evaluate(field, unit):
    (first, last), (bias, last_bias) = matrices(field.network)
    return last @ np.tanh(first @ unit + bias[:, None]) + last_bias[:, None]


def points(ns, n=2, samples=N, seed=0):
    unit = np.random.default_rng(seed).uniform(0.02, 0.98, (n, samples))
    p = arrays(ns, box(unit))
    low, high = (np.array(side[:n])[:, None] for side in (LOW, HIGH))
    return p, (np.stack([v.numpy() for v in p]).astype(np.float64) - low) / (high - low)


def cloud(ns, n=2, outputs=2):
    """Batches of two halves of some points, with targets of zero."""
    p, unit = points(ns, n)

    def batch(key):
        place = key.step % 2 * (N // 2) + dr.arange(ns.UInt32, N // 2)
        x = [dr.gather(ns.Float, v, place) for v in p]
        return x, [dr.zeros(ns.Float, N // 2)] * outputs

    return batch, unit


def deviations(predict, sides, extents, noise, prior):
    """By the derivatives of ``predict(displacements)``, of shape (outputs, predictions), as central differences."""
    shape = max(sides) ** len(sides), len(sides)
    squares = np.zeros(shape)
    for i in np.ndindex(shape):
        e = np.zeros(shape)
        e[i] = EPS
        squares[i] = np.sum(((predict(e) - predict(-e)) / (2 * EPS)) ** 2)
    return 1 / np.sqrt(squares / noise**2 + (prior / np.array(extents)) ** -2)


@pytest.mark.parametrize("sides", [(3, 4), (5,)])
def test_agrees_with_the_reference(backend, ns, sides):
    for precision in precisions(backend):
        compare_with_reference(backend, ns, sides, precision)


def compare_with_reference(backend, ns, sides, precision):
    field, (batch, unit) = make_field(backend, precision=precision), cloud(ns)
    posterior = cn.laplace(field, batch, STEPS, spatial=sides, noise=NOISE, prior=PRIOR)
    extents = np.subtract(HIGH, LOW)[: len(sides)]
    expected = deviations(lambda d: evaluate(field, ref.displaced(unit, d, sides)), sides, extents, NOISE, PRIOR)
    found = posterior.matrix("encoding.data").reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-4 if precision == "single" else 2e-2)
    p, unit = points(ns, samples=30, seed=3)
    std = posterior.std(p)
    assert len(std) == 1
    np.testing.assert_allclose(std[0].numpy(), ref.displacement_std(unit, found * extents, sides), rtol=1e-4)


RAYS, BINS, SPAN = 12, 6, (0.0, 3.0)


def rays(ns):
    r = np.random.default_rng(2)
    o = np.stack([r.uniform(-0.8, 0.8, RAYS), r.uniform(0.2, 2.5, RAYS), np.full(RAYS, -1.4)]).astype(np.float32)
    d = np.stack([r.uniform(-0.1, 0.1, RAYS), r.uniform(-0.1, 0.1, RAYS), np.ones(RAYS)]).astype(np.float32)
    return o, d


def holes(p, d, key, active, field):
    """A field of which a slice in the middle of the rays is left out."""
    there = active & (abs(p.z - 0.1) > 0.3)
    y = field(p, key, there)
    return dr.select(there, dr.exp(y[0]), 0), [1 / (1 + dr.exp(-v)) for v in y[1:]]


@pytest.mark.parametrize("seen_by", ["field", "traced code", "occupancy"])
def test_along_rays(backend, ns, seen_by):
    """The samples of a ray around a vertex count together, also where some between them were left out."""
    traced = seen_by == "traced code"
    grid = cn.render.OccupancyGrid(8, LOW, HIGH, backend) if seen_by == "occupancy" else None
    sides, (o, d) = (3, 3, 4), rays(ns)
    field = make_field(backend, 3, 4)
    origins, directions = ns.Array3f(arrays(ns, o)), ns.Array3f(arrays(ns, d))

    def seen(f, inputs):
        radiance = (lambda p, d, key, active: holes(p, d, key, active, f)) if traced else f
        options = dict(density="exp", background=0.3, occupancy=grid)
        return cn.render.ray_march(radiance, *inputs, *SPAN, BINS, **options).color

    def batch(key):
        return (origins, directions), [key.step * 0.0 + dr.zeros(ns.Float, RAYS)] * 3

    posterior = cn.laplace(field, batch, 1, spatial=sides, predict=seen, noise=NOISE / 20, prior=PRIOR)
    t, length = ref.march_distances(np.full(RAYS, SPAN[0]), np.full(RAYS, SPAN[1]), np.full((BINS, 1), 0.5))
    p = (o[:, None] + t * d[:, None]).astype(np.float64)
    low, high = (np.array(side)[:, None] for side in (LOW, HIGH))
    unit = (p.reshape(3, -1) - low) / (high - low)

    def predict(displacements):
        y = evaluate(field, ref.displaced(unit, displacements, sides)).reshape(4, BINS, RAYS)
        sigma = np.exp(y[0]) * (abs(p[2] - 0.1) > (0.3 if traced else -1))
        if grid is not None:  # which is full, but ends with the box
            sigma *= ((unit >= 0) & (unit <= 1)).all(axis=0).reshape(BINS, RAYS)
        return ref.ray_march(sigma, 1 / (1 + np.exp(-y[1:])), t, length, 0.3)[0]

    expected = deviations(predict, sides, np.subtract(HIGH, LOW), NOISE / 20, PRIOR)
    found = posterior.matrix("encoding.data").reshape(expected.shape)
    assert found.min() < 0.5 * found.max()
    np.testing.assert_allclose(found, expected, rtol=2e-4 if backend == "llvm" else 6e-2)
    with pytest.raises(RuntimeError, match="mode='wide'"):
        cn.laplace(
            field, batch, 1, spatial=sides,
            predict=lambda f, inputs: cn.render.ray_march(f, *inputs, *SPAN, BINS, mode="loop").color,
        )  # fmt: skip


def test_drawn_functions_agree_with_the_reference(backend, ns):
    sides, (seed, step) = (3, 4), (2**40 + 3, 7)
    field, (batch, _) = make_field(backend), cloud(ns)
    posterior = cn.laplace(field, batch, 1, spatial=sides, prior=0.5)
    p, unit = points(ns, samples=30, seed=3)
    deviation = posterior.matrix("encoding.data").reshape(-1, 2).astype(np.float64)
    moves = deviation * ref.parameter_noise(len(deviation), 2, seed, step, 0)
    expected = evaluate(field, ref.displaced(unit, moves, sides))
    whole = posterior(p, cn.Key(seed, step=step)).numpy()
    np.testing.assert_allclose(whole, expected, atol=2e-5 if backend == "llvm" else 2e-2)
    each = posterior(p, cn.Key(seed, step=dr.opaque(ns.UInt32, step, 30))).numpy()  # drawn where it is looked up
    assert_same(backend, each, whole)
    assert_same(backend, posterior(p).numpy(), field(p).numpy())
    eps, rows = 1e-3 if backend == "llvm" else 2e-2, posterior.jacobian(p, cn.Key(3))
    moved = [[v + sign * eps * (k == 0) for k, v in enumerate(p)] for sign in (1, -1)]
    slope = np.subtract(*(posterior(q, cn.Key(3)).numpy() for q in moved)) / (2 * eps)
    close = abs(np.stack([row[0].numpy() for row in rows]) - slope) < 0.05 * abs(slope).max()
    assert close.mean() > 0.9  # the others' differences reach over the face of a cell


def test_saved_frozen_in_loops_and_exported(backend, ns, tmp_path):
    pytest.importorskip("safetensors")
    field, (batch, _) = make_field(backend), cloud(ns)
    posterior, (p, _) = cn.laplace(field, batch, 1, spatial=4), points(ns, samples=30, seed=3)
    cn.save(tmp_path / "f.safetensors", posterior)
    again = cn.load(tmp_path / "f.safetensors", backend)
    assert repr(again.encoding) == repr(posterior.encoding)
    frozen = dr.freeze(lambda f, p, key: (f(p, key), f.std(p)))
    for step in range(2):
        key = cn.Key(dr.opaque(ns.UInt64, 5), None, dr.opaque(ns.UInt32, step))
        expected = posterior(p, key).numpy(), posterior.std(p).numpy()
        assert_same(backend, again(p, key).numpy(), expected[0])
        for found, wanted in zip(frozen(posterior, p, key), expected, strict=True):
            assert_same(backend, found.numpy(), wanted)
    state = ns.UInt32(0), dr.zeros(ns.Float, 30), dr.zeros(ns.Float, 30)
    _, last, std = dr.while_loop(
        state,
        lambda i, *_: i < 2,
        lambda i, *_: (i + 1, posterior(p, cn.Key(5, step=i))[0], posterior.std(p)[0]),
        mode="symbolic",
    )
    assert_same(backend, last.numpy(), expected[0][0])
    assert_same(backend, std.numpy(), expected[1][0])
    cn.export(posterior, "numpy", tmp_path / "posterior.py", name="f")
    scope = {"__file__": str(tmp_path / "posterior.py"), "__name__": "posterior"}
    exec((tmp_path / "posterior.py").read_text(), scope)
    values = scope["f"](np.stack([v.numpy() for v in p]))
    np.testing.assert_allclose(values, field(p).numpy(), atol=1e-5 if backend == "llvm" else 2e-2)


def test_derivatives_on_the_faces_of_the_box(backend, ns, tmp_path):
    """They are those above: inside on a lower face, and outside, where displacements are constant, on an upper one."""
    field = cn.NeuralField(cn.Identity(), cn.MLP(2, 1, width=8, activation="tanh")).build(backend)

    def batch(key):
        p = cn.uniform(2, key, ns.Float, 256)
        return p, [p[0] * p[1]]

    posterior, key, derivatives = cn.laplace(field, batch, 1, spatial=4, noise=3.0), cn.Key(1), []
    for on_face, above in ((0.0, 1e-4), (1.0, 1.0 + 1e-4)):
        p = [ns.Float(on_face, above), ns.Float(0.3)]
        derivatives.append(posterior.value_and_grad(p, key)[1][0].numpy())
        attached = [ns.Float(v) for v in p]
        dr.enable_grad(attached)
        dr.backward(posterior(attached, key)[0])
        for found in (derivatives[-1], dr.grad(attached[0]).numpy()):
            assert found[0] == pytest.approx(found[1], abs=1e-3 if backend == "llvm" else 2e-2)
    if backend == "llvm":
        cn.export(posterior, "numpy", tmp_path / "p.py", name="f", dropout=True, derivatives=True)
        scope = {"__file__": str(tmp_path / "p.py"), "__name__": "posterior"}
        exec((tmp_path / "p.py").read_text(), scope)
        words = np.array([[1, 0, 0, 0]] * 2, np.uint32).T
        slopes = scope["f_jacobian"](np.float32([[0, 1], [0.3, 0.3]]), words)[1]
        np.testing.assert_allclose(np.reshape(slopes, (-1, 2))[0], [v[0] for v in derivatives], atol=1e-4)


def test_knows_what_it_has_not_seen(backend, ns):
    """The lower half of the box along the first axis; by default, nothing moves by more than a cell."""
    field, (p, unit) = make_field(backend, outputs=1), points(ns, samples=1000)

    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, 500)
        return [x - 1, 3 * y], [x]

    posterior = cn.laplace(field, batch, 2, spatial=9)
    deviation = posterior.std(p)
    assert cn.auroc(deviation[0], unit[0] > 0.5) > 0.97
    assert deviation[0].numpy().max() == pytest.approx(np.hypot(2 / 8, 3 / 8), rel=1e-3)
    few, many = (cn.laplace(field, batch, 1, spatial=9, noise=0.1, prior=9.0, samples=n).std(p) for n in (100, 10_000))
    ratio = (few[0].numpy() / many[0].numpy())[unit[0] < 0.4]
    assert np.median(ratio) == pytest.approx(10, rel=0.05)
    calibrated = cn.calibrate(posterior, (p, [p[0]]), samples=4)  # of outputs, by draws
    assert np.isfinite(calibrated(p)[1].numpy()).all()


def zeros(ns, samples=4):
    return [dr.zeros(ns.Float, samples)] * 2


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(spatial=1), ValueError, "spatial is 1"),
        (dict(spatial="8"), ValueError, "spatial is '8'"),
        (dict(spatial=(4, 4, 4)), ValueError, "spatial has 3 entries"),
        (dict(spatial=()), ValueError, "spatial has 0 entries"),
        (dict(spatial=(4, 1.5)), ValueError, r"spatial[1] is 1.5"),
        (dict(spatial=2**17), ValueError, "name the first coordinates alone"),
        (dict(spatial=type("Odd", (int,), {"__repr__": None})(2**17)), ValueError, "name the first coordinates alone"),
        (dict(spatial=None, predict=lambda f, x: f(x)), ValueError, "predict is given"),
        (dict(predict=3), TypeError, "predict is a int"),
        (dict(predict=lambda f, x: [f(x)[0]]), ValueError, "1 components for targets of 2"),
        (dict(predict=lambda f, x: [*f(x)][:1] + [f(x)[0]]), ValueError, "evaluates the field 2 times"),
        (dict(predict=lambda f, x: [v * 0 for v in x]), ValueError, "evaluates the field 0 times"),
        (dict(predict=lambda f, x: 3), TypeError, "what predict returned"),
        (dict(batch=lambda key: 3, predict=lambda f, x: f(x)), TypeError, "a pair (inputs, targets)"),
        (dict(far=True), ValueError, "lie within the field's bounds"),
    ],
)
def test_bad_arguments(backend, ns, change, error, words):
    change = dict(change)
    far = change.pop("far", False)
    batch = lambda key: ([v + 9.0 * far for v in zeros(ns)], [v + 1 for v in zeros(ns)])  # noqa: E731
    arguments = dict(batch=batch, steps=1, spatial=4) | change
    with pytest.raises((error, RuntimeError)) as info:
        cn.laplace(make_field(backend), arguments.pop("batch"), arguments.pop("steps"), **arguments)
    assert words in str(info.value)
    assert isinstance(info.value, error)


def test_only_once(backend, ns):
    field, (batch, _) = make_field(backend), cloud(ns)
    posterior = cn.laplace(field, batch, 1, spatial=3)
    for spatial in (None, 3):
        with pytest.raises(ValueError, match="draws parameters already"):
            cn.laplace(posterior, batch, 1, spatial=spatial)


def test_one_kernel_for_the_derivatives_of_all_outputs(ns, backend):
    kernels = []
    for outputs in (2, 4):
        field = cn.NeuralField(cn.HashGrid(2, n_levels=2, hashmap_size=2**6), cn.MLP(-1, outputs, 16, 1)).build(backend)

        def batch(key, outputs=outputs):
            p = cn.uniform(2, key, ns.Float, 64)
            return p, [p[0]] * outputs

        with launched() as history:
            cn.laplace(field, batch, 1, spatial=4, predict=lambda field, p: field(p))
        sizes = [k["operation_count"] for k in history if k["size"] == 64]  # one lane for each sample
        kernels.append(len({size for size in sizes if size > 0.8 * max(sizes)}))  # hashes depend on addresses, too
    assert kernels == [1, 1]


def test_data_outside_the_box(backend, ns):
    """Deviations say nothing there, which is not to be found out from results."""
    field = make_field(backend)
    inside, outside = ([ns.Float(v) for v in box(u)] for u in (np.full((2, 100), 0.5), np.full((2, 20), 1.5)))
    targets = [ns.Float(0)] * 2
    cn.laplace(field, lambda key: (inside, targets), 1, spatial=4)
    both = [dr.concat([a, b]) for a, b in zip(inside, outside, strict=True)]
    with pytest.warns(RuntimeWarning, match="83.3% of the samples lie within the field's bounds") as found:
        cn.laplace(field, lambda key: (both, targets), 2, spatial=4)
    assert len(found) == 1
