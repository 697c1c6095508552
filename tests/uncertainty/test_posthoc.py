"""Dropout put into trained fields."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest
from support.arrays import assert_same, precisions
from support.networks import matrices

import coopnet as cn
from coopnet import reference as ref
from coopnet.nn.tree import children

BATCH, BATCHES = 300, 3


def wave(ns):
    def batch(key):
        x, y = cn.uniform(2, key, ns.Float, BATCH)
        return [x, y], [dr.sin(6 * x) * y]

    return batch


def trained(backend, ns, precision="auto", encoding=None, network=None, steps=30):
    network = network or cn.MLP(-1 if encoding else 2, 1, width=8, depth=2, activation="tanh", bias=True)
    field = cn.NeuralField(encoding, network).build(backend, precision)
    cn.fit(field, wave(ns), steps, lr=1e-2, progress=False)
    return field


def rows(arrays):
    dr.eval(arrays)
    return np.stack([np.broadcast_to(v.numpy(), BATCH) for v in arrays]).astype(np.float64)


def test_agrees_with_the_reference(backend, ns):
    """The rate that the float64 network bears, over the same batches and masks."""
    for precision in precisions(backend):
        agrees(backend, ns, precision)


def agrees(backend, ns, precision):
    field = trained(backend, ns, precision)
    dropped, rate = cn.posthoc_dropout(field, wave(ns), tolerance=0.2, seed=3, batches=BATCHES)
    weights, biases = matrices(field.network)
    data = [wave(ns)(cn.Key(3, step=i).traced(ns.UInt32)) for i in range(BATCHES)]
    data = [(rows(x), rows(t)) for x, t in data]

    def loss(p):
        total = 0
        for i, (x, t) in enumerate(data):
            dropout = ref.MLPDropout(p, 32, 3, step=i) if p else None
            y = ref.mlp(weights, x, "tanh", biases=biases, dropout=dropout)
            total += np.mean((y - t) ** 2)
        return total / BATCHES

    assert rate == pytest.approx(ref.posthoc_dropout(loss, 0.2), rel=0.02 if precision == "single" else 0.1)
    assert 1e-3 < rate < 0.5
    assert [m.p for m in children(dropped) if isinstance(m, cn.Dropout)] == [rate, rate]


def test_the_field_itself_stays(backend, ns):
    field = trained(backend, ns)
    p = wave(ns)(cn.Key(1))[0]
    before = field(p).numpy()
    dropped, _ = cn.posthoc_dropout(field, wave(ns), batches=1)
    assert not any(isinstance(m, cn.Dropout) for m in children(field))
    for one in (field, dropped):
        assert_same(backend, one(p).numpy(), before)
    assert dropped(p, cn.Key(1)).numpy().shape == before.shape
    _, deviation = cn.mc_dropout(dropped, p, cn.Key(0), 4)
    assert (deviation.numpy() > 0).any()


@pytest.mark.parametrize(
    "make, places",
    [
        (lambda: cn.MLP(-1, 1, width=8, depth=1, output_activation="sigmoid"), ["ReLU"]),
        (lambda: cn.Sequential(cn.Residual(cn.Sequential(cn.Linear(4, 4), cn.Tanh())), cn.Linear(-1, 1)), ["Tanh"]),
        (lambda: cn.Heads(cn.Sequential(cn.Linear(-1, 8), cn.SiLU()), {"a": cn.MLP(-1, 1, 8, 1, "sine", "exp")}),
         ["SiLU", "Sine"]),
    ],
)  # fmt: skip
def test_places(backend, ns, make, places):
    """Behind hidden activations, not behind the last."""
    field = trained(backend, ns, encoding=cn.Sinusoidal(1, in_features=2), network=make(), steps=1)
    dropped, _ = cn.posthoc_dropout(field, wave(ns), tolerance=5, batches=1)
    layers = [m for m in children(dropped.network) if len(list(children(m))) == 1]
    before = [type(layers[i - 1]).__name__ for i, m in enumerate(layers) if isinstance(m, cn.Dropout)]
    assert before == places
    assert len({m.stream for m in layers if isinstance(m, cn.Dropout)}) == len(places)


def test_features_of_a_grid_are_dropped_too(backend, ns):
    grid = cn.HashGrid(2, n_levels=2, hashmap_size=2**6, base_resolution=4)
    field = trained(backend, ns, encoding=grid, network=cn.MLP(-1, 1, width=8, depth=1))
    dropped, _ = cn.posthoc_dropout(field, wave(ns), batches=1)
    assert isinstance(dropped.network.layers[0], cn.Dropout)
    assert_same(backend, dropped.matrix("encoding.data"), field.matrix("encoding.data"))


def test_frozen_in_loops_and_saved(backend, ns, tmp_path):
    pytest.importorskip("safetensors")
    dropped, _ = cn.posthoc_dropout(trained(backend, ns), wave(ns), tolerance=1, batches=1)
    p = wave(ns)(cn.Key(1))[0]
    dr.make_opaque(p)
    cn.save(tmp_path / "f.safetensors", dropped)
    again = cn.load(tmp_path / "f.safetensors", backend)
    frozen = dr.freeze(lambda field, p, key: field(p, key))
    for step in range(3):
        key = cn.Key(dr.opaque(ns.UInt64, 5), None, dr.opaque(ns.UInt32, step))
        expected = dropped(p, key).numpy()
        assert_same(backend, again(p, key).numpy(), expected)
        assert_same(backend, frozen(dropped, p, key).numpy(), expected)
    key = cn.Key(5, dr.arange(ns.UInt32, BATCH))
    total = dr.while_loop(
        (ns.UInt32(0), dr.zeros(ns.Float, BATCH)),
        lambda i, y: i < 3,
        lambda i, y: (i + 1, y + dropped(p, key.fold_in(i))[0]),
        mode="symbolic",
    )[1]
    expected = sum(dropped(p, key.fold_in(i))[0].numpy() for i in range(3))
    np.testing.assert_allclose(total.numpy(), expected, atol=1e-5 if backend == "llvm" else 1e-2)


def test_a_loss_of_ones_own(backend, ns):
    field = trained(backend, ns)
    l1, l2 = (cn.posthoc_dropout(field, wave(ns), loss=f, batches=2)[1] for f in (cn.training.losses.l1, None))
    assert l1 != l2
    with pytest.raises(TypeError, match="loss returned a list"):
        cn.posthoc_dropout(field, wave(ns), loss=lambda y, t: y, batches=1)


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(field=None), TypeError, "field is a NoneType"),
        (dict(field=cn.NeuralField(None, cn.MLP(2, 1))), ValueError, "not built yet"),
        (dict(batch=3), TypeError, "batch is a int"),
        (dict(batch=lambda key: 3), TypeError, "pair"),
        (dict(tolerance=0), ValueError, "tolerance is 0"),
        (dict(loss=lambda y, t: 0 * y[0]), ValueError, "a positive number is needed"),
        (dict(seed=-1), ValueError, "seed is -1"),
        (dict(batches=0), ValueError, "batches is 0"),
        (dict(loss="l1"), TypeError, "loss is a str"),
    ],
)
def test_bad_arguments(backend, ns, change, error, words):
    field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build(backend)
    arguments = dict(field=field, batch=wave(ns), batches=1) | change
    with pytest.raises(error, match="posthoc_dropout") as info:
        cn.posthoc_dropout(arguments.pop("field"), arguments.pop("batch"), **arguments)
    assert words in str(info.value)


def test_fields_that_have_none_to_gain(backend, ns):
    for network, words in ((cn.Linear(2, 1), "hidden activation"), (cn.MLP(2, 1, 8, 1, dropout=0.1), "already")):
        field = cn.NeuralField(None, network).build(backend)
        with pytest.raises(ValueError, match=words):
            cn.posthoc_dropout(field, wave(ns))


def test_ensembles_are_refused(backend, ns):
    """A dropout behind all members would drop their outputs."""
    members = [cn.NeuralField(cn.HashGrid(2, 2), cn.MLP(out_features=1)).build(backend, seed=i) for i in range(2)]
    p = [ns.Float(0.1, 0.7)] * 2
    with pytest.raises(ValueError, match="field is an ensemble; give its members dropout"):
        cn.posthoc_dropout(cn.ensemble(members), lambda key: (p, p[:1]))
