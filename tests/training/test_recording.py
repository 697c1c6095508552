"""What cannot be recorded: the error says why, and not that somebody else has."""

from __future__ import annotations

import pytest
from support.training import tiny_batch, tiny_field

import coopnet as cn
from coopnet.training.interrupts import caused_by_interrupt
from coopnet.training.recording import reasons

CURE = r"cannot read values of arrays.* look at them outside, as in print\(batch\(coopnet\.Key\(0\)\)\)\.$"


@pytest.mark.parametrize("how", [print, lambda x: x[0]], ids=["print", "entry"])
def test_values_that_are_read(backend, ns, how, capsys):
    draw = tiny_batch(ns)

    def batch(key):
        drawn = draw(key)
        how(drawn[0][0])
        return drawn

    words = rf"fit: a step could not be recorded: drjit.* {CURE}"
    with pytest.raises(RuntimeError, match=f"^{words}"):
        cn.fit(tiny_field(backend), batch, 3, progress=False)
    fields = [tiny_field(backend) for _ in range(2)]
    with pytest.raises(RuntimeError, match=f"^fit_many: jobs 0 to 1: {words}"):
        cn.fit_many(fields, lambda key, job: batch(key), 3, together=2, progress=False)
    assert "see above" not in capsys.readouterr().err
    cn.fit(tiny_field(backend), draw, 3, progress=False)  # Dr.Jit is well


def test_errors_of_the_batch(backend, ns):
    draw, calls = tiny_batch(ns), []

    def batch(key):
        calls.append(key)
        if len(calls) > 1:
            raise KeyError("the picture")
        return draw(key)

    with pytest.raises(RuntimeError, match=r"^fit: a step could not be recorded: KeyError: 'the picture'\.$") as caught:
        cn.fit(tiny_field(backend), batch, 3, progress=False)
    assert "calls.append(key)" in str(caught.getrepr(chain=True))  # where


def test_other_errors_stay_what_they_are():
    recorded = "record(): error encountered while recording a frozen function (see above)."
    for error, cause in (
        (RuntimeError("out of memory"), ValueError("x")), (RuntimeError(recorded), None),
        (RuntimeError(recorded), KeyboardInterrupt()), (ValueError(recorded), ValueError("x")),
    ):  # fmt: skip
        with pytest.raises(type(error)) as caught, reasons():
            raise error from cause
        assert caught.value is error and caused_by_interrupt(error) == isinstance(cause, KeyboardInterrupt)
