"""Symbolic, frozen, called: Dr.Jit knows, and tells us."""

import drjit as dr
import numpy as np
import pytest

import coopnet as cn
from coopnet.jit import scopes


def answers(ns):
    return scopes.symbolic(), scopes.frozen(), scopes.recording(), scopes.inside_call(ns.Float)


@pytest.mark.parametrize("mode", ["symbolic", "evaluated"])
def test_where_the_code_is_traced(ns, mode):
    """A call is one whatever stands around it or in it, and also where it is evaluated."""
    found, x = {}, dr.opaque(ns.Float, 2, 10)
    lane = dr.arange(ns.UInt32, 10)

    def note(name, x):
        found[name] = answers(ns)
        return x + 1

    def loop(name, body, x):
        def turn(i, x):
            note(name, x)
            return i + 1, body(x)

        return dr.while_loop((ns.UInt32(0), x), lambda i, _: i < 2, turn, mode=mode)[1]

    def call(body, x):
        return dr.switch(lane % 2, [body, body], x)

    note("nothing", x)
    loop("loop", lambda x: dr.if_stmt((x,), x > 2, lambda x: note("if", x), lambda x: x, mode=mode), x)
    with dr.scoped_set_flag(dr.JitFlag.SymbolicCalls, mode == "symbolic"):
        call(lambda x: loop("loop in a call", lambda x: note("call", x), x), x)
        loop("around a call", lambda x: call(lambda x: note("call in a loop", x), x), x)
    note("afterwards", x)
    symbolic = mode == "symbolic"
    for name in ("nothing", "afterwards"):
        assert found[name] == (False, False, False, False)
    for name in ("loop", "if", "around a call"):
        assert found[name] == (symbolic, False, symbolic, False), name
    for name in ("loop in a call", "call", "call in a loop"):
        assert found[name][:3] == (symbolic, False, symbolic) and found[name][3], name


def test_where_a_function_is_recorded(ns):
    found = []

    @dr.freeze
    def frozen(x):
        found.append(answers(ns))
        dr.while_loop((x,), lambda x: x < 3, lambda x: (found.append(answers(ns)) or x + 1,), mode="symbolic")
        return x + 1

    frozen(dr.opaque(ns.Float, 2, 10))
    assert found == [(False, True, True, False), (True, True, True, False)]
    assert not scopes.frozen()


def test_calls_that_cannot_be_told_from_loops(ns, monkeypatch):
    """Where Dr.Jit's library lacks the function that tells, guessing would give callees each other's masks."""
    monkeypatch.setattr(scopes, "_SYMBOL", "_no_such_symbol")
    lane, x = dr.arange(ns.UInt32, 40), dr.opaque(ns.ArrayXf, 1, (6, 40))

    def drop(x, index=None):
        return cn.dropout(x, 0.3, cn.Key(5, index))

    wanted = drop(x).numpy()
    np.testing.assert_array_equal(dr.switch(lane % 2, [drop, drop], x, lane).numpy(), wanted)
    with pytest.raises(RuntimeError) as caught:
        dr.switch(lane % 2, [lambda x: drop(x)] * 2, x)
    error, texts = caught.value, []
    while error is not None:  # Dr.Jit raises its own from ours
        texts.append(str(error))
        error = error.__cause__
    assert any("does not tell a virtual call from a loop: its library lacks _no_such_symbol" in text for text in texts)


def test_number_of_the_scope(ns, backend):
    """It changes with what is traced symbolically, and with nothing else."""
    x, table = dr.opaque(ns.Float, 2, 10), dr.arange(ns.Float, 10)
    lane = dr.arange(ns.UInt32, 10)
    straight = [
        lambda: dr.sin(x) + x,
        lambda: dr.gather(ns.Float, table, lane),
        lambda: cn.uniform(2, cn.Key(1), ns.Float, 10),
        lambda: cn.stratified(2, cn.Key(1), ns.Float, 10),
    ]
    symbolic = [
        lambda: dr.while_loop((x,), lambda x: x < 3, lambda x: (x + 1,), mode="symbolic"),
        lambda: dr.if_stmt((x,), x > lane, lambda x: x, lambda x: x + 1, mode="symbolic"),
        lambda: dr.switch(lane % 2, [lambda x: x, lambda x: x + 1], x),
    ]
    for traced, changes in [*((f, False) for f in straight), *((f, True) for f in symbolic)]:
        before = scopes.scope_number(ns.Float)
        held = traced()
        assert (scopes.scope_number(ns.Float) != before) == changes, held
