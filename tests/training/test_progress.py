"""The bar: from the first step on, with the loss as it goes."""

from __future__ import annotations

import io
import sys
from unittest.mock import Mock

import pytest
from support.training import tiny_batch, tiny_field

import coopnet as cn
from coopnet.training.progress import Bar, progress_bar

pytest.importorskip("tqdm")


def lines(monkeypatch, function):
    """What is written to the terminal, one line for each time that it is drawn."""
    said = io.StringIO()
    monkeypatch.setattr("sys.stderr", said)
    result = function()
    return result, [line for line in said.getvalue().split("\r") if line.strip()]


def test_the_loss_of_the_first_step_and_as_it_goes(backend, ns, set_limits, monkeypatch):
    """Not only once in 256 steps, when somebody looks at the losses."""
    set_limits(PROGRESS_SECONDS=0.0)
    result, drawn = lines(monkeypatch, lambda: cn.fit(tiny_field(backend), tiny_batch(ns), 5))
    for step, loss in enumerate(result.losses, 1):
        assert any(f" {step}/5 " in line and f"loss {loss:.3g}]" in line for line in drawn), drawn
    assert " 0/5 " in drawn[0]


def test_the_loss_waits_for_the_device_seldom(backend, ns, set_limits, monkeypatch):
    """After the first step, and at the end; in between, with the metric, which has waited already."""
    set_limits(PROGRESS_SECONDS=1e9)
    options = {"metric": lambda field: 0.25, "metric_every": 3}
    result, drawn = lines(monkeypatch, lambda: cn.fit(tiny_field(backend), tiny_batch(ns), 5, **options))
    shown = {line.split("/5 ")[0].split()[-1]: line.split(", loss ")[1] for line in drawn if ", loss " in line}
    losses = [f"{loss:.3g}" for loss in result.losses]
    assert shown["1"].startswith(f"{losses[0]}]")
    assert shown["3"].startswith(f"{losses[2]}, metric 0.25]") and shown["5"].startswith(f"{losses[4]}, metric 0.25]")
    # what is drawn in between says what is known
    assert all(shown[step].startswith(losses[0]) for step in {"2"} & set(shown))


def test_bars_are_as_wide_as_the_terminal():
    bar = progress_bar("fit", total=3, file=io.StringIO())
    assert bar.dynamic_ncols and bar.unit == "step"
    bar.close()


def test_lines_stand_in_for_bars_without_tqdm(backend, ns, set_limits, monkeypatch, capsys):
    """The first programs of the pages run with Dr.Jit and NumPy alone."""
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    set_limits(LINES_SECONDS=1e9)
    losses = [f"{loss:.3g}" for loss in cn.fit(tiny_field(backend), tiny_batch(ns), 5).losses]
    expected = [f"fit: step 1 of 5, loss {losses[0]}", f"fit: step 5 of 5, loss {losses[4]}"]
    assert capsys.readouterr().err.splitlines() == expected
    set_limits(LINES_SECONDS=0.0, PROGRESS_SECONDS=0.0)
    cn.fit(tiny_field(backend), tiny_batch(ns), 5)
    assert len(capsys.readouterr().err.splitlines()) == 5


def test_what_bars_say_of_many_fields_waits_to_be_drawn():
    bar = Bar(jobs=2, steps=3, show=False)
    bar.say("nobody sees it")
    bar.bar = Mock()
    bar.say("loss 0.5")
    bar.bar.set_postfix_str.assert_called_once_with("0 of 2 fields, loss 0.5", refresh=False)


def test_of_many_fields(backend, ns, set_limits, monkeypatch, tmp_path):
    pytest.importorskip("safetensors")
    fields = [tiny_field(backend) for _ in range(2)]
    set_limits(PROGRESS_SECONDS=0.0)
    batch, options = tiny_batch(ns), {"together": 1, "directory": tmp_path}
    _, drawn = lines(monkeypatch, lambda: cn.fit_many(fields, lambda key, job: batch(key), 3, **options))
    assert any("1 of 2 fields, loss " in line for line in drawn), drawn
    _, drawn = lines(monkeypatch, lambda: cn.fit_many(fields, lambda key, job: batch(key), 3, **options))
    assert " 6/6 " in drawn[-1]  # all were done before
