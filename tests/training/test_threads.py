"""Threads that train: each has its turn, none hangs, and results are those of runs after each other."""

from __future__ import annotations

import gc
import os
import signal
import threading
from pathlib import Path

import drjit as dr
import pytest
from support.machines import python, run
from support.threads import join, start, wait_for
from support.training import tiny_batch, tiny_field

import coopnet as cn
from coopnet.jit import turns
from coopnet.jit.turns import TURNS

pytestmark = pytest.mark.usefixtures("several_threads")

SCRIPT = Path(__file__).resolve().parents[1] / "slow" / "threads.py"
# ---- training in several threads ------------------------------------------------------------------------------


def test_two_threads_train(backend):
    """A process of its own: without turns, Dr.Jit ends it, or it hangs."""
    pytest.importorskip("safetensors")
    arguments = ["--one", "--backend", backend, "--threads", "2", "--users", "1", "--steps", "15"]
    done = python(SCRIPT, *arguments)
    assert done.returncode == 0, done.stderr


def test_threads_alternate(ns, backend, monkeypatch):
    """With turns of no length, both have had a metric before either is done; both hold the turn in it."""
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    order, fields, errors = [], [tiny_field(backend) for _ in range(2)], []

    def run(i):
        def metric(field):
            order.append(i)
            assert TURNS.held()
            return 0.0

        try:
            cn.fit(fields[i], tiny_batch(ns), 300, metric=metric, metric_every=3, progress=False)
        except BaseException as error:
            errors.append(error)

    with cn.training.exclusive():  # both wait at the start
        threads = start(lambda: run(0), lambda: run(1))
        wait_for(lambda: len(TURNS.queue) == 2)
    join(threads)
    assert not errors and order.count(0) == order.count(1) == 100
    first, last = order[0], order[-1]
    assert first != last and order.index(last) < 100 and order[:100].count(last) > 0
    assert TURNS.owner is None and not TURNS.queue


def test_fit_inside_a_metric(ns, backend):
    inner = []

    def metric(field):
        inner.append(cn.fit(tiny_field(backend), tiny_batch(ns), 3, progress=False).losses)
        return 0.0

    result = cn.fit(tiny_field(backend), tiny_batch(ns), 4, metric=metric, metric_every=2, progress=False)
    assert result.steps == 4 and len(inner) == 2 and inner[0] == inner[1]
    assert result.losses[:3] == inner[0] or backend == "cuda"
    assert not TURNS.held() and TURNS.owner is None


def test_fit_inside_recorded_code_is_refused(ns, backend):
    field, messages = tiny_field(backend), []

    @dr.freeze
    def record(x):
        try:
            cn.fit(field, tiny_batch(ns), 1, progress=False)
        except RuntimeError as error:
            messages.append(str(error))
        return x + 1

    record(ns.Float(1, 2))
    assert messages and "fit: called while Dr.Jit records" in messages[0]


def test_waiting_for_a_thread_that_waits_is_an_error(ns, backend):
    """Not a hang: a metric that joins a thread which wants to train itself."""
    errors = []

    def other():
        try:
            cn.fit(tiny_field(backend), tiny_batch(ns), 1, progress=False)
        except RuntimeError as error:
            errors.append(str(error))

    def metric(field):
        thread = threading.Thread(target=other, name="helper")
        thread.start()
        thread.join()
        return 0.0

    assert cn.fit(tiny_field(backend), tiny_batch(ns), 1, metric=metric, progress=False).stopped == "steps"
    assert len(errors) == 1 and "waits for 'helper'" in errors[0]
    assert not TURNS.queue and TURNS.owner is None


def test_the_collector_stays_off_until_all_are_done(ns, backend):
    fields, seen = [tiny_field(backend), tiny_field(backend)], []
    gc.enable()

    def metric(field):
        thread = threading.Thread(target=lambda: seen.append(gc.isenabled()))
        thread.start()
        thread.join()
        return 0.0

    with cn.training.exclusive():
        threads = start(
            lambda: cn.fit(fields[0], tiny_batch(ns), 2, metric=metric, progress=False),
            lambda: cn.fit(fields[1], tiny_batch(ns), 40, metric=metric, metric_every=1, progress=False),
        )
        wait_for(lambda: len(TURNS.queue) == 2)
    join(threads)
    assert len(seen) == 41 and not any(seen) and gc.isenabled()


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="Windows cannot send a signal to a thread")
@pytest.mark.usefixtures("ctrl_c_works")
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_while_another_has_the_turn(ns, backend, tmp_path, monkeypatch, times):
    """The first is held back until the run has the turn again; the second ends it at once, and writes nothing."""
    pytest.importorskip("safetensors")
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    path, main = tmp_path / "run.safetensors", threading.main_thread().ident

    def interrupt():
        wait_for(lambda: TURNS.owner == main)
        with cn.training.exclusive():
            handler = signal.getsignal(signal.SIGINT)
            signal.pthread_kill(main, signal.SIGINT)
            wait_for(lambda: handler.asked)
            if times == 2:
                signal.pthread_kill(main, signal.SIGINT)
                wait_for(lambda: not TURNS.queue)

    thread = start(interrupt)
    options = dict(checkpoint=path, progress=False)
    if times == 1:
        result = cn.fit(tiny_field(backend), tiny_batch(ns), 10**6, **options)
        assert result.stopped == "interrupt" and path.exists() and 0 < result.steps < 10**6
    else:
        with pytest.raises(KeyboardInterrupt):
            cn.fit(tiny_field(backend), tiny_batch(ns), 10**6, **options)
        assert not path.exists()
    join(thread)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert TURNS.owner is None and not TURNS.queue


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork(backend):
    """The child trains as its parent does, though a thread that it has not had the turn."""
    if backend == "cuda":
        pytest.skip("a CUDA context does not survive a fork")
    code = """
import os, threading, coopnet as cn
ns = cn.backend.namespace("llvm")
def batch(key):
    x, y = cn.uniform(2, key, ns.Float, 1 << 15)
    return [x, y], [x * y]
def run():
    field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build("llvm")
    return cn.fit(field, batch, 3, progress=False).losses[-1]
first, taken, done = run(), threading.Event(), threading.Event()
def hold():
    with cn.training.exclusive():
        taken.set()
        done.wait()
thread = threading.Thread(target=hold)
thread.start()
taken.wait()
child = os.fork()
if child == 0:
    os._exit(0 if run() == first else 3)
done.set()
thread.join()
assert os.waitpid(child, 0)[1] == 0 and run() == first
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_exclusive_keeps_training_out(ns, backend):
    fields, done = [tiny_field(backend)], []
    with cn.training.exclusive():
        thread = start(lambda: done.append(cn.fit(fields[0], tiny_batch(ns), 2, progress=False)))
        wait_for(lambda: TURNS.queue)
        assert float(fields[0]([ns.Float(0.5)] * 2)[0].numpy()[0]) is not None and not done
        cn.fit(tiny_field(backend), tiny_batch(ns), 30, progress=False)  # the turn is not handed on
        assert not done
    join(thread)
    assert done[0].steps == 2
