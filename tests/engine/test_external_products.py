"""Products that frozen steps leave to be computed between their halves."""

import drjit as dr
import numpy as np
import pytest
from support.training import make_batch, make_field

import coopnet as cn
from coopnet.engine import ExternalProducts, products
from coopnet.engine.strategies import caller_multiplies
from coopnet.training.step import Options, Step

pytestmark = pytest.mark.usefixtures("several_threads")


@pytest.fixture
def halves(backend, set_limits, monkeypatch):
    """Whether steps are cut in two, however small; counts those that were. Dr.Jit multiplies if no library does."""
    if backend == "cuda" and not products.library(dr.JitBackend.CUDA):
        pytest.skip("needs cuBLAS")
    if not products.library(dr.JitBackend.LLVM):
        pytest.skip("needs NumPy's OpenBLAS")
    seen, multiply = [], ExternalProducts.multiply

    def noted(self, operands):
        seen.append([rows.numbers for _, p in self.entries for rows in (p.cotangent, p.activation)])
        return multiply(self, operands)

    monkeypatch.setattr(ExternalProducts, "multiply", noted)

    def set_(cut):
        seen.clear()
        set_limits(CUT_MULTIPLICATIONS=0 if cut else 1 << 62)
        return seen

    return set_


def train(ns, backend, steps=12, batch=None, make=make_field, path=None, **options):
    field = make(backend)
    # that of the CPU on the GPU, too, where small ones take another
    with cn.gradient_path(path or ("store" if backend == "cuda" else "auto")):
        result = cn.fit(field, batch or make_batch(ns), steps, seed=3, progress=False, **options)
    return result, {name: value.numpy().astype(np.float64) for name, value in field.items()}


def objective(field, drawn, key):
    """The field at the points and at others: two products for each layer."""
    points, targets = drawn
    y, z = field(points, key), field([1 - p for p in points], key.fold_in(7))
    return dr.square(y[0] - targets[0]) + dr.square(z[1] - targets[1])


def shared(backend):
    """A layer that is there twice."""
    layer = cn.Linear(8, 8)
    net = cn.Sequential(cn.Linear(2, 8), cn.ReLU(), layer, cn.ReLU(), layer, cn.ReLU(), cn.Linear(8, 2))
    return cn.NeuralField(None, net).build(backend)


def grids(backend):
    return make_field(backend, encoding=cn.HashGrid(2, n_levels=3, base_resolution=4, hashmap_size=256))


CASES = {
    "plain": {},
    "everything": dict(
        clip_norm=0.1, weight_decay=0.1, multipliers={"layers.0": 0.5},
        penalty=lambda field: 1e-3 * cn.training.l2_penalty(field),
    ),
    "twice": dict(objective=objective),
    "grid": dict(make=grids),
    "adamw": dict(optimizer=dr.opt.AdamW),
    "stored": dict(path="store"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_same_as_in_one(ns, backend, halves, case):
    options = dict(CASES[case])
    make = options.pop("optimizer", dr.opt.Adam)
    found = {}
    for cut in (False, True):
        cuts = halves(cut)
        found[cut] = train(ns, backend, optimizer=make(lr=1e-2), **options)
        assert len(cuts) == (12 if cut else 0) and found[cut][0].recordings <= 3
    (one, weights), (other, others) = found[False], found[True]
    tolerance = 3e-2 if backend == "cuda" else 2e-4
    np.testing.assert_allclose(other.losses, one.losses, rtol=tolerance)
    for name, value in weights.items():
        np.testing.assert_allclose(others[name], value, atol=tolerance * np.abs(value).max())


def test_a_network_that_is_not_the_fields(ns, backend, halves):
    """Gradients of others are computed at once: nobody would take them later."""
    gradients = []
    for cut in (True, False):
        other = make_field(backend, seed=5)
        dr.enable_grad(other["network.weights"])

        def objective(field, drawn, key, other=other):
            points, targets = drawn
            return dr.square(field(points, key)[0] - targets[0]) + 1e-3 * other(points, key)[1]

        cuts = halves(cut)
        result, _ = train(ns, backend, steps=4, objective=objective)
        assert len(cuts) == (4 if cut else 0) and np.isfinite(result.losses).all()
        gradients.append(dr.grad(other["network.weights"].array).numpy().astype(np.float64))
    scale = np.abs(gradients[1]).max()
    assert scale > 0
    np.testing.assert_allclose(*gradients, rtol=0, atol=1e-2 * scale)


def test_batches_of_changing_size(ns, backend, halves):
    halves(True)
    sizes = iter([256, 256, 512, 512, 300, 256, 512])
    state = {"n": 256}
    points = {n: ns.Array2f(np.random.default_rng(n).random((2, n))) for n in (256, 300, 512)}
    dr.eval(points)
    current = {"p": points[256]}

    def batch(key):
        p = current["p"]
        return [p[0], p[1]], [dr.sin(6 * p[0]) * p[1], p[0] * p[1]]

    field = make_field(backend)
    optimizer = dr.opt.Adam(lr=1e-2)
    optimizer.update(field)
    step = Step(field, optimizer, batch, Options())
    one = make_field(backend)
    alone = dr.opt.Adam(lr=1e-2)
    alone.update(one)
    plain = Step(one, alone, batch, Options())
    with cn.gradient_path("store" if backend == "cuda" else "auto"):
        for number, n in enumerate(sizes):
            current["p"] = points[n]
            state["n"] = n
            key = dr.opaque(ns.UInt64, 5), dr.opaque(ns.UInt32, number)
            step.optimizer.lr = alone.lr = dr.opaque(ns.Float, 1e-2)
            halves(True)
            step(*key)
            halves(False)
            plain(*key)
            assert step.losses.numpy()[number] == pytest.approx(plain.losses.numpy()[number], rel=2e-2)


def test_products_in_parts(ns, backend, halves, monkeypatch):
    """As cuBLAS returns them; they are added up in the second half."""
    if backend == "cuda":
        pytest.skip("cuBLAS returns parts by itself: the other tests have them")

    def in_parts(pairs):
        found = []
        for pair in pairs:
            whole = [v.numbers.numpy().reshape(-1, v.columns) for v in pair]
            halves = zip(*(np.array_split(v, 2) for v in whole), strict=True)
            found.append(ns.Float(np.concatenate([(u.T @ v).ravel() for u, v in halves])))
        return found

    halves(True)
    known, _ = train(ns, backend)
    monkeypatch.setitem(products._BY, "BLAS", in_parts)
    found, _ = train(ns, backend)
    np.testing.assert_allclose(found.losses, known.losses, rtol=1e-4)


def test_operands_are_not_kept(ns, backend, halves):
    """The constant of a recording knows their shapes, not their memory."""
    seen = halves(True)
    train(ns, backend, steps=3)
    assert len(seen) == 3 and all(v is None for numbers in seen for v in numbers)


def test_small_steps_stay_in_one(ns, backend, chosen):
    train(ns, backend, steps=3)
    assert chosen and not any(caller_multiplies(s) for s, _ in chosen)


def test_networks_know_when_they_choose(ns, backend, halves, chosen):
    """The way depends on whether products will be computed outside, and on how many there will be in all."""
    for cut in (True, False):
        halves(cut)
        chosen.clear()
        train(ns, backend, steps=7)
        trained = [s for s, _ in chosen if s.weights]
        assert trained and all(caller_multiplies(s) == cut and s.runs == 7 and s.frozen for s in trained)
    chosen.clear()
    make_field(backend)([ns.Float(0.5), ns.Float(0.5)])
    assert not caller_multiplies(chosen[0][0])


def test_gradients_that_are_wanted_at_once(ns, backend, halves):
    """An objective that differentiates the field by itself finds its gradient."""
    cuts, seen = halves(True), []

    def objective(field, drawn, key):
        points, targets = drawn
        weights = field["network.weights"]
        if dr.grad_enabled(weights):
            # on CUDA they are half-precision copies of the parameters, whose gradients would be cleared on the way
            dr.backward(field([1 - p for p in points], key)[0] * 1e-3, flags=dr.ADFlag.ClearNone)
            seen.append(str(dr.grad(weights).state))
            dr.clear_grad(weights)
        return dr.square(field(points, key)[0] - targets[0])

    train(ns, backend, steps=3, objective=objective)
    assert seen and str(dr.VarState.Literal) not in seen and len(cuts) == 3
