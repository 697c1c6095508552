"""Hostile arguments for every public callable: results, or clear errors. ``slow/fuzz.py`` does the same for hours.

The seed is printed with a failure; ``COOPNET_FUZZ_SEED`` sets it, and ``COOPNET_FUZZ_EXAMPLES`` the number of calls.
"""

from __future__ import annotations

import os

import pytest

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import strategies as st  # noqa: E402
from support import hostile  # noqa: E402

SEED = int(os.environ.get("COOPNET_FUZZ_SEED", "0"))
EXAMPLES = int(os.environ.get("COOPNET_FUZZ_EXAMPLES", "400"))


@pytest.fixture(scope="module")
def calls(ns):
    return hostile.targets(ns), hostile.values(ns)


def test_hostile_arguments(calls, tmp_path, monkeypatch):
    targets, values = calls
    quick = {name: target for name, target in targets.items() if not target.slow}
    labels = sorted(values)
    monkeypatch.chdir(tmp_path)

    @hypothesis.seed(SEED)
    @hypothesis.settings(derandomize=False, database=None, max_examples=EXAMPLES, print_blob=False)
    @hypothesis.given(st.data())
    def run(data):
        def pick(options):
            return data.draw(st.sampled_from(options), label="")

        target = hostile.pick_target(quick, pick)
        chosen = hostile.choose(target, labels, pick)
        replaced = {name: values[label]() for name, label in chosen.items()}
        hypothesis.assume(hostile.patient(target, replaced))
        error = None
        try:
            hostile.run(target, replaced, evaluate=False)
        except Exception as caught:
            error = caught
        arguments = ", ".join(f"{name}={label}" for name, label in chosen.items())
        outcome = hostile.judge(target, replaced, error)
        assert outcome in ("returned", "clear"), f"COOPNET_FUZZ_SEED={SEED}: {target.name}({arguments}): {outcome}"

    run()


def test_every_public_callable_is_called(calls, backend):
    callables = hostile._callables(backend)
    left_out = {name for name in hostile.NOT_CALLED if name in callables or " " not in name}  # prefixes are optional
    assert set(callables) - set(calls[0]) == left_out
    classes = {cls for value in callables.values() if isinstance(value, type) for cls in value.__mro__}
    assert {name for cls in classes for name in vars(cls)} >= hostile.INNER
    assert {"NeuralField.build", "MLP.alloc", "Key.fold_in", "Heads.split", "Linear.__setitem__"} <= set(calls[0])


def test_what_is_unclear_is_found(calls):
    """The judge itself."""
    target = calls[0]["dropout"]
    for error, outcome in (
        (None, "returned"), (ValueError("dropout: p is 2"), "clear"), (OSError("x"), "clear"),
        (RuntimeError("dropout: x"), "unclear: RuntimeError"), (KeyError("dropout: x"), "unclear: KeyError"),
        (ValueError("operands have incompatible sizes"), "unclear: not from here"),
        (ValueError(""), "unclear: not from"),
        (TypeError("dropout: " + "x" * 400), "unclear: 409 characters"), (RecursionError("dropout: x"), "unclear: Rec"),
        (OverflowError("dropout: x"), "unclear: OverflowError"), (hostile.Boom("dropout: x"), "unclear: Boom"),
    ):  # fmt: skip
        assert hostile.judge(target, {}, error).startswith(outcome)
