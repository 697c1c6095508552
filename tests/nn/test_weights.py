"""Weights as people treat them: each operation against NumPy on the matrices, whatever the packed layout."""

from __future__ import annotations

import math
import warnings
from dataclasses import FrozenInstanceError

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from drjit.opt import SGD, Adam, AdamW
from support.networks import gradients_in_orders

import coopnet as cn
from coopnet import reference as ref
from coopnet import training as tr
from coopnet.nn import parameters

MATRICES = ["network.layers.0.weights", "network.layers.3.weights"]
BIASES = ["network.layers.0.bias", "network.layers.3.bias"]
NAMES = ["encoding.data", MATRICES[0], BIASES[0], MATRICES[1], BIASES[1]]


def make_field(backend, precision="auto", seed=0):
    grid = cn.HashGrid(2, n_levels=3, base_resolution=4, hashmap_size=2**6, init_scale=0.5)
    network = cn.MLP(out_features=3, width=20, depth=1, dropout=0.1, bias=True)
    field = cn.NeuralField(grid, network).build(backend, precision, seed=seed)
    rng = np.random.default_rng(seed)
    for name in BIASES:
        field.set_matrix(name, rng.normal(0, 0.3, field.matrix(name).shape))
    return field


def values(field):
    return {name: field.matrix(name).astype(np.float64) for name in NAMES}


def close(a, b, backend, names=NAMES):
    for name in names:
        rtol, atol = (1e-5, 1e-6) if backend == "llvm" or name == "encoding.data" else (2e-3, 1e-3)
        np.testing.assert_allclose(a[name], b[name], rtol=rtol, atol=atol, err_msg=name)


def make_batch(ns, samples=256):
    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, samples)
        return [x, y], [x, y, x * y]

    return batch


def track(net):
    """Let every parameter track gradients."""
    for name in net:
        value = type(net[name])(dr.detach(net[name]))
        dr.enable_grad(value)
        net[name] = value


# ---- matrices by name --------------------------------------------------------------------------------------


def test_matrix_is_what_is_multiplied(backend, ns):
    """The matrices written out in NumPy do what the packed network does, also of one and of several columns."""
    for size in (1, 5):
        net = cn.MLP(size, 3, width=20, depth=1, activation="leaky_relu", bias=True)
        field = cn.NeuralField(None, net).build(backend, seed=2)
        field.set_matrix("layers.2.bias", [0.5, -0.25, 1])
        x = np.random.default_rng(0).normal(size=(size, 30)).astype(np.float32)
        a, b = field.matrix("layers.0.weight").astype(float), field.matrix("network.layers.2.weights").astype(float)
        assert a.shape == (20, size) and b.shape == (3, 20)
        h = a @ x
        expected = b @ np.where(h > 0, h, 0.01 * h) + np.array([[0.5], [-0.25], [1]])
        got = field([ns.Float32(v) for v in x]).numpy()
        np.testing.assert_allclose(got, expected, atol=1e-5 if backend == "llvm" else 2e-2)


@pytest.mark.parametrize("name", NAMES)
def test_set_matrix_changes_nothing_else(backend, name):
    field = make_field(backend)
    before = values(field)
    new = np.random.default_rng(1).normal(size=before[name].shape).astype(np.float16)
    field.set_matrix(name, new)
    after = values(field)
    for other in NAMES:
        assert np.array_equal(after[other], new if other == name else before[other]), other
    assert field.matrix(name).dtype == (np.float16 if backend == "cuda" and "network" in name else np.float32)
    # the mapping sees the same array, and goes on tracking gradients if it did
    track(field)
    field.set_matrix(name, before[name])
    assert all(dr.grad_enabled(v) for v in field.values())
    assert all(np.array_equal(v, before[k]) for k, v in values(field).items())


def test_update_by_the_names_of_matrices(backend):
    """As ``coopnet.to(field, "numpy")`` has them; other names of a mapping are those of other networks."""
    field, other = make_field(backend), make_field(backend)
    new = {name: np.full_like(value, 0.5) for name, value in values(field).items()}
    field.update(new | {"elsewhere": np.zeros(3)})
    assert all(np.array_equal(v, new[k]) for k, v in values(field).items())
    other.update(cn.to(field, "numpy"))
    assert all(np.array_equal(v, new[k]) for k, v in values(other).items())
    with pytest.raises(ValueError, match=r"update: network\.layers\.\d\.weights has shape"):
        field.update({next(n for n in NAMES if n.endswith("weights")): np.zeros(3)})
    with pytest.raises(KeyError, match=r"none of .*0\.weight.*0\.bias.* is a parameter; those are .*network\.weights"):
        field.update({"0.weight": np.zeros((3, 3)), "0.bias": np.zeros(3)})


class Tensor:
    """What PyTorch's parameters are to NumPy."""

    def __init__(self, value):
        self.value = value

    def __array__(self, *args, **kwargs):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    def detach(self):
        return self.value


def test_a_tensor_with_a_gradient(backend):
    field = make_field(backend)
    new = np.full_like(field.matrix(MATRICES[0]), 0.25)
    field.set_matrix(MATRICES[0], Tensor(new))
    np.testing.assert_array_equal(field.matrix(MATRICES[0]), new)


def test_matrix_of_unpacked_networks(backend, ns):
    tensor = ns.TensorXf16 if backend == "cuda" else ns.TensorXf
    net = cn.Sequential(cn.Linear(1, 4), cn.ReLU(), cn.Linear(-1, 2)).alloc(tensor)
    w = np.arange(4, dtype=np.float32)[:, None]
    net.set_matrix("layers.0.weight", w)
    net.set_matrix("layers.2.bias", [1, 2])
    packed = drnn.pack(net, layout="training")
    for n in (net, packed):
        assert np.array_equal(n.matrix("layers.0.weights"), w)
        assert np.array_equal(n.matrix("layers.2.bias"), [1, 2])
        assert np.array_equal(n.matrix("layers.2.weight"), net.matrix("layers.2.weight"))


def test_matrix_is_a_copy(backend):
    field = make_field(backend)
    before = values(field)
    field.matrix(MATRICES[0])[:] = 7
    assert np.array_equal(field.matrix(MATRICES[0]), before[MATRICES[0]])


@pytest.mark.parametrize(
    "name, value, error, words",
    [
        ("layers.1.weight", 0, ValueError, "no parameter 'layers.1.weight'; the network has encoding.data"),
        (3, 0, TypeError, "name is a int"),
        ("layers.0.weight", np.zeros((6, 20)), ValueError, "has shape (20, 6), but the new value has shape (6, 20)"),
        ("layers.0.bias", ["a"] * 20, TypeError, "real numbers are needed"),
        ("layers.0.bias", [True] * 20, TypeError, "real numbers are needed"),
        ("layers.0.bias", [1e300] * 20, ValueError, "too large for float"),
    ],
)
def test_bad_names_and_values(backend, name, value, error, words):
    field = make_field(backend)
    with warnings.catch_warnings(), pytest.raises(error, match="set_matrix") as info:
        warnings.simplefilter("error")  # the error is all there is
        field.set_matrix(name, value)
    assert words in str(info.value)


@pytest.mark.parametrize("packed", [True, False])
def test_gradient(backend, ns, packed):
    """Against the formulas in double precision, in every layout: zeros at first, then what was added up."""
    tensor = ns.TensorXf16 if backend == "cuda" else ns.TensorXf
    net = cn.MLP(5, 3, width=20, depth=1, activation="tanh", bias=True).alloc(tensor, rng=dr.rng(seed=4))
    net.set_matrix("layers.0.bias", np.linspace(-1, 1, 20))
    net = drnn.pack(net, layout="training") if packed else net
    a, b = net.matrix("layers.0.weights").astype(float), net.matrix("layers.2.weights").astype(float)
    x, t = (np.random.default_rng(i).uniform(-1, 1, (n, 300)).astype(np.float16) for i, n in enumerate((5, 3)))
    y = np.tanh(a @ x + net.matrix("layers.0.bias").astype(float)[:, None])
    delta = (b.T @ t) * (1 - y**2)
    expected = {
        "layers.0.weight": delta @ x.T, "layers.0.bias": delta.sum(1), "layers.2.weight": t @ y.T,
        "layers.2.bias": t.astype(float).sum(1),
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"Sequential.gradient: layers.0.bias does not track gradients; call"):
        net.gradient("layers.0.bias")
    track(net)
    assert all(not net.gradient(name).any() for name in expected)
    for times in (1, 2):
        if packed:
            out = list(net(drnn.CoopVec(*(tensor(v).array for v in x))))
            dr.backward(sum(v * tensor(w).array for v, w in zip(out, t, strict=True)))
        else:
            dr.backward(net(tensor(x)) * tensor(t))
        for name, value in expected.items():
            got = net.gradient(name)
            assert got.dtype == net.matrix(name).dtype and got.shape == net.matrix(name).shape
            limit = (1e-5 if backend == "llvm" else 2e-2) * times * abs(value).max()
            np.testing.assert_allclose(got, times * value, atol=limit, err_msg=name)
    net.gradient("layers.0.bias")[:] = 7
    assert abs(net.gradient("layers.0.bias")).max() < 300


def test_gradient_of_a_field(backend, ns):
    """By short and long names, of tables as of matrices, from whatever array an optimizer has put in their place."""
    field = make_field(backend)
    opt = SGD(lr=0.1, promote_fp16=False)
    opt.update(field)
    field.update(opt)
    dr.backward(tr.l2_penalty(field, biases=True) + dr.sum(dr.square(field["encoding.data"])))
    for name in NAMES:
        np.testing.assert_array_equal(field.gradient(name), 2 * field.matrix(name), err_msg=name)
    assert np.array_equal(field.gradient("layers.0.weight"), field.gradient(MATRICES[0]))
    with pytest.raises(ValueError, match=r"gradient: there is no parameter 'layers\.9\.weight'; the network has"):
        field.gradient("layers.9.weight")


def test_names_in_messages():
    """Four, and how many more."""
    assert [parameters.listed("abcdefghi"[:n]) for n in (0, 1, 2, 4, 5, 9)] == [
        "none: call alloc() or build() first", "a", "a, b", "a, b, c, d", "a, b, c, d and 1 more",
        "a, b, c, d and 5 more",
    ]  # fmt: skip


def test_report(backend, ns):
    field = make_field(backend)
    report = field.report()
    counts = {x.name: x.parameters for x in report.layers}
    grid = field.matrix("encoding.data").size
    kinds = {x.name: x.layer for x in report.layers}
    assert kinds == {"encoding": "HashGrid", "network.layers.0": "Linear", "network.layers.3": "Linear"}
    assert cn.Linear(2, 3).alloc(ns.TensorXf).report().layers[0].layer == "Linear"
    with pytest.raises(FrozenInstanceError):
        report.bytes = 0
    assert counts == {"encoding": grid, "network.layers.0": 20 * 6 + 20, "network.layers.3": 3 * 20 + 3}
    assert report.parameters == sum(counts.values())
    assert report.bytes == sum(v.numpy().nbytes for v in field.values())
    assert report.bytes >= sum(x.bytes for x in report.layers)
    lines = str(report).splitlines()
    assert lines[0].split() == ["layer", "type", "shapes", "parameters", "bytes"]
    assert lines[1].split()[:2] == ["encoding", "HashGrid"] and "20x6, 20" in lines[2]
    assert lines[-1].split()[0] == "total"
    with pytest.raises(ValueError, match="no parameters yet"):
        cn.MLP(2, 2).report()


@pytest.mark.parametrize("precision, size", [("TensorXf16", 2), ("TensorXf", 4), ("TensorXf64", 8)])
def test_bytes_of_a_report(ns, precision, size):
    report = cn.Embedding(5, 3).alloc(getattr(ns, precision)).report()
    assert (report.parameters, report.bytes, report.layers[0].bytes) == (15, 15 * size, 15 * size)


# ---- penalties, clipping, decay ----------------------------------------------------------------------------


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("kind", ["l1", "l2"])
def test_penalties(backend, kind, biases):
    field = make_field(backend)
    track(field)
    # what stands in gaps, if there are any, must not count
    penalty = {"l1": tr.l1_penalty, "l2": tr.l2_penalty}[kind](field, biases=biases)
    chosen = MATRICES + (BIASES if biases else [])
    w = values(field)
    f, df = {"l1": (np.abs, np.sign), "l2": (np.square, lambda v: 2 * v)}[kind]
    assert dr.width(penalty) == 1 and dr.type_v(penalty) == dr.VarType.Float32
    assert penalty.numpy()[0] == pytest.approx(sum(f(w[n]).sum() for n in chosen), rel=1e-5)
    dr.backward(penalty)
    gradient = make_field(backend)
    for name in gradient:
        gradient[name] = type(gradient[name])(dr.grad(field[name]))
    close(values(gradient), {n: df(w[n]) if n in chosen else 0 * w[n] for n in NAMES}, backend)


def test_penalties_see_no_gaps(backend):
    field = make_field(backend)
    before = tr.l2_penalty(field).numpy()[0]
    mask = tr.layer_multipliers(field, {})["network.weights"]
    field["network.weights"] = type(field["network.weights"])(dr.select(mask == 0, 100, field["network.weights"]))
    assert tr.l2_penalty(field).numpy()[0] == before


def test_clip_weights(backend):
    field = make_field(backend)
    before = values(field)
    tr.clip_weights(field, 0.25)
    assert max(abs(before[n]).max() for n in MATRICES) > 0.25
    close(values(field), before | {n: np.clip(before[n], -0.25, 0.25) for n in MATRICES}, backend)
    tr.clip_weights(field, 0.125, biases=True)
    assert all(abs(field.matrix(n)).max() <= 0.125 for n in MATRICES + BIASES)
    assert np.array_equal(field.matrix("encoding.data"), before["encoding.data"])


def test_decay_weights(backend):
    field = make_field(backend)
    track(field)
    before = values(field)
    tr.decay_weights(field, 0.25)
    close(values(field), before | {n: 0.75 * before[n] for n in MATRICES}, backend)
    assert all(dr.grad_enabled(v) for v in field.values())


def with_gradients(ns, backend, scale=1.0):
    field = make_field(backend)
    opt = SGD(lr=1.0)
    opt.update(field)
    field.update(opt)
    (x, y), t = make_batch(ns)(cn.Key(0))
    out = field([x, y])
    dr.backward(sum(dr.square(a - b) for a, b in zip(out, t, strict=True)) * scale)
    return opt


def raw(opt):
    return {k: dr.grad(state[0]).numpy().astype(np.float64) for k, state in opt.state.items()}


@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_gradient_norm(backend, ns, limit):
    opt = with_gradients(ns, backend)
    before = raw(opt)
    norm = math.sqrt(sum(np.sum(g**2) for g in before.values()))
    assert tr.gradient_norm(opt).numpy()[0] == pytest.approx(norm, rel=1e-5) and norm > 1
    assert tr.clip_gradient_norm(opt, limit).numpy()[0] == pytest.approx(norm, rel=1e-5)
    for name, g in raw(opt).items():
        np.testing.assert_allclose(g, before[name] * min(1, limit / norm), rtol=1e-5, atol=1e-7)


def test_limits_of_gradients_are_one_number(backend, ns):
    opt = with_gradients(ns, backend)
    for wrong in (ns.Float(1, 2), ns.UInt32(1), ns.TensorXf([1.0], (1,)), ns.Array2f(1)):
        words = f"clip_gradient_norm: limit is a {type(wrong).__name__}; a number or a Float is needed"
        with pytest.raises(TypeError, match=words):
            tr.clip_gradient_norm(opt, wrong)
    tr.clip_gradient_norm(opt, ns.Float(0.5))
    assert tr.gradient_norm(opt).numpy()[0] == pytest.approx(0.5, rel=1e-5)


def test_gradient_norm_of_half_precision(ns):
    """Its square, 3.2e7, would overflow in half precision."""
    opt = SGD(lr=1.0, params={"w": ns.Float16([1.0] * 8)}, promote_fp16=False)
    dr.set_grad(opt["w"], ns.Float16(2000.0))
    assert tr.clip_gradient_norm(opt, 1.0).numpy()[0] == pytest.approx(2000 * math.sqrt(8), rel=1e-6)
    np.testing.assert_allclose(dr.grad(opt["w"]).numpy(), 1 / math.sqrt(8), rtol=1e-3)


def test_clip_gradient_values(backend, ns):
    opt = with_gradients(ns, backend)
    before = raw(opt)
    tr.clip_gradient_values(opt, 0.1)
    for name, g in raw(opt).items():
        assert abs(before[name]).max() > 0.1
        np.testing.assert_allclose(g, np.clip(before[name], -0.1, 0.1), rtol=1e-6)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_clipping_leaves_overflow_to_the_scaler(ns, bad):
    for clip in (tr.clip_gradient_norm, tr.clip_gradient_values):
        opt = SGD(lr=1.0, params={"w": ns.Float32([1.0, 2.0])})
        dr.set_grad(opt["w"], ns.Float32([bad, 0.01]))
        clip(opt, 1.0)
        np.testing.assert_array_equal(dr.grad(opt["w"]).numpy(), np.float32([bad, 0.01]))


def test_spectral_norms(backend):
    field = make_field(backend)
    norms = tr.spectral_norms(field)
    assert list(norms) == MATRICES
    for name in MATRICES:
        a = values(field)[name]
        assert norms[name] == pytest.approx(math.sqrt(np.linalg.eigvalsh(a @ a.T)[-1]), rel=1e-6)


# ---- rates per layer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, -1])
def test_layer_multipliers(backend, order):
    """The longest name wins, wherever it stands."""
    field = make_field(backend)
    rates = {"layers.0": 0.5, "network.layers.0.bias": 0.25, "encoding": 0, "layers.3.weight": 2}
    rates = dict(list(rates.items())[::order])
    factors = tr.layer_multipliers(field, rates)
    assert list(factors) == list(field)
    shown = make_field(backend)
    for name in shown:
        shown[name] = type(shown[name])(factors[name])
    wanted = dict(zip(NAMES, (0, 0.5, 0.25, 2, 1), strict=True))
    for name, value in values(shown).items():
        assert np.array_equal(value, np.full(value.shape, wanted[name])), name
    filled = sum(int(np.count_nonzero(f.numpy())) for f in factors.values())
    assert filled == sum(values(field)[n].size for n in NAMES[1:])  # gaps have 0


@pytest.mark.parametrize(
    "rates, wanted",
    [
        ({"encoding.levels.1": 0.5}, (1, 0.5, 1)),
        ({"encoding.levels.1": 0.5, "encoding.data": 3}, (3, 0.5, 3)),
        ({"encoding": 0, "encoding.levels.0": 2, "encoding.levels.2": 4}, (2, 0, 4)),
        ({"encoding.levels": 5}, (5, 5, 5)),
    ],
)
def test_multipliers_of_levels(backend, rates, wanted):
    field = make_field(backend)
    sizes = [2 * level.size for level in field.encoding.grid.value.levels]
    for net, above in ((field, ""), (field.encoding, "encoding.")):
        factors = tr.layer_multipliers(net, {k.removeprefix(above): v for k, v in rates.items() if k != above[:-1]})
        if net is field or "encoding" not in rates:
            name = next(n for n in factors if n.endswith("data"))
            assert np.array_equal(factors[name].numpy(), np.repeat(np.array(wanted, np.float32), sizes))
    with pytest.raises(ValueError, match=r"no layer or parameter 'encoding.levels.3'; the network has encoding.data, "):
        tr.layer_multipliers(field, {"encoding.levels.3": 1})


def test_a_level_can_be_frozen(backend, ns):
    before, after = steps_of(backend, ns, 5, Adam(lr=1e-2), multipliers={"encoding.levels.1": 0})
    ends = np.cumsum([2 * level.size for level in make_field(backend).encoding.grid.value.levels])
    moved = [np.any(part) for part in np.split(after["encoding.data"] != before["encoding.data"], ends[:-1])]
    assert moved == [True, False, True]


@pytest.mark.parametrize(
    "rates, error, words",
    [
        ({"layers.9": 1}, ValueError, "no layer or parameter 'layers.9'"),
        ({"layer": 1}, ValueError, "no layer or parameter 'layer'"),
        ({"layers.0": -1}, ValueError, "factor of 'layers.0' is -1"),
        ({"layers.0": math.nan}, ValueError, "factor of 'layers.0' is nan"),
        ({"layers.0": True}, ValueError, "factor of 'layers.0' is True"),
        ({"layers.0": 10**400}, ValueError, "factor of 'layers.0' is an int of"),
        ({"x" * 5000: 1}, ValueError, "no layer or parameter 'xxx"),
        ([("layers.0", 1)], TypeError, "the rates are a list"),
    ],
)
def test_bad_multipliers(backend, rates, error, words):
    with pytest.raises(error, match="layer_multipliers") as info:
        tr.layer_multipliers(make_field(backend), rates)
    assert words in str(info.value) and len(str(info.value)) < 400


def steps_of(backend, ns, steps=1, optimizer=None, **options):
    field = make_field(backend)
    before = values(field)
    cn.fit(
        field,
        make_batch(ns),
        steps,
        optimizer=SGD(lr=0.1) if optimizer is None else optimizer,
        progress=False,
        **options,
    )
    return before, values(field)


def test_fit_with_multipliers(backend, ns):
    before, plain = steps_of(backend, ns)
    rates = {"layers.0": 0.25, "layers.3.bias": 0, "encoding": 0.5}
    _, after = steps_of(backend, ns, multipliers=rates)
    factor = dict(zip(NAMES, (0.5, 0.25, 0.25, 1, 0), strict=True))
    close(after, {n: before[n] + factor[n] * (plain[n] - before[n]) for n in NAMES}, backend)
    assert all(abs(plain[n] - before[n]).max() > 1e-4 for n in NAMES)


def test_frozen_layers_stay_to_the_bit(backend, ns):
    rates = {"layers.0": 0, "encoding": 0}
    before, after = steps_of(backend, ns, 20, Adam(lr=1e-2), multipliers=rates, weight_decay=0.1)
    for name in NAMES[:3]:
        assert np.array_equal(before[name], after[name]), name
    for name in NAMES[3:]:
        assert abs(before[name] - after[name]).max() > 1e-2, name


def test_multipliers_by_hand(backend, ns):
    """The docstring's way in a loop of one's own: steps times the factors."""
    factors = {"layers.0": 0.5, "encoding": 0}
    p, t = make_batch(ns)(cn.Key(1))
    results = []
    for given in (True, False):
        field = make_field(backend)
        before = values(field)
        opt = Adam(lr=1e-2, params=field)
        for _ in range(3):
            if given:
                spread = tr.layer_multipliers(field, factors)
                opt.set_learning_rate({name: 1e-2 * factor for name, factor in spread.items()})
            field.update(opt)
            y = field(p)
            old = values(field)
            dr.backward(dr.mean(sum(dr.square(y[i] - t[i]) for i in range(3)) * 64))
            opt.step()
            field.update(opt)
            if not given:
                for name in NAMES:
                    factor = 0 if "encoding" in name else 0.5 if "layers.0" in name else 1
                    field.set_matrix(name, old[name] + factor * (field.matrix(name).astype(float) - old[name]))
                opt.update(field)
        results.append(values(field))
        assert np.array_equal(results[-1]["encoding.data"], before["encoding.data"])
        assert not np.allclose(results[-1][MATRICES[1]], before[MATRICES[1]], atol=1e-3)
    for name in NAMES:
        tolerance = 1e-5 if backend == "llvm" else 5e-3
        np.testing.assert_allclose(results[0][name], results[1][name], atol=tolerance, err_msg=name)


# ---- decay, norms, penalties and averages in fit -----------------------------------------------------------


def test_fit_with_weight_decay(backend, ns):
    """Decoupled: a step takes lr * rate of the old matrices besides, whatever the optimizer makes of gradients."""
    for make in (lambda: SGD(lr=0.1), lambda: Adam(lr=0.1)):
        before, plain = steps_of(backend, ns, optimizer=make())
        _, after = steps_of(backend, ns, optimizer=make(), weight_decay=0.5)
        shrunk = {n: plain[n] - 0.05 * before[n] if n in MATRICES else plain[n] for n in NAMES}
        close(after, shrunk, backend, NAMES if isinstance(make(), SGD) else NAMES[1:])


def test_adamw_shrinks(backend, ns):
    """Its decay is of all parameters, and in the right direction although the learning rate is an array."""
    before, plain = steps_of(backend, ns, optimizer=Adam(lr=0.1))
    optimizer = AdamW(lr=0.1, weight_decay=0.5)
    _, after = steps_of(backend, ns, optimizer=optimizer)
    close(after, {n: plain[n] - 0.05 * before[n] for n in NAMES}, backend, NAMES[1:])
    assert optimizer.weight_decay == 0.5


@pytest.mark.parametrize("precision", ["auto", "half"])
def test_fit_with_clipped_norm(backend, ns, precision):
    """Steps of plain gradient descent are as long as the norm allows; the scale of the loss does not matter."""
    field = make_field(backend, precision)
    opt = SGD(lr=1.0)
    cn.fit(
        field, make_batch(ns), 1, optimizer=opt, clip_norm=1e-2, loss=lambda y, t: (y[0] + y[1]) * 0.1, progress=False
    )
    other = make_field(backend, precision)
    start = SGD(lr=1.0, params=dict(other))
    difference = [opt.state[k][0].numpy().astype(float) - start.state[k][0].numpy() for k in other]
    assert math.sqrt(sum(np.sum(d**2) for d in difference)) == pytest.approx(1e-2, rel=1e-3)


@pytest.mark.parametrize("precision", ["auto", "half"])
def test_fit_with_penalty(backend, ns, precision):
    """The gradient of the penalty is added, once, to every parameter it knows."""

    def run(**options):
        field = make_field(backend, precision)
        before = values(field)
        with cn.deterministic():
            result = cn.fit(field, make_batch(ns), 1, optimizer=SGD(lr=0.5), progress=False, **options)
        return before, values(field), result.losses

    before, plain, losses = run()
    _, after, losses_too = run(penalty=lambda field: 0.05 * tr.l2_penalty(field))
    close(
        after,
        {n: plain[n] - (0.05 * before[n] if n in MATRICES else 0) for n in NAMES},
        precision == "auto" and backend,
    )
    assert losses_too == pytest.approx(losses, rel=1e-5)


def test_overflow_neither_decays_nor_moves(backend, ns):
    field = make_field(backend, "half")
    before = values(field)
    with pytest.warns(RuntimeWarning, match="2 of 2 steps were skipped"):
        cn.fit(
            field, make_batch(ns), 2, loss=lambda y, t: 1e9 * dr.square(y[0] - 1e3), weight_decay=0.5, clip_norm=1.0,
            progress=False,
        )  # fmt: skip
    assert all(np.array_equal(v, before[n]) for n, v in values(field).items())


def test_everything_is_one_recording(backend, ns):
    field = make_field(backend)
    result = cn.fit(
        field, make_batch(ns), 12, lr=tr.cosine(1e-2, 12), weight_decay=0.1, clip_norm=1.0, ema=tr.EMA(field, 0.9),
        multipliers={"layers.0": 0.5}, penalty=tr.l1_penalty, progress=False,
    )  # fmt: skip
    assert result.recordings <= 2


@pytest.mark.parametrize("precision, debias", [("auto", False), ("half", False), ("auto", True)])
def test_ema(backend, precision, debias):
    field = make_field(backend, precision)
    ema = tr.EMA(field, 0.75, debias)
    start, seen, rng = values(field), [], np.random.default_rng(3)
    assert all(np.array_equal(ema.average[n].numpy(), field[n].array.numpy()) for n in field)
    for _ in range(5):
        for name in NAMES:
            field.set_matrix(name, rng.normal(size=start[name].shape).astype(np.float16))
        seen.append(values(field))
        ema.update(field)
    average = {n: ref.moving_average([v[n] for v in seen], 0.75, None if debias else start[n]) for n in NAMES}
    last = values(field)
    half = precision == "half" or backend == "cuda"
    with ema.applied(field) as same:
        assert same is field
        close(values(field), average, "cuda" if half else "llvm")
    assert all(np.array_equal(v, last[n]) for n, v in values(field).items())
    ema.apply(field)
    close(values(field), average, "cuda" if half else "llvm")


def test_averages_are_evaluated_with_what_else_is(backend):
    """Or every update would keep the weights before it."""
    field = make_field(backend)
    ema = tr.EMA(field, 0.75, debias=True)
    ema.update(field)
    dr.eval()
    assert all(value.state == dr.VarState.Evaluated for value in (*ema.average.values(), ema.total))


def test_ema_of_half_precision_keeps_small_steps(ns, backend):
    """1000 steps of 2^-13 from 1 towards 2^-3 more: in half precision the average would not move at all."""
    net = drnn.pack(cn.Sequential(cn.Linear(8, 8, bias=False)).alloc(ns.TensorXf16), layout="training")
    net.set_matrix("layers.0.weights", np.ones((8, 8)))
    ema = tr.EMA(net, 1 - 2**-12)
    net.set_matrix("layers.0.weights", np.full((8, 8), 1.5))
    for _ in range(200):
        ema.update(net)
        dr.eval(ema.average)
    ema.apply(net)
    expected = 1.5 - 0.5 * (1 - 2**-12) ** 200
    assert abs(net.matrix("layers.0.weights") - expected).max() < 6e-4 and expected > 1.02


@pytest.mark.parametrize("debias", [False, True])
def test_ema_in_fit_and_resume(backend, ns, tmp_path, debias):
    pytest.importorskip("safetensors")

    def run(field, ema, steps, **options):
        cn.fit(field, make_batch(ns), steps, lr=1e-2, ema=ema, progress=False, **options)

    whole = make_field(backend)
    kept, seen = tr.EMA(whole, 0.8, debias), []
    before = values(whole)
    run(whole, kept, 6, metric=lambda f: float(seen.append(values(f)) or 0), metric_every=1)
    average = {n: ref.moving_average([v[n] for v in seen], 0.8, None if debias else before[n]) for n in NAMES}
    with kept.applied(whole):
        close(values(whole), average, backend)
    path = tmp_path / "run.safetensors"
    first, second = make_field(backend), make_field(backend)
    run(first, tr.EMA(first, 0.8, debias), 2, checkpoint=path)
    ema = tr.EMA(second, 0.8, debias)
    run(second, ema, 6, checkpoint=path, resume=True)
    if backend == "llvm":
        for name in whole:
            assert np.array_equal(ema.average[name].numpy(), kept.average[name].numpy())


def test_an_older_average_goes_on_as_it_was(backend, ns, tmp_path):
    """In files from before there was a correction, averages began as the initial weights, whose share is kept."""
    pytest.importorskip("safetensors")
    path, found = tmp_path / "run.safetensors", []
    for debias in (False, True):
        field = make_field(backend)
        cn.fit(field, make_batch(ns), 2, ema=tr.EMA(field, 0.8), checkpoint=path, progress=False)
        field = make_field(backend)
        ema = tr.EMA(field, 0.8, debias)
        cn.fit(field, make_batch(ns), 5, ema=ema, checkpoint=path, resume=True, progress=False)
        found.append(ema.average["network.weights"].numpy())
    # two runs: on a GPU, atomics add gradients up in any order
    np.testing.assert_allclose(*found, rtol=1e-6, atol=2e-5 if backend == "cuda" else 1e-7)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda f: tr.l2_penalty(3), TypeError, "l2_penalty: net is a int"),
        (lambda f: tr.l1_penalty(cn.MLP(2, 2)), ValueError, "l1_penalty: the network has no matrices"),
        (lambda f: tr.clip_weights(f, 0.0), ValueError, "clip_weights: limit is 0.0"),
        (lambda f: tr.clip_gradient_norm(f, -1), ValueError, "clip_gradient_norm: limit is -1"),
        (lambda f: tr.clip_gradient_norm(3, 1), TypeError, "gradient_norm: params is a int"),
        (lambda f: tr.clip_gradient_values(f, math.inf), ValueError, "clip_gradient_values: limit is inf"),
        (lambda f: tr.gradient_norm(cn.MLP(2, 2)), ValueError, "gradient_norm: params holds no parameters"),
        (lambda f: tr.decay_weights(f, 1.5), ValueError, "decay_weights: amount is 1.5"),
        (lambda f: tr.spectral_norms(cn.ReLU()), ValueError, "spectral_norms: the network has no matrices"),
        (lambda f: tr.EMA(f, 1.0), ValueError, "EMA: decay is 1.0"),
        (lambda f: tr.EMA(f, 10**400), ValueError, "EMA: decay is an int of"),
        (lambda f: tr.EMA(f, debias=1), ValueError, "EMA: debias is 1; True or False"),
        (lambda f: tr.EMA(3), TypeError, "EMA: net is a int"),
        (lambda f: tr.layer_multipliers(3, {}), TypeError, "layer_multipliers: net is a int; a coopnet Module"),
        (lambda f: tr.EMA(f).update(Adam(lr=1)), ValueError, "EMA.update: params holds no parameters"),
        (lambda f: tr.EMA(f).apply(f.network), ValueError, "EMA.apply: the network has other parameters"),
        (lambda f: cn.fit(f, abs, 1, weight_decay=-1), ValueError, "fit: weight_decay is -1"),
        (lambda f: cn.fit(f, abs, 1, weight_decay=10**400), ValueError, "fit: weight_decay is an int of"),
        (lambda f: cn.fit(f, abs, 1, weight_decay="1"), ValueError, "fit: weight_decay is '1'"),
        (lambda f: cn.fit(f, abs, 1, clip_norm=0), ValueError, "fit: clip_norm is 0"),
        (lambda f: cn.fit(f, abs, 1, clip_norm=math.nan), ValueError, "fit: clip_norm is nan"),
        (lambda f: cn.fit(f, abs, 1, penalty=3), TypeError, "fit: penalty is a int"),
        (lambda f: cn.fit(f, abs, 1, penalty=lambda f: 3.0), TypeError, "fit: penalty returned a float"),
        (lambda f: cn.fit(f, abs, 1, ema=3), TypeError, "fit: ema is a int"),
        (lambda f: cn.fit(f, abs, 1, multipliers={"x": 1}), ValueError, "no layer or parameter 'x'"),
    ],
)
def test_bad_arguments(backend, call, error, words):
    with pytest.raises(error) as info:
        call(make_field(backend))
    assert words in str(info.value)


def test_penalties_in_any_order(ns, backend):
    """Each with its whole gradient."""
    layers = cn.Linear(1, 4, bias=False), cn.ConcreteDropout(0.5), cn.Linear(4, 1, bias=False)
    field = cn.NeuralField(None, cn.Sequential(*layers)).build(backend)
    parts = [lambda: cn.concrete_penalty(field, 100), lambda: cn.training.l2_penalty(field)]
    found = gradients_in_orders(field, parts, lambda: field.gradient("layers.2.weights").astype(np.float64))
    for both in found[2:]:
        np.testing.assert_allclose(both, found[0] + found[1], rtol=1e-2 if backend == "cuda" else 1e-5, atol=1e-5)


def test_the_penalty_of_branches(ns, backend):
    """All linear layers that read a dropout's output count, and no others."""

    def field(network):
        return cn.NeuralField(None, network, in_features=2).build(backend, seed=1)

    def squares(found, *names):
        return sum(np.square(found.matrix(name).astype(np.float64)).sum() for name in names)

    trunk = cn.Sequential(cn.Linear(2, 8), cn.ReLU(), cn.ConcreteDropout(0.25))
    heads = field(cn.Heads(trunk, {"a": cn.Linear(-1, 1), "b": cn.Linear(-1, 2)}))
    around = field(cn.Sequential(trunk, cn.Residual(cn.Sequential(cn.Linear(8, 8), cn.ReLU())), cn.Linear(8, 1)))
    p, n = 0.25, 100
    for found, names in (
        (heads, ("layers.1.heads.0.weights", "layers.1.heads.1.weights")),
        (around, ("layers.1.body.layers.0.weights", "layers.2.weights")),
    ):
        expected = squares(found, *names) / (n * (1 - p)) + 2 * 8 / n * (p * np.log(p) + (1 - p) * np.log(1 - p))
        value = cn.concrete_penalty(found, n, length=1.0, noise=1.0).numpy()[0]
        np.testing.assert_allclose(value, expected, rtol=1e-2 if backend == "cuda" else 1e-4)
    ends = cn.Heads(None, {"a": cn.Sequential(cn.Linear(2, 4), cn.ConcreteDropout(0.5)), "b": cn.Linear(2, 2)})
    with pytest.raises(ValueError, match="no linear layer with weights follows"):
        cn.concrete_penalty(field(ends), n)


def test_update_assigns_all_or_nothing(ns, backend):
    field = cn.NeuralField(cn.HashGrid(2, n_levels=1, hashmap_size=16), cn.MLP(out_features=1, width=8)).build(backend)
    before = field["encoding.data"].numpy()
    with pytest.raises(ValueError, match=r"parameter .network\.weights. has shape"):
        field.update({"encoding.data": 0 * field["encoding.data"], "network.weights": ns.Float(1)})
    assert (field["encoding.data"].numpy() == before).all()
    with pytest.raises(ValueError, match=r"the optimizer holds no parameters; call opt.update\(field\) before"):
        field.update(Adam(lr=1e-2))
    cn.Sequential(cn.ReLU()).update(Adam(lr=1e-2))  # which has none either
