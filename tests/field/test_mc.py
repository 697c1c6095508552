"""Monte Carlo dropout: the moments of evaluations by hand, in one kernel."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import evaluated
from support.kernels import launched

import coopnet as cn
from coopnet import reference as ref

N = 70


def make_field(backend, dropout=0.2, outputs=3, precision="auto", **options):
    network = cn.MLP(out_features=outputs, width=8, depth=1, activation="tanh", dropout=dropout, bias=True)
    return cn.NeuralField(cn.Sinusoidal(2, in_features=2), network, **options).build(backend, precision)


def points(ns, n=N):
    rng = np.random.default_rng(0)
    return ns.Array2f(rng.random((2, n)).astype(np.float32)) + 1e-3


def tolerance(backend):
    return 1e-6 if backend == "llvm" else 2e-3


@pytest.mark.parametrize("samples, step", [(2, 0), (7, 5), (3, 2**32 - 1)])
def test_agrees_with_the_reference(backend, ns, samples, step):
    field, p = make_field(backend), points(ns)
    mean, deviation = evaluated(*cn.mc_dropout(field, p, cn.Key(2**40 + 3, step=step), samples))
    expected = ref.mc_dropout(lambda s: field(p, cn.Key(2**40 + 3, step=s)).numpy(), samples, step)
    np.testing.assert_allclose(mean.numpy(), expected[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(deviation.numpy(), expected[1], rtol=0, atol=1e-6)
    assert (deviation.numpy() > 0).mean() > 0.9  # a few samples draw the same masks


def by_hand(field, p, key, samples, f32):
    """The formula of the docstring, pass by pass."""
    mean = spread = None
    for i in range(samples):
        y = [f32(v) for v in field(p, key.fold_in((key.step * samples + i) % 2**32))]
        if mean is None:
            mean, spread = [dr.zeros(f32, N)] * len(y), [dr.zeros(f32, N)] * len(y)
        n = dr.opaque(f32, i + 1)
        d = [v - m for v, m in zip(y, mean, strict=True)]
        mean = [m + e / n for m, e in zip(mean, d, strict=True)]
        spread = [dr.fma(e, v - m, s) for e, v, m, s in zip(d, y, mean, spread, strict=True)]
    return mean, [dr.sqrt(s / dr.opaque(f32, samples)) for s in spread]


def test_equals_the_loop_by_hand_to_the_bit(backend, ns):
    field, p, key = make_field(backend), points(ns), cn.Key(9, step=4)
    found, known = evaluated(cn.mc_dropout(field, p, key, 3), by_hand(field, p, key, 3, ns.Float32))
    for a, b in zip(found, known, strict=True):
        for u, v in zip(a, b, strict=True):
            assert np.array_equal(u.numpy(), v.numpy())


def test_passes_over_tensors_equal_the_loop_by_hand(backend, ns):
    """To the bit, too: what the mean starts from leaves no trace."""
    tensor = ns.TensorXf16 if backend == "cuda" else ns.TensorXf
    net = cn.Sequential(cn.Linear(2, 1), cn.Tanh(), cn.Dropout(0.4)).alloc(tensor)
    x, key = tensor(ns.TensorXf(points(ns))), cn.Key(3, step=2)
    got = cn.mc_dropout(net, x, key, 5)
    for y, wanted in zip(got, by_hand(lambda x, key: [net(x, key).array], x, key, 5, ns.Float32), strict=True):
        assert type(y) is tensor and y.shape == (1, N)
        np.testing.assert_array_equal(y.array.numpy(), dr.array_t(tensor)(wanted[0]).numpy())


def test_containers(backend, ns):
    field, p, key = make_field(backend), points(ns), cn.Key(1)
    mean, deviation = cn.mc_dropout(field, p, key, 4)
    assert type(mean) is type(deviation) is type(field(p, key))
    for x in (list(p), tuple(p)):
        assert type(cn.mc_dropout(field, x, key, 4)[0]) is type(field(x, key))
    m, s = cn.mc_dropout(field, drnn.CoopVec(p), key, 4)
    assert isinstance(m, drnn.CoopVec) and isinstance(s, drnn.CoopVec) and m.type is ns.Float32
    tm, ts = cn.mc_dropout(field, ns.TensorXf(p), key, 4)
    assert type(tm) is type(field(ns.TensorXf(p), key)) and tm.shape == (3, N)
    for got, wanted in ((m, mean), (s, deviation), (tm, mean), (ts, deviation)):
        np.testing.assert_allclose(np.array([np.array(v) for v in got]).reshape(3, N), wanted.numpy(), atol=1e-6)


@pytest.mark.parametrize("packed", [True, False])
def test_any_module(backend, ns, packed):
    """A Sequential, on a cooperative vector in a loop, and on a tensor pass by pass."""
    tensor = ns.TensorXf16 if backend == "cuda" else ns.TensorXf
    net = cn.Sequential(cn.Linear(2, 8), cn.Tanh(), cn.Dropout(0.4), cn.Linear(-1, 2)).alloc(tensor)
    p = points(ns)
    if packed:
        net = drnn.pack(net, layout="training")
        x = drnn.cast(drnn.CoopVec(p), dr.array_t(tensor))
    else:
        x = tensor(ns.TensorXf(p))

    def values(y):
        parts = list(y)
        dr.eval(parts)  # one by one, each would be a kernel
        return np.array([np.array(v) for v in parts], np.float64).reshape(2, N)

    mean, deviation = cn.mc_dropout(net, x, cn.Key(3, step=2), 6)
    expected = ref.mc_dropout(lambda s: values(net(x, cn.Key(3, step=s))), 6, 2)
    np.testing.assert_allclose(values(mean), expected[0], atol=tolerance(backend))
    np.testing.assert_allclose(values(deviation), expected[1], atol=tolerance(backend))


def test_half_precision_networks_accumulate_in_single(backend, ns):
    """In half precision, the mean of 1024 passes would stop moving long before the end."""
    field, p = make_field(backend, precision="half", output="float16", outputs=1), points(ns, 40)
    samples = 1024
    mean, deviation = cn.mc_dropout(field, p, cn.Key(0), samples)
    assert dr.type_v(mean[0]) == dr.VarType.Float16
    index = ns.UInt32(np.tile(np.arange(40, dtype=np.uint32), samples))
    step = ns.UInt32(np.repeat(np.arange(samples, dtype=np.uint32), 40))
    x = [dr.gather(ns.Float32, v, index) for v in p]
    values = field(x, cn.Key(0, index, step))[0].numpy().astype(np.float64).reshape(samples, 40)
    np.testing.assert_allclose(mean[0].numpy(), values.mean(axis=0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(deviation[0].numpy(), values.std(axis=0), rtol=2e-3)


def test_one_kernel_for_any_number_of_samples(backend, ns):
    field, p = make_field(backend), points(ns)
    key = cn.Key(dr.opaque(ns.UInt64, 1), dr.arange(ns.UInt32, N), dr.opaque(ns.UInt32, 0))
    dr.eval(p, key)
    hashes = []
    for samples in (4, 50):
        with launched() as kernels:
            dr.eval(cn.mc_dropout(field, p, key, samples))
        hashes.append([k["hash"] for k in kernels])
    assert len(hashes[0]) == 1
    assert hashes[0] == hashes[1]


def test_frozen_with_keys_as_arguments(backend, ns):
    field = make_field(backend)

    @dr.freeze
    def frozen(field, p, key):
        return cn.mc_dropout(field, p, key, 6)

    for step in range(4):
        p = points(ns) * (1 + dr.opaque(ns.Float32, 0.1 * step))
        key = cn.Key(dr.opaque(ns.UInt64, 7 + step), None, dr.opaque(ns.UInt32, step))
        for a, b in zip(frozen(field, p, key), cn.mc_dropout(field, p, key, 6), strict=True):
            assert np.array_equal(a.numpy(), b.numpy())
    assert frozen.n_recordings == 1


def test_passes_share_no_mask_between_steps(backend, ns):
    field, p = make_field(backend), points(ns)
    a, b = (cn.mc_dropout(field, p, cn.Key(1, step=s), 8)[0].numpy() for s in (0, 1))
    both = cn.mc_dropout(field, p, cn.Key(1), 16)[0].numpy()
    assert abs(a - b).max() > 0.01
    np.testing.assert_allclose((a + b) / 2, both, atol=1e-6)


@pytest.mark.parametrize("path", ["auto", "banks"])
def test_gradient(backend, ns, path):
    """Of a loss of both moments, with respect to inputs and weights, against the moments written out."""
    field, samples = make_field(backend), 3

    def gradients(moments):
        for name in field:
            value = type(field[name])(dr.detach(field[name]))
            dr.enable_grad(value)
            field[name] = value
        p = dr.detach(points(ns, 300))  # enough for several banks
        dr.enable_grad(p)
        mean, deviation = moments(p)
        loss = sum(m * m + s * (i + 1) for i, (m, s) in enumerate(zip(mean, deviation, strict=True)))
        dr.backward(loss)
        return [v.numpy().astype(np.float64) for v in evaluated(dr.grad([p, *field.values()]))]

    def written_out(p):
        ys = [field(p, cn.Key(3, step=samples * 2 + i)) for i in range(samples)]
        mean = sum(ys[1:], ys[0]) / samples
        return mean, dr.sqrt(sum(dr.square(y - mean) for y in ys) / samples)

    with cn.gradient_path(path):
        got = gradients(lambda p: cn.mc_dropout(field, p, cn.Key(3, step=2), samples))
    for a, b in zip(got, gradients(written_out), strict=True):
        assert abs(b).max() > 0.1
        np.testing.assert_allclose(a, b, atol=abs(b).max() * (1e-5 if backend == "llvm" else 2e-2))


def test_deterministic_refuses_gradients_only(backend, ns):
    field, p = make_field(backend), points(ns)
    plain = cn.mc_dropout(field, p, cn.Key(0), 3)[0].numpy()
    value = type(field["network.weights"])(field["network.weights"])
    dr.enable_grad(value)
    field["network.weights"] = value
    with cn.deterministic():
        with pytest.raises(RuntimeError, match="deterministic"):
            cn.mc_dropout(field, p, cn.Key(0), 3)
        with dr.suspend_grad():
            assert np.array_equal(cn.mc_dropout(field, p, cn.Key(0), 3)[0].numpy(), plain)


def test_no_gradient_at_zero_deviation(backend, ns):
    """Where all passes agree, the deviation has no derivative: it is taken as 0."""
    body = cn.Sequential(cn.Linear(2, 2, bias=False), cn.ReLU(), cn.Dropout(0.5))
    field = cn.NeuralField(None, cn.Residual(body)).build(backend)
    field.set_matrix("body.layers.0.weights", np.eye(2))
    x = np.array([[-1, 0.5, -2, 0.25], [-1, 1, -0.5, 0.75]])  # samples 0 and 2 are dead behind the ReLU
    p = ns.Array2f(x) + ns.Float(0)
    dr.enable_grad(p)
    mean, deviation = cn.mc_dropout(field, p, cn.Key(0), 20)
    dead = np.array([True, False, True, False])
    np.testing.assert_array_equal((deviation.numpy() == 0)[:, dead], True)
    assert (deviation.numpy()[:, ~dead] > 0.1).all()
    dr.backward(dr.sum(mean + 3 * deviation))
    gradient = dr.grad(p).numpy()
    np.testing.assert_allclose(gradient[:, dead], 1, rtol=1e-3)
    # y_i = x (1 + s_i): both moments are proportional to x
    expected = (mean + 3 * deviation).numpy() / x
    np.testing.assert_allclose(gradient[:, ~dead], expected[:, ~dead], rtol=1e-3)


class Noisy(cn.Module):
    """A module of one's own that draws masks without a Dropout layer."""

    def __call__(self, x, key=None):
        return cn.dropout(x, 0.5, key)


def test_other_modules_may_drop_as_they_like(backend, ns):
    p = points(ns)
    mean, deviation = cn.mc_dropout(Noisy(), p, cn.Key(0), 400)
    np.testing.assert_allclose(mean.numpy(), p.numpy(), atol=0.3)
    np.testing.assert_allclose(deviation.numpy(), p.numpy(), atol=0.3)


@pytest.mark.slow
def test_the_example_runs(backend, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    path = Path(cn.__file__).parent.parent / "examples" / "uncertainty.py"
    spec = importlib.util.spec_from_file_location("uncertainty_example", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    for name, value in (("STEPS", 20), ("MASKS", 8)):
        monkeypatch.setattr(example, name, value)
    monkeypatch.setattr(cn.backend, "require", lambda name: backend)
    monkeypatch.setattr("sys.argv", ["uncertainty.py", str(tmp_path / "figure.png")])
    assert example.main() == 0
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert "within 2 sigma" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(key=None), TypeError, "key is a NoneType; a coopnet.Key is needed"),
        (dict(key=3), TypeError, "key is a int"),
        (dict(samples=1), ValueError, "samples is 1"),
        (dict(samples=2.0), TypeError, "samples is 2.0 of type float"),
        (dict(samples=True), TypeError, "samples is True"),
        (dict(samples=2**24 + 1), ValueError, "samples is 16777217"),
        (dict(field=abs), TypeError, "field is a builtin_function_or_method"),
        (dict(dropout=0.0), ValueError, "no Dropout with p > 0"),
        (dict(x=np.ones((2, 3), np.float32)), TypeError, "NumPy array"),
        (dict(x=3), TypeError, "got builtins.int"),
        (dict(x=[]), ValueError, "empty"),
    ],
)
def test_bad_arguments(backend, ns, change, error, words):
    change = dict(change)
    field = make_field(backend, change.pop("dropout", 0.2))
    arguments = dict(field=field, x=points(ns), key=cn.Key(0), samples=4) | change
    with pytest.raises(error, match="mc_dropout") as info:
        cn.mc_dropout(**arguments)
    assert words in str(info.value)
