"""What Adam and SGD have beside Dr.Jit's, against the NumPy reference and in whole runs."""

from __future__ import annotations

import math

import drjit as dr
import numpy as np
import pytest
from support.kernels import launched
from support.networks import weights
from support.training import make_batch, make_field

import coopnet as cn
from coopnet import reference as ref
from coopnet.jit.optimizers import memories


def grid_field(backend, precision="auto"):
    if (backend, precision) == ("cuda", "single"):
        pytest.skip("CUDA has no single precision")
    return make_field(backend, precision, cn.HashGrid(2, n_levels=3, base_resolution=4, hashmap_size=2**8))


def numbers(optimizer):
    return {name: np.array(value.numpy()).ravel() for name, value in optimizer.items()}


@pytest.mark.parametrize("options, epsilon", [
    (dict(gradient_limit=0.3), 1e-8), (dict(weight_limit=0.8), 1e-8),
    (dict(gradient_limit=0.3, weight_limit=0.8), 1e-8), (dict(adabound=True), 1e-8), (dict(adabound=True), 1e-3),
])  # fmt: skip
@pytest.mark.parametrize("sparse", [False, True])
def test_limits(ns, options, epsilon, sparse):
    """Of gradients after their L2 term, of weights after the step, and of rates, with a rate that is an array."""
    rng = np.random.default_rng(0)
    start, gradients = rng.normal(size=8), rng.normal(size=(8, 8)) * (rng.random((8, 8)) < 0.7)
    more = dict(epsilon=epsilon, relative_decay=0.2)
    optimizer = cn.training.Adam(
        ns.Float(0.1), beta_2=0.99, non_matrix_l2_reg=0.3, skip_zero_grad=sparse, **options, **more
    )
    optimizer["data"] = ns.Float(start.astype(np.float32))
    state = start, 0 * start, 0 * start, np.zeros(8, int)
    more |= {k: v for k, v in options.items() if k != "adabound"} | dict(beta2=0.99, l2_reg=0.3)
    for t, g in enumerate(gradients, 1):
        dr.set_grad(optimizer["data"], ns.Float(g.astype(np.float32)))
        optimizer.set_learning_rate(ns.Float(0.1))
        optimizer.step()
        bounds = {"bounds": ref.adabound(t, 0.99)} if "adabound" in options else {}
        if sparse:
            state = ref.sparse_adam_step(*state, g, lr=0.1, **more, **bounds)
        else:
            state = (*ref.adam_step(*state[:3], g, t, lr=0.1, **more, **bounds), None)
        np.testing.assert_allclose(optimizer["data"].numpy(), state[0], rtol=1e-4, atol=1e-5)


def test_bounds_close_in(ns):
    """In the end every step is a tenth of the first moment, as that of SGD with momentum."""
    optimizer = cn.training.Adam(1e-3, beta_1=0.0, beta_2=0.0, adabound=True, params={"x": ns.Float(1, 2)})
    for _ in range(120):
        before = numbers(optimizer)["x"]
        dr.set_grad(optimizer["x"], ns.Float(1e-2, -3))
        optimizer.step()
    np.testing.assert_allclose(before - numbers(optimizer)["x"], [1e-3, -0.3], rtol=1e-2)


@pytest.mark.parametrize("options", [
    dict(adabound=True), dict(relative_decay=1e-3), dict(absolute_decay=1e-3), dict(adabound=True, skip_zero_grad=True)
])  # fmt: skip
def test_the_number_of_the_step_is_no_constant(ns, options):
    """It would make every step outside of frozen functions a kernel of its own."""
    optimizer, found = cn.training.Adam(1e-3, params={"x": ns.Float(1, 2)}, **options), []
    for _ in range(4):
        with launched() as kernels:
            dr.set_grad(optimizer["x"], ns.Float(1e-2, -3))
            optimizer.step()
        found.append({kernel["hash"] for kernel in kernels})
    assert found[1] == found[2] == found[3]


def test_a_rate_of_zero_moves_nothing(ns):
    """Though AdaBound has a least rate: multipliers freeze layers with it."""
    optimizer = cn.training.Adam(ns.Float(0, 0.1), adabound=True, params={"x": ns.Float(1, 2)})
    for _ in range(3):
        optimizer.set_learning_rate(ns.Float(0, 0.1))
        dr.set_grad(optimizer["x"], ns.Float(1, 1))
        optimizer.step()
    assert optimizer["x"].numpy()[0] == 1 and optimizer["x"].numpy()[1] < 2


def test_steps_that_a_scaler_skips_count_for_no_bound(ns):
    optimizer = cn.training.Adam(
        0.1, adabound=True, skip_zero_grad=True, params={"weights": ns.Float(1), "data": ns.Float(1, 2)}
    )
    for active in (True, False, True):
        for value in optimizer.values():
            dr.set_grad(value, 1 if active else math.inf)
        optimizer.step(active=ns.Bool(active))
    assert [memory[3].numpy().tolist() for memory in memories(optimizer).values()] == [[2], [2]]
    assert all(np.isfinite(v).all() for v in numbers(optimizer).values())


def test_what_is_not_matrices(ns):
    """Has a strength of its own and a factor of the rate, which its decay has, too."""
    options = dict(l2_reg=0.5, non_matrix_l2_reg=0.25, non_matrix_lr_factor=0.5, relative_decay=0.2)
    optimizer = cn.training.Adam(0.1, params={"a.weights": ns.Float(1, 2), "a.data": ns.Float(1, 2)}, **options)
    dr.set_grad(optimizer["a.weights"], ns.Float(1, -1))
    dr.set_grad(optimizer["a.data"], ns.Float(1, -1))
    optimizer.step()
    w, g = np.array([1.0, 2.0]), np.array([1.0, -1.0])
    for name, lr, l2 in (("a.weights", 0.1, 0.5), ("a.data", 0.05, 0.25)):
        expected = ref.adam_step(w, 0 * w, 0 * w, g, 1, lr=lr, l2_reg=l2, relative_decay=0.2)[0]
        np.testing.assert_allclose(optimizer[name].numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("precision", ["single", "half"])
@pytest.mark.parametrize("matrices", [False, True])
def test_one_kind_is_trained_in_fit(ns, backend, precision, matrices):
    """The other stays as it is to the last bit, and so does what the optimizer remembers of it."""
    field = grid_field(backend, precision)
    before = {name: np.array(value.numpy()) for name, value in field.items()}
    optimizer = cn.training.Adam(1e-2, train_matrices=matrices, train_non_matrices=not matrices, relative_decay=0.1)
    result = cn.fit(field, make_batch(ns), 12, optimizer=optimizer, progress=False)
    assert result.recordings <= 2 and result.skipped == 0
    moved = {name: not np.array_equal(value.numpy(), before[name]) for name, value in field.items()}
    assert moved == {"network.weights": matrices, "encoding.data": not matrices}
    counts = {name: memory[0].numpy()[0] for name, memory in memories(optimizer).items()}
    assert counts == {"network.weights": 12 * matrices, "encoding.data": 12 * (not matrices)}


EVERYTHING = dict(
    l2_reg=1e-3, non_matrix_l2_reg=1e-4, relative_decay=0.1, absolute_decay=0.01, accumulate=2, lookahead=2,
    skip_zero_grad=True, non_matrix_lr_factor=2.0, gradient_limit=1e-3, weight_limit=0.05, adabound=True,
)  # fmt: skip


@pytest.mark.parametrize("precision", ["single", "half"])
def test_everything_in_fit(ns, backend, precision, tmp_path):
    """A run that is resumed goes on as if it had not stopped."""

    def run(steps, **options):
        field = grid_field(backend, precision)
        optimizer = cn.training.Adam(1e-2, **EVERYTHING)
        result = cn.fit(field, make_batch(ns), steps, optimizer=optimizer, progress=False, seed=3, **options)
        assert result.recordings <= 2 + ("resume" in options) and result.skipped == 0  # NumPy aligns otherwise
        return field, optimizer

    path = tmp_path / "run.safetensors"
    (whole, optimizer), _ = run(30), run(13, checkpoint=path)
    resumed, again = run(30, checkpoint=path, resume=True)
    for name, value in numbers(optimizer).items():
        assert 0.02 < abs(value).max() < 0.06, name  # half of the first weights, halved seven times, is left
        _, (_, _, _, taken) = memories(optimizer)[name]
        assert taken.numpy().tolist() == [15]
    if backend == "llvm":
        for one, other in ((weights(whole), weights(resumed)), (numbers(optimizer), numbers(again))):
            assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_novograd_of_arrays(ns):
    """Each is one layer, against the reference; a step that a scaler skips is none, not even the first."""
    rng = np.random.default_rng(0)
    start = {"a": rng.normal(size=5), "b.weights": rng.normal(size=3)}
    options = dict(relative_decay=0.2, absolute_decay=0.1, epsilon=0.1)
    optimizer = cn.training.Novograd(0.1, beta_1=0.8, beta_2=0.9, **options)
    optimizer.update({name: ns.Float(w.astype(np.float32)) for name, w in start.items()})
    state = {name: (w, 0 * w, 0.0) for name, w in start.items()}
    for t in range(5):
        for name, w in start.items():
            g = rng.normal(size=w.shape)
            dr.set_grad(optimizer[name], ns.Float(g.astype(np.float32)) if t else ns.Float(math.inf))
            if t:
                state[name] = ref.novograd_step(*state[name], g, t, 0.1, 0.8, 0.9, **options)
        optimizer.step(active=ns.Bool(t > 0))
        for name in start:
            np.testing.assert_allclose(optimizer[name].numpy(), state[name][0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["single", "half"])
def test_novograd_in_fit(ns, backend, precision, tmp_path):
    """It learns with one recording or two, and resumes."""

    def run(steps, **options):
        field = grid_field(backend, precision)
        optimizer = cn.training.Novograd(0.02, relative_decay=0.01)
        result = cn.fit(field, make_batch(ns), steps, optimizer=optimizer, progress=False, seed=3, **options)
        assert result.recordings <= 2 + ("resume" in options) and result.skipped == 0
        return field, result

    path = tmp_path / "run.safetensors"
    (whole, result), _ = run(60), run(25, checkpoint=path)
    assert np.mean(result.losses[-5:]) < 0.6 * np.mean(result.losses[:5])
    resumed, _ = run(60, checkpoint=path, resume=True)
    if backend == "llvm":
        assert all(np.array_equal(weights(whole)[name], weights(resumed)[name]) for name in weights(whole))


def test_layers_of_biased_networks(ns, backend):
    """Matrices, biases and tables count for themselves, wherever they are kept."""
    net = cn.MLP(-1, 3, 16, 1, bias=True)
    field = cn.NeuralField(cn.HashGrid(2, n_levels=2, base_resolution=4, hashmap_size=2**6), net).build(backend)
    optimizer = cn.training.Novograd(1e-2)
    optimizer.update(field)
    amounts = {name: len(memory[2]) for name, memory in memories(optimizer).items()}
    assert amounts == {"network.weights": 4, "encoding.data": 1}
    counts = np.bincount(optimizer.layers["network.weights"].numpy())
    assert counts[1:].tolist() == [16 * 4, 16, 3 * 16, 3] and set(optimizer.layers) == {"network.weights"}


def test_errors_of_novograd(ns):
    for wrong in (1, [1.0], {}, ns.Int(1), ns.Float(), np.ones(3)):
        words = r"params\['a'\] is .*; a differentiable array with entries is needed\.$"
        with pytest.raises(TypeError, match=f"^Novograd: {words}"):
            cn.training.Novograd(1e-3, {"a": wrong})
        for given, more in (({"a": wrong}, {}), (None, {"a": wrong}), ({"b": ns.Float(1)}, {"a": wrong})):
            optimizer = cn.training.Novograd(1e-3)
            with pytest.raises(TypeError, match=rf"^Novograd\.update: {words}"):
                optimizer.update(given, **more)
            assert not len(optimizer)
    for name in ("beta_1", "beta_2"):
        for bad in (-0.1, 1, "0.5", True):
            with pytest.raises(ValueError, match=rf"^Novograd: {name} is {bad!r}; a number in \[0, 1\)"):
                cn.training.Novograd(1e-3, **{name: bad})
    for name, bad in (("epsilon", 0), ("relative_decay", -1), ("absolute_decay", math.nan), ("train_non_matrices", 1)):
        with pytest.raises(ValueError, match=f"^Novograd: {name} is {bad!r}; "):
            cn.training.Novograd(1e-3, **{name: bad})
    with pytest.raises(ValueError, match=r"^Novograd: accumulate is 0"):
        cn.training.Novograd(1e-3, accumulate=0)
    with pytest.raises(TypeError, match=r"^Novograd: params is a list"):
        cn.training.Novograd(1e-3, [])


@pytest.mark.parametrize("kind", [cn.training.Adam, cn.training.SGD, cn.training.Novograd])
def test_arguments_of_a_step(ns, kind):
    """What is wrong is said before a gradient is touched; what is right does what its kind does."""
    optimizer = kind(0.1, {"weights": ns.Float([1, 2, 3])})
    dr.backward(dr.sum(optimizer["weights"] * ns.Float([1, -1, 2])))
    before, name = optimizer["weights"].numpy(), kind.__name__
    number, mask, one = "a number or a", "a bool or a Dr.Jit Bool", r"one, or one for each, is needed\.$"
    wrong = [
        *((ValueError, {"grad_scale": v}, "a finite number is needed") for v in (math.nan, -math.inf, True, 10**400)),
        *((TypeError, {"grad_scale": v}, number) for v in ("x", [1.0], {}, 1j, np.ones(1), ns.Bool(True))),
        *((TypeError, {"grad_scale": v}, number) for v in (ns.Array2f(1), ns.TensorXf([1]), dr.scalar.Array2f(1))),
        *((ValueError, {"grad_scale": v}, one) for v in (ns.Float(1, 2), ns.Float())),
        *((TypeError, {"active": v}, mask) for v in (1, "x", [True], np.ones(1, bool), ns.Int(1), ns.Array2b(True))),
        *((ValueError, {"active": v}, one) for v in (ns.Bool(True, False), ns.Bool())),
        (ValueError, {"eval": 1}, "True or False"),
    ]
    for error, options, words in wrong:
        (argument,) = options
        with pytest.raises(error, match=rf"^{name}\.step: {argument} .*{words}"):
            optimizer.step(**options)
    assert np.array_equal(optimizer["weights"], before)
    for skipped in (False, np.bool_(False), ns.Bool(False)):
        optimizer.step(active=skipped)
        assert np.array_equal(optimizer["weights"], before)
        dr.backward(dr.sum(optimizer["weights"] * ns.Float([1, -1, 2])))
    found = []
    for scale in (2, np.float32(2), ns.Float(2), ns.Float([2, 2, 2])):
        optimizer = kind(0.1, {"weights": ns.Float([1, 2, 3])})
        dr.backward(dr.sum(optimizer["weights"] * ns.Float([1, -1, 2])))
        optimizer.step(grad_scale=scale, active=True)
        found.append(optimizer["weights"].numpy())
        assert np.array_equal(found[0], found[-1]) and not np.array_equal(found[0], before)


def test_errors():
    def refused(name, bad, needed):
        with pytest.raises(ValueError, match=f"^Adam: {name} is {bad!r}; {needed}"):
            cn.training.Adam(1e-3, **{name: bad})

    for bad in (-1, float("nan"), "1", True):
        refused("non_matrix_l2_reg", bad, "a number of at least 0")
        refused("non_matrix_lr_factor", bad, "a number of at least 0")
    for name in ("gradient_limit", "weight_limit"):
        for bad, needed in ((0, "a positive number"), (-1, "a positive number"), (math.inf, "a finite number")):
            refused(name, bad, needed)
    for name in ("adabound", "train_matrices", "train_non_matrices"):
        refused(name, 1, "True or False")
    for name in ("uniform", "amsgrad", "mask_updates"):
        with pytest.raises(ValueError, match=f"^Adam: {name}=True cannot be combined with adabound"):
            cn.training.Adam(0.1, adabound=True, **{name: True})


def test_assigning_resets_slow_weights(ns):
    """Otherwise they would pull an assigned parameter back."""
    optimizer = cn.training.SGD(0.0, {"x": ns.Float(1, 1)}, lookahead=1, alpha=0.5)
    for wrong in (100, ns.UInt32(1), None):
        with pytest.raises(
            TypeError, match=r"^SGD: params\['x'\] is .*; a differentiable array with entries is needed"
        ):
            optimizer["x"] = wrong
    optimizer["x"] = ns.Float(100, 100)
    dr.backward(dr.sum(optimizer["x"]))
    optimizer.step()
    np.testing.assert_array_equal(optimizer["x"].numpy(), 100)


def test_layers_that_are_frozen_stay(ns, backend):
    """Whatever limits and decays others: entries beyond the limit, and matrices that are not trained."""
    p = [ns.Float(0.1, 0.7, 0.3)] * 2
    for options, run in (
        (dict(weight_limit=0.01), dict(multipliers={"layers.0": 0.0})),
        (dict(train_matrices=False), dict(weight_decay=0.5)),
    ):
        field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build(backend, seed=1)
        before = field.matrix("layers.0.weights").copy()
        cn.fit(field, lambda key: (p, p[:1]), 2, optimizer=cn.training.Adam(1e-2, **options), progress=False, **run)
        np.testing.assert_array_equal(field.matrix("layers.0.weights"), before)
        assert options == dict(train_matrices=False) or np.abs(field.matrix("layers.2.weights")).max() <= 0.0101
