"""What goes wrong on one process is an error on all, and none waits for ever."""

from __future__ import annotations

import time
from types import SimpleNamespace

import drjit as dr
import pytest
from support.processes import need, told, torchrun
from support.training import make_batch, make_field

import coopnet as cn
from coopnet.training.distributed import compare_batches, replicas


class Twins(cn.training.Group):
    """This process, and one that has the same."""

    size = 2

    def gather(self, value):
        return [value, value]


@pytest.fixture(scope="module")
def faults(backend, tmp_path_factory):
    need(backend, 2)
    found = told(torchrun("faults.py", 2, backend, tmp_path_factory.mktemp("faults")), 2)
    names = [name for name, _ in found[0]]
    assert names == [name for name, _ in found[1]]
    return {name: (one, other) for (name, one), (_, other) in zip(*found, strict=True)}


@pytest.mark.parametrize(
    "name",
    [
        "learning rate",
        "learning rate in the last step",
        "batch in the first place",
        "batch when recorded",
        "penalty",
        "learning rate before a metric",
    ],
)
def test_one_raises(faults, name):
    """Its own error there, and what it was elsewhere; the fields are of the same step."""
    (other, weights), (own, own_weights) = faults[name]
    assert weights == own_weights
    assert other.startswith("RuntimeError: fit: process 1 of 2 failed: ") and "no such file" in other
    assert "process 1" not in own and "no such file" in own


@pytest.mark.parametrize("name", ["metric", "metric after a failure of process 0"])
def test_process_0_raises(faults, name):
    (own, weights), (other, other_weights) = faults[name]
    assert weights == other_weights
    assert own == "Boom: no such file"
    assert other == "RuntimeError: fit: process 0 of 2 failed: Boom: no such file"


def test_bad_arguments_of_one(faults):
    (other, _), (own, _) = faults["argument"]
    assert own.startswith("ValueError: fit: lr is -1.0")
    assert other == f"RuntimeError: fit: process 1 of 2 failed: {own}"
    (own, _), (other, _) = faults["no folder"]
    assert "none" in own and other == f"RuntimeError: fit: process 0 of 2 failed: {own}"


@pytest.mark.parametrize(
    "name, words",
    [
        ("seed", "seed is 0 on process 0 and 1 on process 1"),
        ("steps", "steps is 20 on process 0 and 21 on process 1"),
        ("field", "the architecture is "),
        ("weights", "a hash of the parameters is "),
        ("clip_norm", "clip_norm is 1.0 on process 0 and 2.0 on process 1"),
        ("batch size", "the number of samples is 501 on process 0 and 300 on process 1"),
        ("data", "of array 2 of the first batch is "),
        ("version", "and '0.0.1' on process 1"),
    ],
)
def test_processes_differ(faults, name, words):
    for told_by, _ in faults[name]:
        assert told_by.startswith("ValueError: fit: the processes differ: ") and words in told_by


@pytest.mark.parametrize("name", ["data that are rounded otherwise", "data by number"])
def test_processes_that_may_differ(faults, name):
    one, other = faults[name]
    assert one == other and one[:2] == [20, "steps"]


def test_batches_that_cannot_be_shared(faults):
    for told_by, _ in faults["too small"]:
        cure = "the loss of each sample is needed, not their mean."
        assert told_by == f"ValueError: fit: a batch with one loss cannot be shared among 2; {cure}"


def test_one_interrupt_stops_all(faults):
    one, other = faults["Ctrl-C"]
    assert one == other and one[1] == "interrupt" and 6 <= one[0] < 100_000


def test_divergence_of_one_share(faults):
    one, other = faults["divergence"]
    assert one == other and one[1] == "diverged"


def test_and_then_all_is_well(faults):
    one, other = faults["well"]
    assert one == other and one[:2] == [20, "steps"]


@pytest.mark.parametrize("how", ["hangs", "killed"])
def test_one_is_gone(backend, how):
    """Others don't wait longer than they are told to."""
    need(backend, 2)
    start = time.monotonic()
    done = torchrun("gone.py", 2, backend, how, check=False)
    assert time.monotonic() - start < 60
    if how == "killed":
        assert done.returncode != 0  # torchrun ends the others
    else:
        (found,) = told(done, 2)[0]
        reason = "another process has died, or did not respond within 3 s"
        assert found.startswith(f"RuntimeError: TorchGroup: process 0 got no answer: {reason}")


def test_one_gpu_for_two(backend):
    """It takes one GPU only."""
    if backend != "cuda":
        pytest.skip("processes share a CPU")
    need(backend, 1)
    found = told(torchrun("shared_gpu.py", 2, backend), 2)
    for (message,) in found:
        assert message.startswith("fit: processes 0 and 1 have the same GPU of ") and "--virtual-local-rank" in message


def test_one_gpu_for_two_in_words(monkeypatch):
    """The same without a GPU."""
    monkeypatch.setattr(replicas, "cuda_device", lambda: 0)
    monkeypatch.setattr(replicas, "gpu_id", lambda number: "gpu")
    with pytest.raises(ValueError, match=r"processes 0 and 1 have the same GPU of .* start with torchrun --virtual"):
        replicas.Replicas(Twins()).check_gpus(dr.JitBackend.CUDA)


@pytest.mark.parametrize("chunks", [None, 4])
def test_after_an_error_summands_are_as_long_as_before(ns, backend, chunks):
    """For others wait for them."""
    if backend == "cuda":
        pytest.skip("twins have one GPU, which is refused")
    pair, widths = Twins(chunks=chunks), []
    pair.sum = lambda array: widths.append(dr.width(array)) or array

    def lr(step):
        if step == 1:
            raise OSError("no such file")
        return 1e-3

    with pytest.raises(OSError, match="no such file"):
        cn.fit(make_field(backend), make_batch(ns), 9, lr=lr, progress=False, distributed=pair)
    assert len(widths) == 2 and widths[0] == widths[1]


def test_batches_that_differ_in_words(ns):
    pair = Twins()
    pair.gather = lambda value: [value, (*value[:2], [(3, [1.0, 2.0, 4.0])])]
    step, group = SimpleNamespace(batch=abs, uint32=ns.UInt32), replicas.Replicas(pair)
    compare_batches(group, step, [ns.Float(1, 2, 4)])
    words = (
        "fit: the processes differ: entry 2 of array 0 of the first batch is 3 on process 0 and 4 on process 1; have"
    )
    with pytest.raises(ValueError, match=words):
        compare_batches(group, step, [ns.Float(1, 2, 3)])
    assert group.failed


def test_interrupts_in_what_one_does_for_all():
    """They end all; other errors stay what they are."""
    pair, came = Twins(), []
    pair.gather = lambda value: came.append(value) or [value, value]

    def ends(error):
        def once():
            raise error

        with pytest.raises((KeyboardInterrupt, RuntimeError)) as caught:
            replicas.Replicas(pair).once("the metric", once)
        return caught.value

    interrupted = RuntimeError("Dr.Jit's")
    interrupted.__cause__ = KeyboardInterrupt()
    for error in (KeyboardInterrupt(), interrupted):
        assert isinstance(ends(error), KeyboardInterrupt)
        assert came.pop() == ("the metric", None, True)
    other = RuntimeError("no such file")
    assert ends(other) is other
    assert came.pop() == ("the metric", "RuntimeError: no such file", False)


def test_gloo_gets_memory_of_pytorchs_own():
    """Its threads may be the last to hold it: giving Dr.Jit's back there has hung processes."""
    llvm, seen = pytest.importorskip("drjit.llvm.ad"), []
    group = cn.training.TorchGroup.__new__(cn.training.TorchGroup)
    group.size, group._engine, group._torch = 2, "gloo", pytest.importorskip("torch")
    group._communicator = lambda engine: engine
    group._distributed = SimpleNamespace(all_reduce=lambda t, group: seen.append(t.data_ptr()) or t.mul_(2))
    array = dr.arange(llvm.Float, 5) + 1
    dr.eval(array)
    assert group.sum(array).numpy().tolist() == [2, 4, 6, 8, 10]
    assert seen and seen[0] != array.numpy().ctypes.data
