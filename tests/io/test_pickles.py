"""Copies and pickles of fields and networks: the same outputs, and nothing shared."""

from __future__ import annotations

import copy
import pickle

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.machines import run
from support.networks import same, weights
from support.training import make_batch, make_field

import coopnet as cn
from coopnet import backend as backends
from coopnet.io import pickles

WAYS = {"deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}
both = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def tensor(ns, backend):
    return ns.TensorXf16 if backend == "cuda" else ns.TensorXf


def outputs(net, ns, packed):
    """Of a network of two inputs, for a few points."""
    dtype = type(next(iter(net.values()))) if len(net) else ns.TensorXf
    x = np.random.default_rng(1).random((2, 9))
    if not packed:
        leaf = dr.array_t(dtype) if dr.is_tensor_v(dtype) else dtype
        return np.array(net(dr.tensor_t(leaf)(leaf(x.ravel()), x.shape), cn.Key(3)))
    leaf = type(net[next(iter(net))].array)
    return np.array([v.numpy() for v in net(drnn.CoopVec(*(leaf(row) for row in x)), cn.Key(3))])


NETWORKS = {
    "Linear": lambda: cn.Linear(2, 3),
    "Linear of one input": lambda: cn.Sequential(cn.Linear(2, 1), cn.Linear(1, 2, bias=False)),
    "Sequential": lambda: cn.Sequential(cn.Linear(2, 8), cn.Softplus(2.0), drnn.ReLU(), drnn.Linear(8, 1), prefix="p"),
    "MLP": lambda: cn.MLP(-1, 2, width=16, depth=2, dropout=0.25, bias=True),
    "Heads": lambda: cn.nn.Heads(cn.Linear(2, 8), {"a": cn.Linear(8, 1), "b": cn.Linear(8, 2)}),
    "Residual": lambda: cn.Sequential(cn.Linear(2, 4), cn.Residual(cn.Linear(4, 4))),
}


@both
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(backend, ns, name, way):
    plain = NETWORKS[name]()
    assert repr(way(plain)) == repr(plain) and not len(way(plain))
    net = plain.alloc(tensor(ns, backend), 2, dr.rng(seed=1))
    if name in ("MLP", "Linear") and backend == "llvm":  # the engine takes vectors, Linear tensors
        np.testing.assert_array_equal(outputs(way(net), ns, False), outputs(net, ns, False))
    packed = drnn.pack(net, layout="training")
    expected, before = outputs(packed, ns, True), (weights(packed), weights(net))
    for each, is_packed in ((net, False), (packed, True)):
        again = way(each)
        assert repr(again) == repr(each) and same(weights(again), weights(each))
        assert list(again) == list(each) and all(again[k] is not each[k] for k in each)
        np.testing.assert_array_equal(outputs(again if is_packed else drnn.pack(again), ns, True), expected)
        again.update({k: v * 0 for k, v in again.items()})  # all of it, through the mapping
        assert not any(np.any(v) for v in weights(again).values())
    assert same(weights(packed), before[0]) and same(weights(net), before[1])
    np.testing.assert_array_equal(outputs(packed, ns, True), expected)


ENCODINGS = None, cn.HashGrid(2, n_levels=3, hashmap_size=64, max_level=1), cn.Fourier(4, 2.0, in_features=2)


def of_a_field(field, ns):
    x = np.random.default_rng(1).random((2, 50)).astype(np.float32)
    return np.array(field([ns.Float(v) for v in x], cn.Key(5)))


@both
@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda v: type(v).__name__)
def test_fields(backend, ns, encoding, way):
    """Training a copy leaves the original as it was, and the other way round."""
    field = make_field(backend, encoding=encoding)
    expected, before = of_a_field(field, ns), weights(field)  # evaluated: it knows what it is made of
    again = way(field)
    np.testing.assert_array_equal(of_a_field(again, ns), expected)
    assert again.precision == field.precision and repr(again) == repr(field)
    cn.fit(again, make_batch(ns), 3, progress=False)
    assert same(weights(field), before) and not same(weights(again), before)
    np.testing.assert_array_equal(of_a_field(field, ns), expected)
    trained = weights(again)
    cn.fit(field, make_batch(ns), 3, progress=False)
    assert same(weights(again), trained)
    if isinstance(encoding, cn.HashGrid):
        assert again.encoding.max_level[0] == 1
        again.encoding.max_level += 1  # in place
        assert field.encoding.max_level[0] == 1 == encoding.max_level


@both
def test_what_belongs_together_stays_together(backend, ns, way):
    """One field in two places, and with it in an optimizer; gradients are not copied."""
    field = make_field(backend)
    opt = dr.opt.Adam(lr=1e-2, params=field)
    field.update(opt)
    dr.backward(dr.sum(field([ns.Float(0.1, 0.2)] * 2)[0]))
    scene = way({"a": field, "b": [field], "opt": opt, "key": cn.Key(3, ns.UInt32(1, 2))})
    assert scene["a"] is scene["b"][0] is not field
    assert not any(dr.grad_enabled(v) for v in scene["a"].values())
    assert same(weights(scene["a"]), weights(field)) and scene["key"].index.numpy().tolist() == [1, 2]
    scene["a"].update(scene["opt"])
    assert same(weights(scene["a"]), weights(field))
    with pytest.raises(ValueError, match="does not track gradients"):
        way(field).gradient("layers.0.weights")


def test_a_shallow_copy_has_the_same_parameters(backend, ns):
    field = make_field(backend)
    again = copy.copy(field)
    assert again is not field and again.network is field.network
    assert again["network.weights"] is field["network.weights"]


def test_pickles_cross_processes(backend, ns, tmp_path):
    field = make_field(backend, encoding=cn.HashGrid(2, n_levels=2, hashmap_size=64))
    (tmp_path / "field.pickle").write_bytes(pickle.dumps(field))
    code = f"""
import pickle, numpy as np
field = pickle.load(open({str(tmp_path / "field.pickle")!r}, "rb"))
import coopnet as cn
ns = cn.backend.namespace({backend!r})
x = np.random.default_rng(1).random((2, 50)).astype(np.float32)
np.save({str(tmp_path / "y.npy")!r}, np.array(field([ns.Float(v) for v in x], cn.Key(5))))
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), of_a_field(field, ns))


def test_pickles_cross_backends(backend, monkeypatch):
    """As checkpoints do: what was pickled where a backend was that is not here, in this one's precision."""
    field = make_field(backend, "half")
    read, (description, values, name, precision) = field.__reduce_ex__(4)
    assert (name, precision) == (backend, "half")
    again = read(description, values, backend, precision)
    assert again.precision == "half" and same(weights(again), weights(field))
    if backend == "llvm" and len(backends.available()) > 1:
        return  # "auto" is CUDA here, as for checkpoints
    monkeypatch.setattr(backends, "available", lambda: [backend])
    elsewhere = read(description, values, "cuda" if backend == "llvm" else "llvm", precision)
    assert elsewhere.precision == ("half" if backend == "cuda" else "single")
    assert all(np.array_equal(v, weights(field)[k]) for k, v in weights(elsewhere).items())
    monkeypatch.undo()
    if len(backends.available()) == 1:
        with pytest.raises(cn.BackendError):
            pickles._network({}, {}, "cuda" if backend == "llvm" else "llvm", "TensorXf", None)


class Scaled(cn.Module):
    """A layer of a user, with a function."""

    DRJIT_STRUCT = {"by": object}

    def __init__(self, by=None):
        self.by = by

    def __call__(self, x, key=None):
        return x * self.by(2)

    def _alloc(self, dtype, size, rng):
        return Scaled(self.by), size


def test_what_cannot_be_pickled(backend, ns):
    """It says what and why; in memory, functions are shared."""
    net = cn.Sequential(cn.Linear(2, 3), Scaled(lambda x: x))
    field = cn.NeuralField(None, net).build(backend)
    with pytest.raises(TypeError, match=r"^describe: network\.layers\.1 is a .*Scaled; accepted .*register\(\)"):
        pickle.dumps(field)
    with pytest.raises(TypeError, match=r"^describe: Sequential\.layers\.1 is a .*Scaled; accepted"):
        pickle.dumps(net.alloc(tensor(ns, backend)))
    with pytest.raises((AttributeError, pickle.PicklingError), match=r"pickle .*<lambda>"):
        pickle.dumps(net)
    x = [ns.Float(0.5, 1)] * 2
    np.testing.assert_array_equal(np.array(copy.deepcopy(field)(x)), np.array(field(x)))


def test_not_while_something_is_recorded(backend, ns):
    field = make_field(backend)

    @dr.freeze
    def frozen(x):
        pickle.dumps(field)
        return x + 1

    with pytest.raises(RuntimeError) as caught:
        frozen(ns.Float(1, 2))
    assert "pickle: called while Dr.Jit records" in str(caught.getrepr(chain=True))
