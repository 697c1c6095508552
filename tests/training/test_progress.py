"""The bar: from the first step on, with the loss as it goes."""

from __future__ import annotations

import io

import pytest
from support.training import tiny_batch, tiny_field

import coopnet as cn

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


def test_of_many_fields(backend, ns, set_limits, monkeypatch):
    fields = [tiny_field(backend) for _ in range(2)]
    set_limits(PROGRESS_SECONDS=0.0)
    batch = tiny_batch(ns)
    _, drawn = lines(monkeypatch, lambda: cn.fit_many(fields, lambda key, job: batch(key), 3, together=1))
    assert any("1 of 2 fields, loss " in line for line in drawn), drawn
