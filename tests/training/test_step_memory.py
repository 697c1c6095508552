"""The memory of a step is counted before it: what does not fit is an error, and what fits runs."""

from __future__ import annotations

import sys

import drjit as dr
import drjit.opt as opt
import pytest
from support.machines import run
from support.training import tiny_batch, tiny_field

import coopnet as cn
from coopnet import backend as backends
from coopnet.checks import memory as free_memory
from coopnet.training import memory
from coopnet.training.step import Options

GIB = 1 << 30
LIMITED = """
import resource, sys
import coopnet as cn, drjit as dr
from drjit.llvm.ad import Float
def limit(gib):
    resource.setrlimit(resource.RLIMIT_AS, (int(gib * 2**30), resource.RLIM_INFINITY))
def make(n):
    return cn.NeuralField(cn.Embedding(n, 1, check=False), cn.MLP(1, 1, width=8, depth=1)).build("llvm")
def batch_of(n, samples=256):
    def batch(key):
        (u,) = cn.uniform(1, key, Float, samples)
        return [dr.floor(u * n)], [u]
    return batch
"""


@pytest.fixture
def llvm(backend):
    if backend != "llvm":
        pytest.skip("Dr.Jit raises on GPUs where memory is missing")
    if "cuda" in backends.available():
        pytest.skip("CUDA reserves more of the address space than the limits leave")


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of the address space")
def test_a_step_beyond_the_address_space(llvm):
    """A field that fits beside a step that does not: the process used to end with SIGSEGV."""
    done = run(
        LIMITED
        + """
limit(3)
n = 130_000_000
try:
    cn.fit(make(n), batch_of(n), 3, progress=False)
except ValueError as error:
    print(error)
"""
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.startswith("fit: a step takes 5.2 GiB more memory, 1.9 GiB for the parameters, ")
    for words in ("for their gradients", "for the optimizer's state", "of the address space of this process", "SGD"):
        assert words in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of the address space")
def test_what_is_counted_is_enough(llvm):
    """A run that may take what was counted, and no more, comes to its end."""
    code = """
from coopnet.checks import memory as free_memory
from coopnet.training import memory
n, counted = 1 << 23, []
free_memory.memory_left = lambda: {}
memory.check_room = lambda where, parts, cure: counted.append(
    sum(1 << int(size - 1).bit_length() for v in parts.values() for size in v if size))
def lr(step):
    limit((used + counted[-1]) / 2**30)
    return 1e-3
field = make(n)
options = dict(ema=cn.training.EMA(field), clip_norm=1.0)
dr.flush_malloc_cache()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
print(cn.fit(field, batch_of(n), 3, lr=lr, progress=False, **options).steps)
"""
    done = run(LIMITED + code)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-500:])
    assert done.stdout.split() == ["3"]


def test_every_part_is_counted(llvm, monkeypatch):
    seen = []
    monkeypatch.setattr(memory, "check_room", lambda where, parts, cure: seen.append(parts))
    field = cn.NeuralField(None, cn.MLP(8, 8, width=64, depth=2)).build("llvm")
    n = 4 * sum(dr.width(v.array) for v in field.values())

    def count(optimizer=None, options=Options(), **more):  # noqa: B008 - it does not change
        memory.check_memory(field, opt.Adam(lr=1e-3) if optimizer is None else optimizer, options, **more)
        return {name: sum(found) / n for name, found in seen.pop().items()}

    none = {"the weight average": 0, "factors of learning rate and decay": 0, "the best parameters": 0}
    plain = {"the parameters": 4, "their gradients": 1.5, "the optimizer's state": 5, **none, "rows of the batch": 0}
    found = count()
    assert found.pop("compiling") > 0 and found == plain
    assert count(options=Options(ema=cn.training.EMA(field)))["the weight average"] == 1.5
    assert count(options=Options(clip_norm=1.0))["their gradients"] == 3.5
    two = Options(multipliers={"layers.0": 0.1}, weight_decay=0.1)
    assert count(options=two)["factors of learning rate and decay"] == 4
    assert count(best=True)["the best parameters"] == 1
    assert count(opt.SGD(lr=1e-2))["the optimizer's state"] == 0
    assert count(opt.SGD(lr=1e-2, momentum=0.9))["the optimizer's state"] == 2.5
    assert count(cn.training.Adam(1e-2, lookahead=2, accumulate=2))["the optimizer's state"] == 10
    assert count(cn.training.Novograd(1e-2))["the optimizer's state"] == 2.5
    rows = count(samples=4096)["rows of the batch"] * n
    assert rows == field.explain(4096).memory + 4 * 4096 * (8 + 2 * 8)
    assert count(samples=4096, together=3)["rows of the batch"] * n == 3 * rows
    assert count(together=3)["their gradients"] == 4.5


def test_rows_of_a_large_batch(backend, ns, llvm, monkeypatch):
    """Nothing is wrong with the field: the batch is what does not fit."""
    monkeypatch.setattr(free_memory, "memory_left", lambda: {free_memory.CONTAINER: GIB // 4})
    cn.fit(tiny_field(backend), tiny_batch(ns), 1, progress=False)
    with pytest.raises(ValueError, match=r"GiB for rows of the batch.* of this container or service are left\. A sm"):
        cn.fit(tiny_field(backend), tiny_batch(ns, 1 << 24), 1, progress=False)
    with pytest.raises(ValueError, match=r"fit_many: job 0: fit: a step takes .* for rows of the batch"):
        fields = [tiny_field(backend) for _ in range(2)]
        cn.fit_many(fields, lambda key, job: tiny_batch(ns, 1 << 24)(key), 1, progress=False)


def test_the_best_parameters_are_counted_where_they_are_kept(backend, ns, monkeypatch):
    seen = []
    monkeypatch.setattr(sys.modules["coopnet.training.fit"], "check_memory", lambda *_, **options: seen.append(options))
    for patience in (None, 3):
        options = {"metric": lambda field: 1.0, "patience": patience, "progress": False}
        cn.fit(tiny_field(backend), tiny_batch(ns), 1, **options)
    assert [options["best"] for options in seen] == [False, True] and all(options["samples"] for options in seen)
