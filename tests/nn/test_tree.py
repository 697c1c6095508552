"""The walk through a network: what it finds, in which order and under which names."""

from __future__ import annotations

import drjit as dr
import drjit.nn as drnn
import pytest

import coopnet as cn
from coopnet.nn.parameters import parameters
from coopnet.nn.tree import check_acyclic, children, walk


class Mixed(cn.Module):
    """Arrays before and behind a layer, and some in a list, which are nobody's parameters."""

    DRJIT_STRUCT = {"first": object, "body": cn.Module, "last": object, "others": list}

    def __init__(self, body=None, array=None):
        self.first, self.body, self.last, self.others = array, body, array, [array]


def test_walk(ns):
    table, body = cn.Embedding(3, 2).alloc(ns.TensorXf), cn.Linear(2, 2).alloc(ns.TensorXf)
    net = cn.Sequential(table, Mixed(body, ns.Float(1)), cn.Dropout(0.5), cn.Linear(2, 1, False))
    found = [(name, type(owner).__name__, attribute) for name, owner, attribute in walk(net, "net")]
    assert found == [
        ("net", "Sequential", None),
        ("net.layers.0", "Embedding", None),
        ("net.layers.0.data", "Table", "data"),
        ("net.layers.1", "Mixed", None),
        ("net.layers.1.first", "Mixed", "first"),
        ("net.layers.1.body", "Linear", None),
        ("net.layers.1.body.weights", "Linear", "weights"),
        ("net.layers.1.body.bias", "Linear", "bias"),
        ("net.layers.1.last", "Mixed", "last"),
        ("net.layers.2", "Dropout", None),
        ("net.layers.3", "Linear", None),
    ]
    assert [p.name for p in parameters(net, "net")] == [name for name, _, attribute in found if attribute]
    assert list(children(net)) == [owner for _, owner, attribute in walk(net) if attribute is None]
    assert next(walk(net))[0] == "" and next(parameters(net)).name == "layers.0.data"


def test_packed_weights_keep_their_names(ns, backend):
    net = cn.MLP(2, 3, width=4, depth=1).alloc(ns.TensorXf16 if backend == "cuda" else ns.TensorXf)
    packed = drnn.pack(net, layout="training")
    assert [p.name for p in parameters(packed)] == [p.name for p in parameters(net)]
    assert {id(p.storage) for p in parameters(packed)} == {id(packed["weights"])}
    assert all(dr.shape(p.value) == q.shape for p, q in zip(parameters(net), parameters(packed), strict=True))


def test_a_network_that_contains_itself():
    inner = cn.Sequential(cn.ReLU())
    net = cn.Sequential(cn.Residual(inner))
    inner.layers = (net,)
    with pytest.raises(ValueError, match=r"^Sequential: the network contains itself, through a Sequential; layers may"):
        list(walk(net))
    check_acyclic(inner, (net,))
    twice = cn.ReLU()
    assert list(children(cn.Sequential(twice, twice)))[1:] == [twice, twice]  # which is no circle


def test_all_parameters_are_found_in_one_search(monkeypatch, ns):
    net = cn.Sequential(cn.Linear(2, 2), cn.Linear(2, 1)).alloc(ns.TensorXf)
    values, items, names = net.values(), net.items(), list(net)
    assert [v.array.index for v in values] == [net[name].array.index for name in names]
    net["layers.1.bias"] = dr.full(ns.TensorXf, 2, 1)
    assert values is not items and [name for name, _ in items] == names and len(values) == len(names) == 4
    assert dict(items)["layers.1.bias"].numpy() == [*values][-1].numpy() == 2  # views see later changes
    searches = []
    monkeypatch.setattr("coopnet.nn.module.walk", lambda *args: searches.append(1) or walk(*args))
    assert [name for name, _ in items] == names and all(dr.width(v) for v in values) and len(searches) == 2
