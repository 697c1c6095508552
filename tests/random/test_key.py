"""Keys: what they accept, and that they pass unharmed through every construct of Dr.Jit."""

from __future__ import annotations

import copy
import itertools
import pickle

import drjit as dr
import numpy as np
import pytest
from support.kernels import launched
from support.properties import given, st

import coopnet as cn
from coopnet import reference as ref

N, P = 40, 0.3


def ones(ns, samples=N):
    x = ns.ArrayXf(np.ones((6, samples), np.float32))
    dr.make_opaque(x)
    return x


def drop(x, key, stream=0):
    return cn.dropout(x, P, key, stream=stream)


def expected(seed, index=None, step=0, stream=0):
    return ref.dropout(np.ones((6, N), np.float32), P, seed, index, step, stream)


def causes(error):
    """The exception and those that led to it: Dr.Jit raises its own from ours."""
    while error is not None:
        yield error
        error = error.__cause__


# ---- Arguments ---------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**64 - 1), index=st.integers(0, 2**32 - 1), step=st.integers(0, 2**32 - 1))
def test_ints(seed, index, step):
    keep = cn.dropout_mask(9, 0.5, cn.Key(seed, index, step))
    np.testing.assert_array_equal(keep, ref.keep_mask(9, 0.5, seed, [index], step))


@pytest.mark.parametrize("seed", [0, 7, 2**32, 2**63 + 2**31, 2**64 - 1])
def test_same_key_of_every_type(ns, seed):
    lane = dr.arange(ns.UInt32, N)
    for key in (
        cn.Key(seed, step=3),
        cn.Key(np.uint64(seed), step=np.int64(3)),
        cn.Key(ns.UInt64(seed), step=ns.UInt32(3)),
        cn.Key(seed, lane, 3),
        cn.Key(seed, np.arange(N), 3),
        cn.Key(seed, step=dr.full(ns.UInt32, 3, N)),
    ):
        np.testing.assert_array_equal(drop(ones(ns), key).numpy(), expected(seed, step=3))


@pytest.mark.parametrize("kind", ["nested", "tensor", "numpy"])
def test_step_per_sample(ns, kind):
    x = np.ones((6, N), np.float32)
    x = {"nested": ns.ArrayXf, "tensor": ns.TensorXf, "numpy": np.asarray}[kind](x)
    y = drop(x, cn.Key(5, step=ns.UInt32(np.arange(N) % 7)))
    np.testing.assert_array_equal(np.array(y), expected(5, step=np.arange(N) % 7))


def test_index_shared_by_all_samples(ns):
    for index in (11, ns.UInt32(11)):
        np.testing.assert_array_equal(drop(ones(ns), cn.Key(5, index)).numpy(), expected(5, np.full(N, 11)))


@pytest.mark.parametrize("part", ["seed", "index", "step"])
def test_numpy_input_shares_what_has_one_entry(ns, part):
    """And takes one for each sample; other numbers are refused."""
    words = {"seed": np.arange(N) + 2**40, "index": np.arange(N) * 3, "step": np.arange(N) % 7}[part]
    kind = ns.UInt64 if part == "seed" else ns.UInt32
    x, others = np.ones((6, N), np.float32), {"seed": 5, "index": None, "step": 1}
    for value, number in ((kind([int(words[3])]), words[3]), (kind(words), words)):
        wanted = others | {part: number}
        if part == "seed" and np.ndim(number):
            wanted = np.stack([expected(int(s), None, 1)[:, i] for i, s in enumerate(words)], axis=1)
        else:
            index = np.full(N, number) if part == "index" and not np.ndim(number) else wanted["index"]
            wanted = expected(int(wanted["seed"]), index, wanted["step"])
        np.testing.assert_array_equal(drop(x, cn.Key(**(others | {part: value}))), wanted)
    for count in (0, 2, N - 1):
        with pytest.raises(ValueError, match=f"Key: {part} has {count} entries, but the input has {N} samples"):
            drop(x, cn.Key(**(others | {part: kind(words[:count])})))


def test_index_without_derivatives(backend, ns):
    """Types of drjit.llvm and drjit.llvm.ad are the same to a key."""
    import importlib

    plain = importlib.import_module(f"drjit.{backend}")
    key = cn.Key(plain.UInt64(5), dr.arange(plain.UInt32, N), plain.UInt32(2))
    np.testing.assert_array_equal(drop(ones(ns), key).numpy(), expected(5, step=2))
    y = drop(plain.ArrayXf(np.ones((6, N), np.float32)), cn.Key(5, dr.arange(ns.UInt32, N), 2))
    assert type(y) is plain.ArrayXf
    np.testing.assert_array_equal(y.numpy(), expected(5, step=2))


@given(steps=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=4))
def test_fold_in(steps):
    key = cn.Key(8, 5, 1)
    for step in steps:
        later = key.fold_in(step)
    assert (later.seed, later.index, later.step) == (8, 5, steps[-1]) and key.step == 1  # a key never changes


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (dict(seed=-1), ValueError, r"seed is -1; an int in \[0, 2\^64\)"),
        (dict(seed=2**64), ValueError, "seed is 18446744073709551616"),
        (dict(seed=1.0), TypeError, "seed is 1.0 of type float; .*UInt64"),
        (dict(seed=True), TypeError, "seed is True of type bool"),
        (dict(seed="7"), TypeError, "seed is '7' of type str"),
        (dict(seed=None), TypeError, "seed is None"),
        (dict(seed=np.arange(2)), TypeError, "seed is array"),
        (dict(seed=1, step=-1), ValueError, r"step is -1; an int in \[0, 2\^32\)"),
        (dict(seed=1, step=2**32), ValueError, "step is 4294967296"),
        (dict(seed=1, step=0.5), TypeError, "step is 0.5 of type float"),
        (dict(seed=1, step=None), TypeError, "step is None"),
        (dict(seed=1, step=False), TypeError, "step is False of type bool"),
        (dict(seed=1, index=-1), ValueError, "index is -1"),
        (dict(seed=1, index=2**32), ValueError, "index is 4294967296"),
        (dict(seed=1, index="a"), TypeError, "index is 'a'"),
        (dict(seed=1, index=[0, 1]), TypeError, r"index is \[0, 1\] of type list; .*UInt32"),
        (dict(seed=1, index=np.zeros(2)), TypeError, "index is a NumPy array of float64"),
        (dict(seed=1, index=np.zeros((2, 2), int)), TypeError, r"index is a NumPy array .*\(2, 2\); 1D"),
        (dict(seed=1, index=np.array([-1])), ValueError, r"NumPy index .*\[0, 2\^32\)"),
        (dict(seed=1, index=np.array([2**32])), ValueError, r"NumPy index .*\[0, 2\^32\)"),
        (dict(seed=1, index=np.zeros(0, int)), ValueError, "NumPy index must be non-empty"),
    ],
)
def test_errors(arguments, error, message):
    with pytest.raises(error, match="Key: .*" + message):
        cn.Key(**arguments)
    if "step" in arguments:
        with pytest.raises(error, match="Key: .*" + message):
            cn.Key(1).fold_in(arguments["step"])


def test_errors_of_drjit_values(ns):
    for name, bad in [
        ("seed", ns.Int64(1)),
        ("seed", ns.Float(1)),
        ("seed", ns.TensorXu64([1])),
        ("step", ns.UInt64(1)),
        ("step", ns.ArrayXu(1)),
        ("index", ns.UInt64(1)),
        ("index", ns.Int(1)),
        ("index", ns.TensorXu([1])),
        ("index", ns.ArrayXu(1)),
    ]:
        with pytest.raises(TypeError, match=f"Key: {name} is a Dr.Jit {type(bad).__name__}; a UInt"):
            cn.Key(**({"seed": 1} | {name: bad}))


@pytest.mark.parametrize("kind", ["nested", "tensor", "numpy"])
def test_index_of_the_wrong_width(ns, kind):
    x = np.ones((6, N), np.float32)
    x = {"nested": ns.ArrayXf, "tensor": ns.TensorXf, "numpy": np.asarray}[kind](x)
    for index in (dr.arange(ns.UInt32, N - 1), np.arange(N + 1)):
        with pytest.raises(ValueError, match=f"index has {len(index)} entries, but the input has {N} samples"):
            drop(x, cn.Key(1, index))


@pytest.mark.parametrize("kind", ["nested", "tensor", "numpy"])
def test_seeds_and_steps_of_the_wrong_width(ns, kind):
    x = np.ones((6, N), np.float32)
    x = {"nested": ns.ArrayXf, "tensor": ns.TensorXf, "numpy": np.asarray}[kind](x)
    for name, value in (("seed", ns.UInt64([1, 2])), ("seed", ns.UInt64()), ("step", ns.UInt32([1, 2, 3]))):
        with pytest.raises(ValueError, match=f"Key: {name} has {len(value)} entries"):
            drop(x, cn.Key(**({"seed": 1} | {name: value})))
    if kind == "tensor":
        with pytest.raises(ValueError, match="step has 3 entries, but the input has 1 samples"):
            drop(ns.TensorXf(np.ones((6, 1))), cn.Key(1, step=ns.UInt32([1, 2, 3])))
        with pytest.raises(ValueError, match=f"seed has {N} entries; one is needed for a tensor"):
            drop(x, cn.Key(dr.zeros(ns.UInt64, N)))


# ---- Loops, conditionals, calls, frozen functions ----------------------------------------------------------

modes = pytest.mark.parametrize("mode", ["symbolic", "evaluated"])


@modes
@pytest.mark.parametrize("rows", [1, 6])
def test_loops_over_tensors(ns, mode, rows):
    """The lanes of such a loop are the elements: on the way back, its counter has one entry for each."""
    x = ns.TensorXf(np.ones((rows, N), np.float32))
    dr.enable_grad(x)
    y = dr.while_loop(
        (ns.UInt32(0), x),
        lambda i, y: i < 2,
        lambda i, y: (i + 1, drop(y, cn.Key(7, step=i))),
        mode=mode,
        max_iterations=2 if mode == "symbolic" else -1,
    )[1]
    twice = ref.dropout(ref.dropout(np.ones((rows, N), np.float32), P, 7), P, 7, None, 1)
    np.testing.assert_allclose(y.numpy(), twice, rtol=1e-6)
    dr.backward(y)
    np.testing.assert_allclose(x.grad.numpy(), twice, rtol=1e-6)


def test_no_tensors_in_symbolic_calls(ns):
    """Dr.Jit aborts where the call goes on to sum one."""
    x = ns.TensorXf(np.ones((6, N), np.float32))
    lane = dr.arange(ns.UInt32, N)

    def call(v):
        return v * drop(x, cn.Key(1, lane)).array

    with pytest.raises(RuntimeError) as error:
        dr.switch(lane % 2, [call, lambda v: v], ns.Float(lane), mode="symbolic")
    assert any("TensorXf inside a symbolic virtual call" in str(e) for e in causes(error.value))


@modes
@pytest.mark.parametrize("index", [False, True])
def test_while_loop(ns, mode, index):
    x, key = ones(ns), cn.Key(5, dr.arange(ns.UInt32, N) * 3 if index else None, ns.UInt32(0))
    _, after, total = dr.while_loop(
        (ns.UInt32(0), key, x * 0),
        lambda i, key, total: i < 3,
        lambda i, key, total: (i + 1, key.fold_in(i + 1), total + drop(x, key)),
        mode=mode,
    )
    steps = [expected(5, np.arange(N) * (3 if index else 1), step) for step in range(3)]
    np.testing.assert_allclose(total.numpy(), sum(steps), rtol=1e-6)
    assert isinstance(after, cn.Key) and after.seed == 5 and (after.step.numpy() == 3).all()


@modes
def test_while_loop_with_as_many_turns_as_the_lane_says(ns, mode):
    x, lane = ones(ns), dr.arange(ns.UInt32, N)
    _, total = dr.while_loop(
        (ns.UInt32(0), x * 0),
        lambda i, total: i < lane % 3,
        lambda i, total: (i + 1, total + drop(x, cn.Key(2**40, step=i))),
        mode=mode,
    )
    turns = np.arange(N) % 3
    steps = [np.where(turns > step, expected(2**40, step=step), 0) for step in range(2)]
    np.testing.assert_allclose(total.numpy(), sum(steps), rtol=1e-6)


@modes
def test_if_stmt(ns, mode):
    lane = dr.arange(ns.UInt32, N)
    for key in (cn.Key(5), cn.Key(ns.UInt64(5), lane, ns.UInt32(0))):
        y = dr.if_stmt((ones(ns), key), lane % 2 == 0, drop, lambda x, k: x * 7, mode=mode)
        np.testing.assert_array_equal(y.numpy(), np.where(np.arange(N) % 2 == 0, expected(5), 7))


def calls(symbolic):
    return dr.scoped_set_flag(dr.JitFlag.SymbolicCalls, symbolic)


def switch(ns, key_of, x):
    """Two streams by turns, through dr.switch."""
    lane = dr.arange(ns.UInt32, N)
    functions = [lambda x, i: drop(x, key_of(i), 0), lambda x, i: drop(x, key_of(i), 1)]
    return dr.switch(lane % 2, functions, x, lane)


both_streams = np.where(np.arange(N) % 2, expected(5, stream=1), expected(5))


@pytest.mark.parametrize("symbolic", [True, False])
def test_switch(ns, symbolic):
    with calls(symbolic):
        np.testing.assert_array_equal(switch(ns, lambda i: cn.Key(5, i), ones(ns)).numpy(), both_streams)
        lane = dr.arange(ns.UInt32, N)
        y = dr.switch(lane % 2, [drop, drop], ones(ns), cn.Key(ns.UInt64(5), lane, ns.UInt32(4)))
        np.testing.assert_array_equal(y.numpy(), expected(5, step=4))


@pytest.mark.parametrize("symbolic", [True, False])
@modes
def test_switch_in_a_loop(ns, mode, symbolic):
    x = ones(ns)

    def run(key_of):
        return dr.while_loop(
            (ns.UInt32(0), x * 0),
            lambda i, total: i < 2,
            lambda i, total: (i + 1, total + switch(ns, key_of, x)),
            mode=mode,
        )[1]

    with calls(symbolic):
        np.testing.assert_array_equal(run(lambda i: cn.Key(5, i)).numpy(), 2 * both_streams)
        with pytest.raises(RuntimeError) as caught:
            run(lambda i: cn.Key(5))
    assert any(isinstance(e, ValueError) and "Key: index is None" in str(e) for e in causes(caught.value))


@pytest.mark.parametrize("symbolic", [True, False])
@pytest.mark.parametrize("kind", ["nested", "tensor", "loop", "argument"])
def test_no_lane_numbers_inside_calls(ns, symbolic, kind):
    lane = dr.arange(ns.UInt32, N)

    def body(x, key):
        if kind == "tensor":
            return drop(ns.TensorXf(x), cn.Key(5)).array
        if kind == "loop":
            state = (ns.UInt32(0), x)
            return dr.while_loop(state, lambda i, x: i < 2, lambda i, x: (i + 1, drop(x, cn.Key(5))))[1]
        return drop(x, key if kind == "argument" else cn.Key(5))

    with calls(symbolic), pytest.raises(RuntimeError) as caught:
        dr.switch(lane % 2, [body, body], ones(ns), cn.Key(5))
    assert any(isinstance(e, ValueError) and "Key: index is None" in str(e) for e in causes(caught.value))
    np.testing.assert_array_equal(drop(ones(ns), cn.Key(5)).numpy(), expected(5))  # and all is well afterwards


def test_freeze(ns):
    frozen = dr.freeze(lambda x, key: drop(x, key))
    for i in range(8):
        seed, step = 2**40 + i, 3 * i
        make = dr.opaque if i % 2 else (lambda tp, value: tp(value))  # literals need no recording of their own, either
        key = cn.Key(make(ns.UInt64, seed), step=make(ns.UInt32, step))
        np.testing.assert_array_equal(frozen(ones(ns), key).numpy(), expected(seed, step=step))
    assert frozen.n_recordings == 1
    wide = frozen(ones(ns, 77), key).numpy()
    np.testing.assert_array_equal(wide, ref.dropout(np.ones((6, 77), np.float32), P, seed, step=step))
    index = np.arange(N) * 5
    for turn in range(2):
        key = cn.Key(dr.opaque(ns.UInt64, 3), dr.opaque(ns.UInt32, 0) + ns.UInt32(index + turn))
        np.testing.assert_array_equal(frozen(ones(ns), key).numpy(), expected(3, index + turn))


@pytest.mark.parametrize("kind", ["nested", "tensor", "network"])
def test_new_seeds_and_steps_compile_nothing(ns, kind):
    net = cn.MLP(6, 2, width=8, depth=2, dropout=P).alloc(ns.TensorXf)
    x = ones(ns)

    def run(key):
        if kind == "nested":
            dr.eval(drop(x, key))
        elif kind == "tensor":
            dr.eval(drop(ns.TensorXf(x), key))
        else:
            dr.eval(net(ns.TensorXf(x), key))

    run(cn.Key(0))
    with launched() as history:
        for seed, step in [(1, 0), (2**40 + 3, 0), (2**64 - 1, 2**32 - 1), (0, 9)]:
            run(cn.Key(seed, step=step))
            run(cn.Key(ns.UInt64(dr.opaque(ns.UInt64, seed)), step=dr.opaque(ns.UInt32, step)))
            run(cn.Key(ns.UInt64(seed), step=ns.UInt32(step)))
    assert len(history) >= 12 and all(h["cache_hit"] for h in history)


def test_frozen_functions_tell_keys_of_small_ints_apart(ns, backend):
    """Also where the same ints are settings of a network among the arguments; equal keys are recorded once."""
    field = cn.NeuralField(None, cn.MLP(1, 1, width=4, dropout=0.5)).build(backend, seed=1)
    x = dr.linspace(ns.Float, 0.5, 1, 12)
    dr.eval(x)
    frozen = dr.freeze(lambda field, x, key: field([x], key)[0], warn_after=100)
    for seed, step in [*itertools.product((0, 1, 2, 4), (0, 1, 3, 4)), (0, 4), (2, 1)]:
        key = cn.Key(seed, step=step)
        np.testing.assert_array_equal(frozen(field, x, key).numpy(), field([x], key)[0].numpy())
    assert frozen.n_recordings == 16
    again = pickle.loads(pickle.dumps(copy.deepcopy(key)))
    assert (again.seed, again.step, repr(again)) == (2, 1, "Key(seed=2, index=None, step=1)")


@pytest.mark.parametrize("path, branch", [("auto", False), ("spill", True), ("banks", False), ("builtin", False)])
def test_sizes_are_checked_before_a_kernel_is_traced(ns, backend, path, branch):
    """Within a custom operation, Dr.Jit would raise an error of its own; also of dropout in a branch."""
    body = cn.Sequential(cn.Linear(8, 8), cn.Dropout(0.1))
    residual = cn.Sequential(cn.Linear(2, 8), cn.Residual(body), cn.Linear(8, 1))
    network = residual if branch else cn.MLP(2, 1, width=8, depth=1, dropout=0.1)
    field = cn.NeuralField(None, network).build(backend)
    dr.enable_grad(field["network.weights"])
    x = dr.linspace(ns.Float, 0, 1, N)
    with cn.gradient_path(path), pytest.raises(ValueError, match=f"index has 7 entries, but the input has {N} samples"):
        field([x, x], cn.Key(1, index=dr.arange(ns.UInt32, 7)))
