"""Which samples are whose, and what of a batch belongs to them."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from drjit.opt import SGD
from support.training import make_batch, make_field

import coopnet as cn
from coopnet.training.distributed import find_group, torch_group
from coopnet.training.distributed.facts import _difference
from coopnet.training.distributed.replicas import Replicas, digest
from coopnet.training.distributed.shares import bounds, sliced


@pytest.mark.parametrize("total, parts", [(1, 1), (10, 3), (1001, 4), (2**20, 7), (5, 5)])
def test_bounds(total, parts):
    found = bounds(total, parts)
    assert [i for lo, hi in found for i in range(lo, hi)] == list(range(total))
    assert len(found) == parts and {hi - lo for lo, hi in found} <= {total // parts, total // parts + 1}


def test_losses_inside_a_kernel_have_their_weight_in_the_whole_batch(ns, backend):
    """A step of SGD is proportional to the gradient, unlike one of Adam."""
    found = []
    for group in (None, cn.training.Group(chunks=4)):
        field = make_field(backend, dropout=0.0)
        before = field.matrix("network.layers.0.weights")
        with cn.gradient_path("banks"):
            cn.fit(field, make_batch(ns), 1, optimizer=SGD(lr=0.5), progress=False, distributed=group)
        found.append(field.matrix("network.layers.0.weights") - before)
    assert np.abs(found[0]).max() > 1e-3
    # on CUDA, weights are rounded to half precision: the last bit of 0.5 is 2^-11
    np.testing.assert_allclose(
        *found, rtol=2e-2 if backend == "cuda" else 1e-4, atol=6e-4 if backend == "cuda" else 1e-4
    )


class Rays:
    DRJIT_STRUCT = {"origin": object, "label": str}

    def __init__(self, origin=None, label=""):
        self.origin, self.label = origin, label


def test_what_is_sliced(ns):
    """All that has an entry for each sample, in any container; nothing else."""
    flat = dr.arange(ns.Float, 10)
    index = ns.UInt32(3, 4, 5)
    tree = {
        "flat": flat,
        "nested": ns.Array2f(flat, 7),
        "list": [flat, ns.Float(1, 2)],
        "tensor": ns.TensorXf(dr.arange(ns.Float, 20), (2, 10)),
        "row": ns.TensorXf(flat, (10,)),
        "table": ns.TensorXf(flat, (10, 1)),
        "rays": Rays(ns.Array3f(flat, flat + 1, flat + 2), "camera"),
        "vector": drnn.CoopVec(flat, flat + 1),
        "constant": ns.Float(5),
        "other": "x",
    }
    found = sliced(tree, 10, index)
    np.testing.assert_array_equal(found["flat"].numpy(), [3, 4, 5])
    np.testing.assert_array_equal(found["nested"].numpy(), [[3, 4, 5], [7, 7, 7]])
    assert [dr.width(v) for v in found["list"]] == [3, 2]
    np.testing.assert_array_equal(found["tensor"].numpy(), [[3, 4, 5], [13, 14, 15]])
    np.testing.assert_array_equal(found["row"].numpy(), [3, 4, 5])
    assert found["table"].shape == (10, 1)
    np.testing.assert_array_equal(found["rays"].origin.numpy()[2], [5, 6, 7])
    assert found["rays"].label == "camera" and dr.width(tree["rays"].origin) == 10
    np.testing.assert_array_equal(list(found["vector"])[1].numpy(), [4, 5, 6])
    assert dr.width(found["constant"]) == 1 and found["other"] == "x"


def test_numbers_of_a_share(ns):
    """A share that is drawn alone has the numbers that it has in the whole batch."""

    @cn.training.by_index(1000)
    def batch(key):
        return cn.uniform(3, key, ns.Float)

    whole = batch(cn.Key(4, step=2))
    part = batch(cn.Key(4, dr.arange(ns.UInt32, 100) + 600, 2))
    for one, other in zip(whole, part, strict=True):
        assert dr.width(one) == 1000
        np.testing.assert_array_equal(one.numpy()[600:700], other.numpy())


def test_tables_by_index(ns, backend):
    """A batch function may read at ``key.index`` from the first call on."""
    table = dr.arange(ns.Float, 256) / 256

    @cn.training.by_index(256)
    def batch(key):
        x = dr.gather(ns.Float, table, key.index)
        return [x, x], [x, x * x]

    one = cn.fit(make_field(backend), batch, 3, progress=False)
    chunked = cn.fit(make_field(backend), batch, 3, progress=False, distributed=cn.training.Group(chunks=3))
    np.testing.assert_allclose(one.losses, chunked.losses, rtol=2e-2 if backend == "cuda" else 1e-5)


@pytest.mark.parametrize("chunks", [None, 1, 5])
def test_a_group_of_one(ns, backend, chunks):
    """Parts of a batch, one after the other, are the batch."""
    group = cn.training.Group(chunks=chunks)
    one = cn.fit(make_field(backend), make_batch(ns), 5, progress=False)
    other = cn.fit(make_field(backend), make_batch(ns), 5, progress=False, distributed=group)
    np.testing.assert_allclose(one.losses, other.losses, rtol=2e-2 if backend == "cuda" else 1e-5)


def test_objectives_with_losses_of_their_own(ns, backend):
    """Several losses for each sample, if the number of samples is known; others cannot be shared."""

    def twice(field, drawn, key):
        y = field([*drawn], key)
        both = dr.zeros(ns.Float, 2 * dr.width(y[0]))
        lane = dr.arange(ns.UInt32, dr.width(y[0]))
        dr.scatter(both, dr.square(y[0]), lane)
        dr.scatter(both, dr.square(y[1]), lane + dr.width(y[0]))
        return both

    def batch(key):
        return cn.uniform(2, key, ns.Float, 64)

    options = dict(objective=twice, progress=False, distributed=cn.training.Group(chunks=2))
    cn.fit(make_field(backend), cn.training.by_index(64)(batch), 2, **options)
    with pytest.raises(RuntimeError, match="128 losses for a share of 64 of 128 samples; 64 are needed"):
        cn.fit(make_field(backend), batch, 2, **options)
    with pytest.raises(ValueError, match="a batch of 60 samples by_index has 128 losses"):
        cn.fit(make_field(backend), cn.training.by_index(60)(lambda key: batch(cn.Key(key.seed))), 2, **options)


def test_what_is_no_group(ns, backend, monkeypatch):
    field = make_field(backend)
    for wrong in (1, "Auto", True, object()):
        with pytest.raises(TypeError, match=r"fit: distributed is .*; None, \"auto\" or a coopnet.training.Group"):
            cn.fit(field, make_batch(ns), 1, progress=False, distributed=wrong)
    with pytest.raises(ValueError, match="Group: chunks is 0"):
        cn.training.Group(chunks=0)
    with pytest.raises(ValueError, match="by_index: samples is 0"):
        cn.training.by_index(0)
    with pytest.raises(TypeError, match="by_index: the batch is a int"):
        cn.training.by_index(8)(3)
    monkeypatch.delenv("RANK", raising=False)
    assert find_group("fit", "auto", field) is None
    with pytest.raises(ValueError, match="fit: a batch of 256 samples cannot be shared among 300"):
        cn.fit(field, make_batch(ns), 1, progress=False, distributed=cn.training.Group(chunks=300))


def test_torch_without_torchrun(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ValueError, match=r"TorchGroup: the environment lacks .*MASTER_ADDR.*; start the program with"):
        cn.training.TorchGroup("llvm")
    with pytest.raises(ValueError, match="TorchGroup: timeout is 0"):
        cn.training.TorchGroup("llvm", timeout=0)
    with pytest.raises(ValueError, match="TorchGroup: backend is 'gpu'"):
        cn.training.TorchGroup("gpu")


@pytest.fixture
def torch(monkeypatch):
    """What stands for PyTorch: its ``distributed`` notes in ``made`` which communicators are asked for."""
    made = []

    def new_group(backend, timeout):
        made.append((backend, timeout.total_seconds()))
        return backend

    distributed = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 1, get_world_size=lambda: 2,
        group=SimpleNamespace(WORLD="all"), new_group=new_group, made=made,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed))
    torch_group._made.clear()
    yield distributed
    torch_group._made.clear()


def test_what_is_asked_of_torch(backend, torch):
    """Communicators of its own, one for all groups that are alike."""
    group = cn.training.TorchGroup("cuda", chunks=4)
    assert (group.rank, group.size, group.chunks) == (1, 2, 4)
    assert torch.made == [("gloo", 600), ("nccl", 600)]
    engine = {"llvm": "gloo", "cuda": "nccl"}
    assert find_group("fit", "auto", make_field(backend))._engine == engine[backend]
    assert find_group("fit_many", "auto", None)._engine == "gloo"
    assert len(torch.made) == 2
    cn.training.TorchGroup("llvm", timeout=5)
    assert torch.made[2:] == [("gloo", 5)]


def test_torch_is_initialized_as_torchrun_says(monkeypatch, torch):
    began = []
    torch.is_initialized = lambda: False
    torch.rendezvous = lambda where, timeout: iter([("store", 1, 2)])
    torch.PrefixStore = lambda prefix, store: f"{prefix} {store}"
    torch.init_process_group = lambda engine, timeout, **options: began.append((engine, timeout.seconds, options))
    for name in torch_group.VARIABLES:
        monkeypatch.setenv(name, "1")
    for hosts, store in (("1", "3 store"), ("2", "store")):
        monkeypatch.setenv("GROUP_WORLD_SIZE", hosts)
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
        cn.training.TorchGroup("llvm", timeout=5)
        assert began.pop() == ("gloo", 5, {"store": store, "rank": 1, "world_size": 2})
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(ValueError, match="TorchGroup: the environment lacks MASTER_PORT; start the program with"):
        cn.training.TorchGroup("llvm")


def test_torch_that_is_not_there(monkeypatch, torch):
    torch.is_available = lambda: False
    with pytest.raises(ImportError, match=r"TorchGroup needs torch\.distributed, which this PyTorch was built without"):
        cn.training.TorchGroup("llvm")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"TorchGroup needs PyTorch; pip install torch, or coopnet\[distributed\]"):
        cn.training.TorchGroup("llvm")


def test_when_batches_differ():
    """By more than a hundredth of the largest entry."""

    def differ(a, b):
        return _difference([(64, [a] * 64)], [(64, [b] * 64)], 1)

    assert not differ(1.0, 0.99001) and not differ(math.nan, math.nan)
    words = "entry 0 of array 0 of the first batch is 1 on process 0 and 0.989995 on process 1"
    assert differ(1.0, 0.989995) == words
    words = "the arrays of a batch have [2] entries on process 0 and [3] on 1"
    assert _difference([(2, [0.0] * 2)], [(3, [0.0] * 3)], 1) == words


@pytest.fixture
def told(monkeypatch):
    """What processes would compare, and under what name."""
    found = []
    monkeypatch.setattr(Replicas, "agree", lambda self, what, facts: found.append((what, facts())))
    return found


def test_the_loss_or_objective_that_must_agree(ns, backend, told):
    def objective(field, drawn, key):
        return dr.square(field(drawn[0], key)[0])

    for options in ({"loss": "l1"}, {"objective": objective}):
        cn.fit(make_field(backend), make_batch(ns), 0, distributed=cn.training.Group(), progress=False, **options)
    names = [facts["the loss"] for _, facts in told if "the loss" in facts]
    assert names == ["l1", objective.__qualname__]


def test_the_learning_rates_that_must_agree(ns, backend, told, tmp_path):
    """Those of the first step, the middle, and the last, also of a run that is resumed."""
    options = {"lr": lambda step: 1e-4 * 2**step, "distributed": cn.training.Group(), "progress": False}
    for steps in (3, 7):
        cn.fit(make_field(backend), make_batch(ns), steps, checkpoint=tmp_path / "a", resume=True, **options)
    first, second = (facts["lr"] for what, facts in told if what == "the start")
    assert first == [1e-4, 2e-4, 4e-4] and second == [8e-4, 32e-4, 64e-4]


def test_a_hash_of_parameters_tells_their_names(ns):
    """Of equal numbers, and as they are sorted."""
    x, y = ns.Float(1, 2), ns.Float(3)
    hashes = {digest(arrays) for arrays in ({"a": x, "b": y}, {"a": x, "c": y}, {"a": y, "b": x}, {"a": x})}
    assert len(hashes) == 4 and digest({"b": y, "a": x}) == digest({"a": x, "b": y})
