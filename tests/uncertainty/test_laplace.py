"""Posteriors of fields: deviations against the reference, and parameters that a key draws."""

from __future__ import annotations

import gc

import drjit as dr
import numpy as np
import pytest
from support.arrays import assert_same, evaluated, precisions
from support.kernels import launched
from support.networks import matrices

import coopnet as cn
from coopnet import reference as ref
from coopnet.nn.drawn import DrawnGrid, DrawnLinear

N, BATCH, STEPS = 60, 128, 3
GRID = dict(n_levels=2, base_resolution=4)
NOISE, PRIOR = 0.05, 0.3


def wave(ns, outputs=2, size=BATCH):
    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, size)
        return [0.5 * x, y], [dr.sin(6 * x) * y, y * y][:outputs]

    return batch


def make_field(backend, ns, precision="auto", encoding=None, activation=None, steps=20, outputs=2, bias=True):
    encoding = encoding or cn.HashGrid(2, hashmap_size=2**9, init_scale=0.5, **GRID)
    network = cn.MLP(-1, outputs, width=6, depth=1, activation="tanh", output_activation=activation, bias=bias)
    field = cn.NeuralField(encoding, network).build(backend, precision, seed=1)
    cn.fit(field, wave(ns, outputs), steps, lr=1e-2, progress=False)
    return field


def points(ns, n=N):
    x = np.random.default_rng(0).random((2, n)).astype(np.float32) * 0.96 + 0.02
    p = ns.Array2f(x)
    dr.make_opaque(p)
    return p


def derivatives(field, x):
    """By the features of the grid, by what the last layer has, and the slopes behind that, in float64."""
    table = field.matrix("encoding.data").astype(np.float64)
    unit = np.eye(len(table))
    (weights, last), (bias, last_bias) = matrices(field.network)
    by_entry = np.stack([ref.hash_grid(x, u, **GRID) for u in unit])  # features are linear in the table
    features = np.einsum("ekn,e->kn", by_entry, table)
    hidden = np.tanh(weights @ features + bias[:, None])
    a = last @ hidden + last_bias[:, None]
    sigmoid = "Sigmoid" in repr(field.network)
    slopes = ref.ACTIVATIONS["sigmoid"][1](a) if sigmoid else np.ones_like(a)
    by_feature = np.einsum("on,oh,hn,hk->okn", slopes, last, 1 - hidden**2, weights)
    return np.einsum("okn,ekn->oen", by_feature, by_entry), np.vstack([hidden, np.ones(x.shape[1])]), slopes


@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_agrees_with_the_reference(backend, ns, activation):
    for precision in precisions(backend) if activation is None else ["auto"]:
        compare_with_reference(backend, ns, activation, precision)


def compare_with_reference(backend, ns, activation, precision):
    field = make_field(backend, ns, precision, activation=activation)
    posterior = cn.laplace(field, wave(ns), STEPS, seed=5, noise=NOISE, prior=PRIOR)
    data = [wave(ns)(cn.Key(5, step=i).traced(ns.UInt32))[0] for i in range(STEPS)]
    x = np.concatenate([np.stack([v.numpy() for v in part]) for part in data], axis=1).astype(np.float64)
    by_entry, hidden, slopes = derivatives(field, x)
    rtol = 2e-4 if precision == "single" else 2e-2
    # the grid: the diagonal of the precision
    deviation = 1 / np.sqrt(np.einsum("oen,oen->e", by_entry, by_entry) / NOISE**2 + PRIOR**-2)
    np.testing.assert_allclose(posterior.matrix("encoding.data"), deviation, rtol=rtol)
    # the last layer: all of it, for slopes that are the mean of all outputs'
    mean = np.sqrt(np.mean(slopes**2, axis=0))
    covariance = ref.laplace((mean * hidden)[None], NOISE, PRIOR)
    layer = next(m for m in posterior.network.layers if isinstance(m, DrawnLinear))
    place = posterior.network.layers.index(layer)
    factor = [posterior.matrix(f"network.layers.{place}.factor.{name}") for name in ("weights", "bias")]
    factor = np.column_stack(factor).astype(np.float64) * layer.scale
    np.testing.assert_allclose(factor.T @ factor, covariance, atol=abs(covariance).max() * rtol)
    # deviations at other points
    p = points(ns)
    by_entry, hidden, slopes = derivatives(field, p.numpy().astype(np.float64))
    last = [ref.linearized_std((g * hidden)[None], covariance)[0] for g in slopes]
    expected = np.sqrt(ref.linearized_std(by_entry, np.diag(deviation**2)) ** 2 + np.square(last))
    np.testing.assert_allclose(posterior.std(p).numpy(), expected, rtol=5e-4 if precision == "single" else 3e-2)


def test_nearly_collinear_features(ns):
    """The smallest eigenvalues of the last layer's matrix would be lost in sums of single precision. In half
    precision, rounding of the features themselves hides them.
    """
    if dr.backend_v(ns.Float) == dr.JitBackend.CUDA:
        pytest.skip("networks have half precision")
    network = cn.Sequential(cn.Linear(2, 16), cn.ReLU(), cn.Linear(16, 1))
    field = cn.NeuralField(None, network, in_features=2).build("llvm", seed=1)
    w = np.float16([1, 0.5] + 2.0**-9 * np.random.default_rng(0).standard_normal((16, 2))).astype(np.float32)
    field.set_matrix("network.layers.0.weights", w)
    field.set_matrix("network.layers.0.bias", np.full(16, 0.5, np.float32))

    def batch(key):
        x, y = (v + 0.25 for v in cn.uniform(2, key, ns.Float, 2**12))
        return [x, y], [x]

    def hidden(x):
        h = np.maximum(np.float64(w) @ x + 0.5, 0)
        return np.vstack([h, np.ones_like(h[:1])])

    noise = 0.01
    posterior = cn.laplace(field, batch, 2, noise=noise, prior=1.0)
    data = [batch(cn.Key(0, step=i).traced(ns.UInt32))[0] for i in range(2)]
    x = np.concatenate([np.stack([v.numpy() for v in part]) for part in data], axis=1).astype(np.float64)
    p = np.random.default_rng(1).random((2, 64)).astype(np.float32)
    found = posterior.std([ns.Float(v) for v in p]).numpy()[0]
    covariance = ref.laplace(hidden(x)[None], noise, 1.0)
    expected = ref.linearized_std(hidden(np.float64(p))[None], covariance)
    np.testing.assert_allclose(found, expected[0], rtol=1e-3)


def test_drawn_functions_agree_with_the_reference(backend, ns):
    """The table and the last layer of a key, by hand."""
    field = make_field(backend, ns)
    posterior = cn.laplace(field, wave(ns), 1)
    p, (seed, step) = points(ns), (2**40 + 3, 7)
    deviation, table = posterior.matrix("encoding.data"), field.matrix("encoding.data")
    table = table + deviation * ref.parameter_noise(len(table) // 2, 2, seed, step, 0).ravel()
    (weights, last), (bias, last_bias) = matrices(field.network)
    layer = posterior.network.layers[-1]
    factor = [posterior.matrix(f"network.layers.2.factor.{name}") for name in ("weights", "bias")]
    factor = np.column_stack(factor).astype(np.float64) * layer.scale
    rows = ref.parameter_noise(2, factor.shape[0], seed, step, 1) @ factor
    features = ref.hash_grid(p.numpy().astype(np.float64), table.astype(np.float64), **GRID)
    hidden = np.tanh(weights @ features + bias[:, None])
    expected = (last + rows[:, :-1]) @ hidden + (last_bias + rows[:, -1])[:, None]
    tolerance = 1e-5 if backend == "llvm" else 2e-2
    np.testing.assert_allclose(posterior(p, cn.Key(seed, step=step)).numpy(), expected, atol=tolerance)
    assert_same(backend, posterior(p).numpy(), field(p).numpy())


def test_deviations_of_draws_are_those_by_linearization(backend, ns):
    posterior = cn.laplace(make_field(backend, ns), wave(ns), STEPS, noise=1e-3, prior=1e-2)
    p = points(ns, 200)
    _, deviation = cn.mc_dropout(posterior, p, cn.Key(0), 400)
    ratio = deviation.numpy() / posterior.std(p).numpy()
    assert 0.9 < np.median(ratio) < 1.1 and (abs(ratio - 1) < 0.3).mean() > 0.95


def test_one_table_or_many_are_equal_to_the_bit(backend, ns):
    """Drawn once, where features are looked up in a loop, and for each sample its own."""
    posterior, p = cn.laplace(make_field(backend, ns), wave(ns), 1), points(ns)
    whole = [posterior(p, cn.Key(3, step=i)).numpy() for i in range(3)]
    state = (ns.UInt32(0), dr.zeros(ns.Float, N), dr.zeros(ns.Float, N))

    def body(i, first, last):
        y = posterior(p, cn.Key(3, step=i))[0]
        return i + 1, dr.select(i == 0, y, first), y

    _, first, last = dr.while_loop(state, lambda i, *_: i < 3, body, mode="symbolic")
    assert_same(backend, first.numpy(), whole[0][0])
    assert_same(backend, last.numpy(), whole[2][0])
    steps = ns.UInt32(np.arange(N, dtype=np.uint32) % 3)
    features, *whole_features = (
        [v.numpy() for v in evaluated(posterior.encoding(list(p), cn.Key(3, step=i)))] for i in (steps, 0, 1, 2)
    )
    np.testing.assert_array_equal(features, np.choose(np.arange(N) % 3, whole_features))  # on every backend
    each = posterior(p, cn.Key(3, step=steps)).numpy()
    assert_same(backend, each, np.choose(np.arange(N) % 3, whole))


def test_all_samples_and_batches_see_one_function(backend, ns):
    posterior, p = cn.laplace(make_field(backend, ns), wave(ns), 1), points(ns)
    whole = posterior(p, cn.Key(3)).numpy()
    part = dr.gather(ns.Array2f, p, ns.UInt32([17, 5, 40]))
    for index in (None, 9):
        assert_same(backend, posterior(part, cn.Key(3, index)).numpy(), whole[:, [17, 5, 40]])


def test_sums_do_not_depend_on_the_batch(backend, ns):
    """Samples count one by one, in batches of any size; and a run again is equal to the bit."""
    field, x = make_field(backend, ns), np.random.default_rng(3).random((2, 4096)).astype(np.float32)
    columns = [ns.Float(v) for v in x]
    dr.make_opaque(columns)

    def some(size):
        def batch(key):
            place = key.step * size + dr.arange(ns.UInt32, size)
            p = [dr.gather(ns.Float, v, place) for v in columns]
            return p, [p[0], p[1]]

        return cn.laplace(field, batch, 4096 // size, noise=NOISE, prior=PRIOR)

    names = [n for n in ("encoding.data", "network.layers.2.factor.weights")]
    one, two, again = some(4096), some(64), some(64)
    p = points(ns)
    for name in names:
        np.testing.assert_array_equal(two.matrix(name), again.matrix(name))
    np.testing.assert_allclose(one.matrix(names[0]), two.matrix(names[0]), rtol=1e-4)
    np.testing.assert_allclose(one.std(p).numpy(), two.std(p).numpy(), rtol=1e-3 if backend == "llvm" else 3e-2)


def test_samples_scale_the_sums(backend, ns):
    field, p = make_field(backend, ns), points(ns)
    few, many = (cn.laplace(field, wave(ns), 1, samples=n, noise=NOISE, prior=10.0) for n in (100, 10_000))
    seen = p.numpy()[0] < 0.3
    ratio = (few.std(p).numpy() / many.std(p).numpy())[:, seen]
    assert 7 < np.median(ratio) <= 10.1


def test_saved_frozen_and_in_one_kernel(backend, ns, tmp_path):
    pytest.importorskip("safetensors")
    posterior, p = cn.laplace(make_field(backend, ns), wave(ns), 1), points(ns)
    cn.save(tmp_path / "f.safetensors", posterior)
    again = cn.load(tmp_path / "f.safetensors", backend)
    draw, deviation = dr.freeze(lambda f, p, key: f(p, key)), dr.freeze(lambda f, p: f.std(p))
    for step in range(3):
        key = cn.Key(dr.opaque(ns.UInt64, 5), None, dr.opaque(ns.UInt32, step))
        expected = posterior(p, key).numpy()
        assert_same(backend, again(p, key).numpy(), expected)
        assert_same(backend, draw(posterior, p, key).numpy(), expected)
        assert_same(backend, deviation(posterior, p).numpy(), again.std(p).numpy())
    with launched() as kernels:
        dr.eval(posterior.std(p))
    assert len(kernels) == 1
    total = dr.while_loop(
        (ns.UInt32(0), dr.zeros(ns.Float, N)),
        lambda i, s: i < 2,
        lambda i, s: (i + 1, s + posterior.std([p[0] + ns.Float(i) * 0, p[1]])[0]),
        mode="symbolic",
    )[1]
    np.testing.assert_allclose(total.numpy(), 2 * posterior.std(p)[0].numpy(), rtol=1e-5 if backend == "llvm" else 2e-2)


def test_gradients_of_a_drawn_function(backend, ns):
    """By coordinates, as differences have them, and by the means of the features, as of the field itself."""
    posterior = cn.laplace(make_field(backend, ns), wave(ns), 1, prior=0.1)
    p, key = points(ns), cn.Key(3)
    eps = 1e-3 if backend == "llvm" else 1e-2
    rows = posterior.jacobian(p, key)
    slope = (posterior(p + ns.Array2f(eps, 0), key).numpy() - posterior(p - ns.Array2f(eps, 0), key).numpy()) / (
        2 * eps
    )
    close = abs(np.stack([row[0].numpy() for row in rows]) - slope) < 0.05 * abs(slope).max()
    assert close.mean() > 0.9  # the others' differences reach over the face of a cell
    name = "encoding.grid.data"
    gradients = []
    for inside in (False, True):
        value = type(posterior[name])(dr.detach(posterior[name]))
        dr.enable_grad(value)
        posterior[name] = value
        if inside:
            step = ns.UInt32(np.zeros(N, np.uint32))  # each sample draws what it looks up
            y = posterior(p, cn.Key(3, None, step))
        else:
            y = posterior(p, key)
        dr.backward(dr.sum(dr.square(y[0])))
        gradients.append(posterior.gradient(name))
        posterior[name] = dr.detach(value)
    assert abs(gradients[0]).max() > 0.1
    np.testing.assert_allclose(*gradients, atol=1e-5 if backend == "llvm" else 1e-2)


def auroc(score, positive):
    rank = np.argsort(np.argsort(score))
    return (rank[positive].mean() - (positive.sum() - 1) / 2) / (~positive).sum()


def test_a_grid_knows_what_it_has_not_seen(backend, ns):
    """The left half of a square: where no sample was, deviations are larger."""

    def left(key):
        x, y = cn.uniform(2, key, ns.Float, 1024)
        return [0.5 * x, y], [dr.sin(6 * x) * dr.cos(9 * y)]

    encoding = cn.HashGrid(2, n_levels=5, base_resolution=8, hashmap_size=2**12)
    field = cn.NeuralField(encoding, cn.MLP(out_features=1, width=16, depth=2)).build(backend)
    cn.fit(field, left, 150, lr=1e-2, progress=False)
    posterior, p = cn.laplace(field, left, 8), points(ns, 2000)
    unseen = p.numpy()[0] > 0.5
    assert auroc(posterior.std(p)[0].numpy(), unseen) > 0.97
    assert auroc(cn.mc_dropout(posterior, p, cn.Key(0), 16)[1][0].numpy(), unseen) > 0.97


@pytest.mark.parametrize("reduction", ["concatenation", "sum"])
def test_grids_side_by_side(backend, ns, reduction):
    """Grids of different coordinates in one encoding: deviations and draws beside the reference."""
    options = dict(n_levels=2, base_resolution=4, hashmap_size=64, init_scale=0.5)
    whole, rest = cn.HashGrid(2, **options), cn.HashGrid(1, **options)
    if reduction == "sum":
        encoding, place = cn.Composite([cn.nn.Pad(whole, 1, 1), cn.nn.Pad(rest, 0, 2)], [2, 1], [0, 1], "sum"), (1, 0)
    else:
        encoding, place = cn.Composite([cn.Identity(), whole, rest], [1, 2, 1], [0, 0, 1]), (1, 5)
    network = cn.MLP(-1, 2, width=6, depth=1, activation="tanh", bias=True)
    field = cn.NeuralField(encoding, network, in_features=2).build(backend, seed=1)
    cn.fit(field, wave(ns), 20, lr=1e-2, progress=False)
    posterior = cn.laplace(field, wave(ns), 1, seed=5, noise=NOISE, prior=PRIOR)
    inside = [i for i, part in enumerate(posterior.encoding.nested) if "DrawnGrid" in repr(part)]
    names = [f"encoding.nested.{i}." + ("nested." if reduction == "sum" else "") for i in inside]
    tables = [posterior.matrix(name + "grid.data").astype(np.float64) for name in names]
    (weights, last), (bias, last_bias) = matrices(field.network)

    def features(x, tables):
        """Of both grids, where the encoding has them; linear in the tables."""
        found = np.zeros((weights.shape[1], x.shape[1]))
        for table, part, first in zip(tables, (x, x[1:2]), place, strict=True):
            found[first : first + 4] += ref.hash_grid(part, table, n_levels=2, base_resolution=4, hashmap_size=64)
        return found

    def hidden(x, tables):
        constant = features(x, tables)
        if reduction == "sum":
            constant[[0, 5]] += 1
            constant[4:6] += 1
        else:
            constant[0] = x[0]
        return np.tanh(weights @ constant + bias[:, None])

    def by_entry(x, number):
        h = hidden(x, tables)
        zero = [np.zeros_like(t) for t in tables]
        units = [[*zero[:number], row, *zero[number + 1 :]] for row in np.eye(len(tables[number]))]
        moved = np.stack([features(x, unit) for unit in units])
        return np.einsum("oh,hn,hk,ekn->oen", last, 1 - h**2, weights, moved)

    x = np.stack([v.numpy() for v in wave(ns)(cn.Key(5).traced(ns.UInt32))[0]]).astype(np.float64)
    rtol = 5e-4 if backend == "llvm" else 3e-2
    deviations = []
    for number, name in enumerate(names):
        deviations.append(1 / np.sqrt((by_entry(x, number) ** 2).sum(axis=(0, 2)) / NOISE**2 + PRIOR**-2))
        np.testing.assert_allclose(posterior.matrix(name + "data"), deviations[number], rtol=rtol)
    p = points(ns)
    at = p.numpy().astype(np.float64)
    covariance = ref.laplace(np.vstack([hidden(x, tables), np.ones(BATCH)])[None], NOISE, PRIOR)
    variance = ref.linearized_std(np.vstack([hidden(at, tables), np.ones(N)])[None], covariance)[0] ** 2
    for number, deviation in enumerate(deviations):
        variance = variance + np.einsum("oen,e->on", by_entry(at, number) ** 2, deviation**2)
    np.testing.assert_allclose(posterior.std(p).numpy(), np.sqrt(variance), rtol=1e-3 if backend == "llvm" else 3e-2)
    drawn = posterior(p, cn.Key(3)).numpy()
    fixed = posterior(p, cn.Key(3, step=ns.UInt32(np.zeros(N, np.uint32)))).numpy()
    assert_same(backend, fixed, drawn)
    moved = [
        table + deviation * ref.parameter_noise(len(table) // 2, 2, 3, 0, stream).ravel()
        for table, deviation, stream in zip(tables, deviations, (0, 2), strict=True)
    ]
    layer = posterior.network.layers[-1]
    factor = [posterior.matrix(f"network.layers.2.factor.{name}") for name in ("weights", "bias")]
    rows = ref.parameter_noise(2, 7, 3, 0, 1) @ (np.column_stack(factor).astype(np.float64) * layer.scale)
    expected = (last + rows[:, :-1]) @ hidden(at, moved) + (last_bias + rows[:, -1])[:, None]
    np.testing.assert_allclose(drawn, expected, atol=1e-4 if backend == "llvm" else 3e-2)


def test_grids_without_coordinates_draw_nothing(backend, ns):
    """Parts of a Composite that take none are skipped."""
    grid = cn.HashGrid(2, n_levels=1, hashmap_size=64)
    encoding = cn.Composite([cn.Identity(), grid, cn.HashGrid(n_levels=1, hashmap_size=64)], [2, 2, 0], [0, 0, 0])
    field = cn.NeuralField(encoding, cn.MLP(out_features=1, width=6, depth=1), in_features=2).build(backend)
    posterior = cn.laplace(field, wave(ns, 1), 1, noise=NOISE, prior=PRIOR)
    assert (posterior.std(points(ns)).numpy() > 0).all()


@pytest.mark.parametrize("encoding", [None, "sinusoidal", "product"])
def test_encodings(backend, ns, encoding):
    """Without a grid, the last layer alone; a grid in a product of encodings is refused."""
    parts = [cn.HashGrid(1, n_levels=1, hashmap_size=64), cn.Sinusoidal(1, in_features=1)]
    product = cn.Composite(parts, [1, 1], reduction="product")
    made = {"sinusoidal": cn.Sinusoidal(2, in_features=2), "product": product}.get(encoding)
    field = cn.NeuralField(made, cn.MLP(-1 if made else 2, 1, width=6, depth=1, bias=True)).build(backend)
    if encoding == "product":
        with pytest.raises(ValueError, match="of a product of encodings"):
            cn.laplace(field, wave(ns, 1), 1)
        return
    posterior, p = cn.laplace(field, wave(ns, 1), 1), points(ns)
    assert not isinstance(posterior.encoding, DrawnGrid)
    assert (posterior.std(p).numpy() > 0).all()
    assert (posterior(p, cn.Key(1)).numpy() != posterior(p).numpy()).any()


def test_other_grids(backend, ns):
    """Dense, with smoothstep, one or six features; and a permutohedral lattice."""
    for grid in (
        cn.Grid(2, "dense", n_levels=2, base_resolution=4, n_features_per_level=1, interpolation="smoothstep"),
        cn.HashGrid(2, n_levels=1, base_resolution=4, hashmap_size=66, n_features_per_level=6, max_level=0),
        cn.Permutohedral(2, n_levels=2, base_resolution=4, hashmap_size=64),
    ):
        field = cn.NeuralField(grid, cn.MLP(out_features=1, width=6, depth=1)).build(backend)
        posterior, p = cn.laplace(field, wave(ns, 1), 2, prior=0.01, noise=0.1), points(ns)
        whole = posterior(p, cn.Key(1)).numpy()
        each = posterior(p, cn.Key(1, step=ns.UInt32(np.zeros(N, np.uint32)))).numpy()
        assert_same(backend, each, whole)
        assert np.isfinite(posterior.std(p).numpy()).all()


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(field=3), TypeError, "field is a int"),
        (dict(steps=0), ValueError, "steps is 0"),
        (dict(seed="a"), ValueError, "seed is 'a'"),
        (dict(batch=None), TypeError, "batch is a NoneType"),
        (dict(samples=0), ValueError, "samples is 0"),
        (dict(noise=-1.0), ValueError, "noise is -1.0"),
        (dict(prior=0), ValueError, "prior is 0"),
        (dict(batch=lambda key: ([key.step * 0.5] * 3, [key.step * 0.5])), ValueError, "3 coordinates"),
        (dict(network=cn.Sequential(cn.Linear(2, 1), cn.Sinusoidal(1))), ValueError, "end in a linear layer"),
    ],
)
def test_bad_arguments(backend, ns, change, error, words):
    change = dict(change)
    network = change.pop("network", None) or cn.MLP(2, 1, width=4, depth=1)
    arguments = dict(field=cn.NeuralField(None, network).build(backend), batch=wave(ns, 1), steps=1) | change
    with pytest.raises(error, match="laplace") as info:
        cn.laplace(arguments.pop("field"), arguments.pop("batch"), arguments.pop("steps"), **arguments)
    assert words in str(info.value)


def test_coordinates_that_are_not_finite(backend, ns):
    for encoding in (None, cn.HashGrid(2, n_levels=2, hashmap_size=64)):
        field = cn.NeuralField(encoding, cn.Linear(-1, 1), in_features=2).build(backend)
        p = [ns.Float(np.nan, 0.5), ns.Float(1, 0.5)]
        with pytest.raises(ValueError, match="laplace: derivatives by parameters are not finite"):
            cn.laplace(field, lambda key, p=p: (p, [ns.Float(1, 0.2)]), 1, noise=1.0)


def test_only_once(backend, ns):
    field = cn.NeuralField(None, cn.MLP(2, 1, width=4, depth=1)).build(backend)
    with pytest.raises(ValueError, match=r"NeuralField.std: .* cn.laplace\(\)"):
        field.std(points(ns))
    with pytest.raises(ValueError, match="draws parameters already"):
        cn.laplace(cn.laplace(field, wave(ns, 1), 1), wave(ns, 1), 1)


def test_exported_by_its_means(backend, ns, tmp_path):
    """As the field that it was made of, if there is no key."""
    field = make_field(backend, ns)
    posterior = cn.laplace(field, wave(ns), 1)
    cn.export(posterior, "numpy", tmp_path / "posterior.py", name="f")
    cn.export(field, "numpy", tmp_path / "field.py", name="f")
    values = []
    for name in ("posterior", "field"):
        scope = {"__file__": str(tmp_path / f"{name}.py"), "__name__": name}
        exec((tmp_path / f"{name}.py").read_text(), scope)
        values.append(scope["f"](points(ns).numpy()))
    np.testing.assert_array_equal(*values)


@pytest.mark.parametrize("spatial", [None, 4])
def test_the_collector_is_off_while_sums_are_recorded(ns, backend, spatial):
    """What it frees of NumPy's memory would end the process."""
    seen, drawn = [], wave(ns)

    def batch(key):
        seen.append(gc.isenabled())
        return drawn(key)

    gc.enable()
    cn.laplace(make_field(backend, ns, steps=1), batch, 2, spatial=spatial)
    assert seen and not any(seen) and gc.isenabled()
