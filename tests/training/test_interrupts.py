"""Ctrl-C while fit runs, and Python's garbage collector: held back, and as before afterwards."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from support.training import tiny_batch, tiny_field

import coopnet as cn
from coopnet.training import limits, run
from coopnet.training.interrupts import caused_by_interrupt
from coopnet.training.run import Run

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "raise_signal"), reason="no signals"),
    pytest.mark.usefixtures("ctrl_c_works"),
]


def ctrl_c():
    signal.raise_signal(signal.SIGINT)


def test_a_step_is_finished_first(ns, backend, tmp_path):
    """Also one that is being recorded, and the metric; the checkpoint is of then, and handlers are as before."""
    path, draw = tmp_path / "run.safetensors", tiny_batch(ns)
    for where in ("batch", "metric"):
        state, done = SimpleNamespace(calls=0), []

        def batch(key, state=state, where=where):
            state.calls += 1
            if where == "batch" and state.calls == 3:  # the first two calls only look at what it returns
                ctrl_c()
            return draw(key)

        def metric(field, where=where, done=done):
            if where == "metric" and len(done) == 2:
                ctrl_c()
            done.append(0)
            return 1.0

        field = tiny_field(backend)
        result = cn.fit(field, batch, 50, metric=metric, metric_every=1, checkpoint=path, progress=False)
        steps = {"batch": 1, "metric": 3}[where]
        assert result.stopped == "interrupt" and result.steps == len(result.losses) == len(done) == steps
        assert len(cn.io.read(path).tensors["train.losses"]) == steps
        assert np.array_equal(cn.load(path, backend)["network.weights"], field["network.weights"])
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_few_steps_are_queued(ns):
    """A run waits for the device after as many steps as take a fifth of a second, at least after each step."""
    run = SimpleNamespace(queued=0, longest=1, stride=1, waited=0.0)
    for seconds, longest in ((1e12, limits.WINDOW_STEPS), (0.0, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, "QUEUED_SECONDS", seconds)
            run.queued = run.longest
            Run.keep_pace(run)
        assert (run.queued, run.longest) == (0, longest) and run.waited > 0


def test_a_second_one_does_not_wait(ns, backend, tmp_path):
    path, done = tmp_path / "run.safetensors", []

    def metric(field):
        ctrl_c()
        done.append(1)
        ctrl_c()
        done.append(2)
        return 1.0

    field = tiny_field(backend)
    result = cn.fit(field, tiny_batch(ns), 50, metric=metric, metric_every=3, checkpoint=path, progress=False)
    assert result.stopped == "interrupt" and done == [1] and result.metrics == [] and result.steps == 3
    assert len(cn.io.read(path).tensors["train.losses"]) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_step_that_is_broken_off_is_not_written(ns, backend, tmp_path):
    """The second Ctrl-C comes while Dr.Jit records: what that leaves is no state to go on from."""
    path, draw = tmp_path / "run.safetensors", tiny_batch(ns)
    cn.fit(tiny_field(backend), draw, 2, checkpoint=path, progress=False)
    before = path.read_bytes()
    state = SimpleNamespace(calls=0)

    def batch(key):
        state.calls += 1
        if state.calls == 3:
            ctrl_c()
            ctrl_c()
        return draw(key)

    field = tiny_field(backend)
    result = cn.fit(field, batch, 50, checkpoint=path, progress=False)
    assert result.stopped == "interrupt" and result.steps == 0 and path.read_bytes() == before
    np.testing.assert_array_equal(field["network.weights"], tiny_field(backend)["network.weights"])
    result = cn.fit(field, draw, 4, checkpoint=path, resume=True, progress=False)  # Dr.Jit is well
    assert result.stopped == "steps" and result.steps == 4


def test_one_ends_all_runs_inside_each_other(ns, backend):
    inner = []

    def metric(field):
        other = tiny_field(backend)
        inner.append(cn.fit(other, tiny_batch(ns), 9, metric=lambda f: ctrl_c() or 0.0, metric_every=4, progress=False))
        return 0.0

    result = cn.fit(tiny_field(backend), tiny_batch(ns), 9, metric=metric, metric_every=5, progress=False)
    assert [r.stopped for r in inner] == ["interrupt"] and inner[0].steps == 4
    assert result.stopped == "interrupt" and result.steps == 5 and result.metrics == [(5, 0.0)]


def test_a_program_that_handles_it_itself(ns, backend):
    asked = []

    def mine(number, frame):
        asked.append(number)

    signal.signal(signal.SIGINT, mine)
    result = cn.fit(tiny_field(backend), tiny_batch(ns), 3, metric=lambda f: ctrl_c() or 0.0, progress=False)
    assert signal.getsignal(signal.SIGINT) is mine
    assert asked == [signal.SIGINT] and result.stopped == "steps"


def test_a_program_that_ignores_it(ns, backend):
    """As one in the background of a shell does: it goes on to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def metric(field):
        ctrl_c()
        return float(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)

    result = cn.fit(tiny_field(backend), tiny_batch(ns), 3, metric=metric, metric_every=1, progress=False)
    assert result.stopped == "steps" and [value for _, value in result.metrics] == [1.0] * 3
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_handler_that_a_callback_sets_stays(ns, backend):
    def metric(field):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return 0.0

    cn.fit(tiny_field(backend), tiny_batch(ns), 2, metric=metric, progress=False)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_threads_set_no_handler(ns, backend):
    handlers = []
    draw = tiny_batch(ns)

    def metric(field):
        handlers.append(signal.getsignal(signal.SIGINT))
        return 0.0

    thread = threading.Thread(
        target=cn.fit, args=(tiny_field(backend), draw, 2), kwargs=dict(metric=metric, progress=False)
    )
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_before(ns, backend, enabled):
    """Off while fit runs, also behind a run inside it and after an error; then as it was."""
    draw, seen = tiny_batch(ns), []

    def batch(key):
        seen.append(gc.isenabled())
        return draw(key)

    def metric(field):
        if not seen:
            cn.fit(tiny_field(backend), draw, 1, progress=False)
        seen.append(gc.isenabled())
        return 0.0

    (gc.enable if enabled else gc.disable)()
    cn.fit(tiny_field(backend), draw, 3, metric=metric, metric_every=1, progress=False)
    assert seen == [False] * 3 and gc.isenabled() == enabled
    with pytest.raises(TypeError, match="metric returned None"):
        cn.fit(tiny_field(backend), batch, 3, metric=lambda f: None, metric_every=2, progress=False)
    assert not any(seen[5:]) and gc.isenabled() == enabled


def test_causes():
    try:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("record()") from error
    except RuntimeError as error:
        assert caused_by_interrupt(error)
        endless = ValueError()
        endless.__cause__ = endless
        assert not caused_by_interrupt(endless) and not caused_by_interrupt(None)


def test_a_run_without_a_step_leaves_the_file_of_another(tmp_path, ns, backend, monkeypatch):
    path = tmp_path / "field.safetensors"
    cn.fit(tiny_field(backend), tiny_batch(ns), 3, checkpoint=path, progress=False)
    before = path.read_bytes()
    monkeypatch.setattr(run, "interrupts_held", lambda: contextlib.nullcontext([signal.SIGINT]))  # at once
    result = cn.fit(tiny_field(backend), tiny_batch(ns), 3, checkpoint=path, progress=False)
    assert result.stopped == "interrupt" and result.steps == 0 and path.read_bytes() == before
