"""Dropout in the conventions of other systems."""

from __future__ import annotations

import math

import drjit as dr
import numpy as np
import pytest
from support.properties import given, st

import coopnet as cn
from coopnet import reference
from coopnet.random import seeded

PROBABILITIES = st.sampled_from([0.01, 0.1, 0.25, 0.5, 0.9, 1 - 2**-20])


@pytest.mark.parametrize("convention", seeded.CONVENTIONS)
@given(p=PROBABILITIES, seed=st.integers(0, 2**64 - 1), start=st.integers(0, 2**32 - 300))
def test_agrees_with_the_reference(ns, convention, p, seed, start):
    x = np.linspace(-2, 3, 257).astype(np.float32)
    offset = np.arange(start, start + 257, dtype=np.uint32)
    expected = reference.seeded_dropout(x, p, seed, offset, convention)
    np.testing.assert_array_equal(cn.seeded_dropout(x, p, seed, offset=offset, convention=convention), expected)
    y = cn.seeded_dropout(ns.Float(x), p, seed, offset=ns.UInt32(offset), convention=convention)
    np.testing.assert_array_equal(y.numpy(), expected)


@pytest.mark.parametrize("half", [False, True])
def test_offsets_of_64_bits(ns, half):
    leaf = ns.Float16 if half else ns.Float
    offset = np.array([0, 2**32 - 1, 2**32, 2**40 + 7], np.uint64)
    x = np.ones(4, np.float16 if half else np.float32)
    expected = reference.seeded_dropout(x, 0.5, 11, offset, "ztensor")
    y = cn.seeded_dropout(leaf(x), 0.5, dr.opaque(ns.UInt64, 11), offset=ns.UInt64(offset), convention="ztensor")
    np.testing.assert_array_equal(y.numpy(), expected)


# ---- Decisions -----------------------------------------------------------------------------------------------


def decisions(ns, monkeypatch, words, p, convention):
    """Which of the ``words`` keep their element, by Dr.Jit and by NumPy, as if the generator had drawn them."""
    n = len(words)
    with monkeypatch.context() as m:
        m.setattr(seeded, "generate", lambda counter, keys: (ns.UInt32(words),) * 4)
        on_device = cn.seeded_dropout(dr.ones(ns.Float, n), p, 0, convention=convention).numpy() != 0
        m.setattr(seeded, "generate", lambda counter, keys: (words,) * 4)
        on_host = cn.seeded_dropout(np.ones(n, np.float32), p, 0, convention=convention) != 0
    return on_device, on_host


@pytest.mark.parametrize("p", [0.1, 0.5, 1 / 3, 2**-32, 1 - 2**-32])
def test_ztensor_decisions_near_the_bound_are_exact(ns, monkeypatch, p):
    """ztensor compares integers: a float comparison errs for words next to the bound."""
    bound = math.ceil(p * 2**32)
    words = np.clip(np.arange(bound - 300, bound + 300), 0, 2**32 - 1).astype(np.uint32)
    expected = words.astype(np.int64) >= bound
    if p == 0.1:
        assert (words.astype(np.float32) * np.float32(2**-32) >= np.float32(p)).tolist() != expected.tolist()
    for found in decisions(ns, monkeypatch, words, p, "ztensor"):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 1 / 3, 0.9, 1e-9, 2**-31, 1 - 2**-24, 1 - 2**-30])
def test_triton_decisions_near_the_bound_are_exact(ns, monkeypatch, p):
    """tl.rand is monotone in the folded word, so that one bound, and the words around it, decide about all 2^32.

    The law is the comparison in single precision; next to the bound it differs from one between integers.
    """
    single = np.float32(p)
    low, high = -1, 2**31  # the largest folded word that is dropped lies in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        drops = not np.float32(np.int32(middle)) * np.float32(4.6566127342e-10) > single
        low, high = (middle, high) if drops else (low, middle)
    folded = np.clip(np.arange(low - 300, low + 300), 0, 2**31 - 1)
    words = np.concatenate([folded, 2**32 - 1 - folded]).astype(np.uint32)  # -w - 1 is the complement of the bits
    expected = np.concatenate([folded > low] * 2)
    np.testing.assert_array_equal(reference.uint_to_uniform_float(words) > single, expected)
    for found in decisions(ns, monkeypatch, words, p, "triton"):
        np.testing.assert_array_equal(found, expected)
    if p == 0.1:
        assert (folded >= math.ceil(p * 2**31)).tolist() != (folded > low).tolist()


@pytest.mark.parametrize("convention", seeded.CONVENTIONS)
def test_decisions_at_the_ends_of_the_range(ns, monkeypatch, convention):
    words = np.array([0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1], np.uint32)
    signed = words.astype(np.int64) - (words >= 2**31) * 2**32
    folded = np.where(signed < 0, -signed - 1, signed)
    expected = folded >= 2**30 + 33 if convention == "triton" else words >= 2**31
    for found in decisions(ns, monkeypatch, words, 0.5, convention):
        np.testing.assert_array_equal(found, expected)


# ---- Offsets and seeds ---------------------------------------------------------------------------------------


def inputs(ns, x):
    """``x`` as NumPy array and on the device."""
    if x.ndim == 2:
        tensor = {np.float16: ns.TensorXf16, np.float32: ns.TensorXf, np.float64: ns.TensorXf64}[x.dtype.type]
        return x, tensor(x)
    return x, {np.float16: ns.Float16, np.float32: ns.Float, np.float64: ns.Float64}[x.dtype.type](x)


def check(ns, x, p, seed, offset, convention, expected=None):
    """All kinds of arguments give what the reference gives."""
    if expected is None:
        expected = reference.seeded_dropout(x, p, seed, offset, convention)
    for value in inputs(ns, x):
        y = cn.seeded_dropout(value, p, seed, offset=offset, convention=convention)
        y = y if isinstance(y, np.ndarray) else y.numpy()
        assert y.dtype == x.dtype and y.shape == x.shape
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("convention", seeded.CONVENTIONS)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 40),
    p=PROBABILITIES,
    seed=st.integers(0, 2**64 - 1),
    form=st.sampled_from(["none", "columns", "full"]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_a_seed_per_row(ns, convention, rows, columns, p, seed, form, dtype):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)).astype(dtype)
    shape = {"none": None, "columns": columns, "full": (rows, columns)}[form]
    offset = None if shape is None else rng.integers(0, 2**32, shape)
    check(ns, x, p, seed, offset, convention)
    seeds = rng.integers(0, 2**64, rows, np.uint64)
    check(ns, x, p, seeds, offset, convention)
    for row in range(rows):  # each row as if it were alone
        alone = offset if offset is None or offset.ndim == 1 else offset[row]
        y = cn.seeded_dropout(x[row], p, int(seeds[row]), offset=alone, convention=convention)
        np.testing.assert_array_equal(y, reference.seeded_dropout(x, p, seeds, offset, convention)[row])


def test_kinds_of_seeds(ns):
    x = np.ones((3, 50), np.float32)
    expected = reference.seeded_dropout(x, 0.5, np.array([3, 1, 4]))
    assert len({row.tobytes() for row in expected}) == 3
    tensor = ns.TensorXf(x)
    for seed in (
        [3, 1, 4],
        np.array([3, 1, 4], np.int32),
        ns.UInt64([3, 1, 4]),
        ns.UInt32([3, 1, 4]),
        ns.Int([3, 1, 4]),
    ):
        np.testing.assert_array_equal(cn.seeded_dropout(tensor, 0.5, seed, convention="triton").numpy(), expected)
        np.testing.assert_array_equal(cn.seeded_dropout(x, 0.5, seed, convention="triton"), expected)
    for value in (tensor, x):  # NumPy makes floats of these
        y = cn.seeded_dropout(value, 0.5, [2**64 - 1, 1, 3], convention="triton")
        expected = reference.seeded_dropout(x, 0.5, np.array([2**64 - 1, 1, 3], np.uint64))
        np.testing.assert_array_equal(y if value is x else y.numpy(), expected)
    one = reference.seeded_dropout(x, 0.5, 3)
    for seed in (3, [3], np.int64(3), ns.UInt64(3), ns.Int64(3)):
        np.testing.assert_array_equal(cn.seeded_dropout(tensor, 0.5, seed, convention="triton").numpy(), one)


def test_kinds_of_offsets(ns):
    x, offset = np.ones(40, np.float32), np.arange(7, 47)
    expected = reference.seeded_dropout(x, 0.5, 3, offset)
    value = ns.Float(x)
    kinds = [offset, offset.astype(np.int16), offset.tolist(), ns.UInt32(offset), ns.Int(offset), ns.TensorXu(offset)]
    for kind in kinds:
        np.testing.assert_array_equal(
            cn.seeded_dropout(value, 0.5, 3, offset=kind, convention="triton").numpy(), expected
        )
    for kind in [*kinds, ns.UInt64(offset), ns.Int64(offset)]:
        np.testing.assert_array_equal(
            cn.seeded_dropout(value, 0.5, 3, offset=kind, convention="ztensor").numpy(),
            reference.seeded_dropout(x, 0.5, 3, offset, "ztensor"),
        )
    full = np.arange(80).reshape(2, 40)[:, ::-1]
    m = ns.TensorXf(np.ones((2, 40), np.float32))
    expected = reference.seeded_dropout(np.ones((2, 40), np.float32), 0.5, 3, full)
    for kind in (full, ns.TensorXu(full), ns.UInt32(full.ravel())):
        np.testing.assert_array_equal(cn.seeded_dropout(m, 0.5, 3, offset=kind, convention="triton").numpy(), expected)


def test_everything_is_dropped_from_the_largest_p(ns):
    """``ceil(p * 2^32)`` is 2^32 there, which no word reaches."""
    for x in (np.ones(1000), ns.Float64(np.ones(1000))):
        y = cn.seeded_dropout(x, 1 - 2**-40, 3, convention="ztensor")
        assert not np.any(np.array(y))


@pytest.mark.parametrize("convention", seeded.CONVENTIONS)
def test_strided_and_shifted_views(ns, convention):
    """A view of a larger array, with the offsets it has in there, keeps what the larger array keeps."""
    x = np.random.default_rng(0).standard_normal((12, 30)).astype(np.float32)
    whole = cn.seeded_dropout(x, 0.4, 9, convention=convention)
    place = np.arange(x.size).reshape(x.shape)
    for view in (np.s_[3:, :], np.s_[::2, 1::3], np.s_[::-1, ::-1], np.s_[5]):
        check(ns, x[view], 0.4, 9, place[view], convention, whole[view])
    check(ns, x.T, 0.4, 9, place.T, convention, whole.T)


def test_large_offsets(ns):
    """As in arrays of 2^31 elements and beyond."""
    offset = np.array([2**31 - 1, 2**31, 2**32 - 1], np.uint64)
    x = np.ones(3, np.float32)
    for seed in range(4):
        check(ns, x, 0.5, seed, offset, "triton")
        check(ns, x, 0.5, seed, offset + np.uint64(2**40), "ztensor")


def test_numpy_arrays_are_worked_on_in_pieces(monkeypatch):
    x = np.ones((7, 30), np.float32)
    seeds, offset = np.arange(7), np.arange(210).reshape(7, 30)
    calls = [dict(seed=5), dict(seed=seeds), dict(seed=5, offset=offset), dict(seed=seeds, offset=offset[1])]
    whole = [cn.seeded_dropout(x, 0.5, convention="triton", **call) for call in calls]
    monkeypatch.setattr(seeded, "CHUNK", 64)
    for call, expected in zip(calls, whole, strict=True):
        np.testing.assert_array_equal(cn.seeded_dropout(x, 0.5, convention="triton", **call), expected)


def test_in_a_frozen_function(ns):
    """Also with offsets of a signed type, whose check reads them where that is possible."""

    @dr.freeze
    def f(x, seed, offset):
        return cn.seeded_dropout(x, 0.5, seed, offset=offset, convention="triton")

    for seed in range(3):
        x = dr.arange(ns.Float, 100) + 1
        y = f(x, dr.opaque(ns.UInt64, seed), dr.arange(ns.Int, 100) * 2 + seed)
        expected = reference.seeded_dropout(np.arange(1, 101, dtype=np.float32), 0.5, seed, np.arange(100) * 2 + seed)
        np.testing.assert_array_equal(y.numpy(), expected)


@pytest.mark.parametrize("mode", ["symbolic", "evaluated"])
def test_in_loops_and_calls(ns, mode):
    """Calls sort their arguments by callee, so that offsets have to go with them; loops keep the numbers of lanes."""
    n = 60
    x, lane = np.linspace(1, 2, n).astype(np.float32), dr.arange(ns.UInt32, n)
    _, y = dr.while_loop(
        (ns.UInt32(0), ns.Float(x)),
        lambda i, y: i < 2,
        lambda i, y: (i + 1, dr.select(i == 1, y, cn.seeded_dropout(y, 0.5, 3, convention="triton"))),
        mode=mode,
    )
    np.testing.assert_array_equal(y.numpy(), reference.seeded_dropout(x, 0.5, 3))

    def call(x, offset=None, factor=1):
        return factor * cn.seeded_dropout(x, 0.5, 3, offset=offset, convention="ztensor")

    offset = ns.UInt64(lane) + 2**33
    y = dr.switch(lane % 2, [call, lambda x, o: call(x, o, 2)], ns.Float(x), offset, mode=mode)
    expected = reference.seeded_dropout(x, 0.5, 3, np.arange(n) + 2**33, "ztensor") * (1 + np.arange(n) % 2)
    np.testing.assert_array_equal(y.numpy(), expected)
    with pytest.raises(RuntimeError) as info:
        dr.switch(lane % 2, [call, lambda x: call(x, None, 2)], ns.Float(x), mode=mode)
    assert "seeded_dropout: offset is None inside a virtual call" in str(info.value.__cause__)


# ---- Distribution --------------------------------------------------------------------------------------------


def moments(y, p):
    """Standard scores of the number of survivors and of the mean of ``y``, which was all ones."""
    n, kept = y.size, np.count_nonzero(y)
    return (kept - n * (1 - p)) / math.sqrt(n * p * (1 - p)), (y.mean() - 1) / math.sqrt(p / (1 - p) / n)


@pytest.mark.parametrize("convention", seeded.CONVENTIONS)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_distribution_is_that_of_dropout(ns, convention, p):
    """Survivors are binomial, exactly 1 / (1 - p), and the mean is kept; rows with seeds of their own, too."""
    for x, seed in ((dr.ones(ns.Float, 1 << 18), 1), (dr.ones(ns.TensorXf, (64, 1 << 12)), np.arange(64))):
        y = cn.seeded_dropout(x, p, seed, convention=convention).numpy().astype(np.float64)
        assert set(np.unique(y)) == {0.0, float(np.float32(1 / (1 - p)))}
        assert max(abs(score) for score in moments(y, p)) < 5
        if y.ndim == 2:
            assert abs(np.corrcoef(y)[np.triu_indices(64, 1)]).max() * math.sqrt(y.shape[1]) < 5


@pytest.mark.parametrize("convention", seeded.CONVENTIONS)
def test_torch_is_the_oracle(ns, convention):
    """Same identities and the same law of the outputs as torch.nn.functional.dropout; the masks are its own."""
    torch = pytest.importorskip("torch")
    dropout = torch.nn.functional.dropout
    x = np.random.default_rng(3).standard_normal(1 << 16).astype(np.float32)
    mine = ns.Float(x)
    identity = cn.seeded_dropout(mine, 0.0, 1, convention=convention).numpy()
    for same in (dropout(torch.from_numpy(x), 0.0, training=True), dropout(torch.from_numpy(x), 0.7, training=False)):
        np.testing.assert_array_equal(identity, same.numpy())
    for p in (0.1, 0.5, 0.9):
        torch.manual_seed(0)
        theirs = dropout(torch.from_numpy(x), p, training=True).numpy()
        y = cn.seeded_dropout(mine, p, 1, convention=convention).numpy()
        kept, both = (y != 0), (y != 0) & (theirs != 0)
        np.testing.assert_allclose(y[both], theirs[both], rtol=2e-7)  # torch divides, we multiply
        spread = math.sqrt(2 * p * (1 - p) / x.size)
        assert abs(kept.mean() - (theirs != 0).mean()) < 5 * spread


@pytest.mark.parametrize("convention", seeded.CONVENTIONS)
def test_gradient_and_identity(ns, convention):
    x = ns.Float([1.0, 2.0, 3.0, 4.0])
    assert cn.seeded_dropout(x, 0, 1, convention=convention) is x
    dr.enable_grad(x)
    y = cn.seeded_dropout(x, 0.5, 3, convention=convention)
    dr.backward(y)
    np.testing.assert_array_equal(x.grad.numpy(), np.where(y.numpy() != 0, 2, 0))


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(convention="torch"), ValueError, "convention is 'torch'"),
        (dict(p=1.0), ValueError, "p is 1.0"),
        (dict(seed=-1), ValueError, "seed is -1"),
        (dict(seed=2.0), TypeError, "seed is 2.0 of type float"),
        (dict(seed=[1, 2]), ValueError, "seed has 2 entries"),
        (dict(seed=[[1, 2]]), ValueError, "seed has the shape (1, 2)"),
        (dict(seed=[1.5]), ValueError, "seed has dtype float64"),
        (dict(seed=[2**64]), ValueError, "seed is a list that NumPy makes no array of integers in [0, 2^64)"),
        (dict(seed=[[1], [2, 3]]), ValueError, "seeded_dropout: seed is a list that NumPy makes no array"),
        (dict(offset=[[1], [2, 3]]), ValueError, "seeded_dropout: offset is a list that NumPy makes no array"),
        (dict(offset=[-1] * 4), ValueError, "seeded_dropout: offset is a list"),
        (dict(offset=np.arange(4.0)), ValueError, "offset has dtype float64"),
        (dict(offset=np.arange(4) - 1), ValueError, "integers of at least 0"),
        (dict(offset=np.arange(4) + 2**32), ValueError, "an offset is 2^32 or more"),
        (dict(x=[1.0]), TypeError, "entry 0 of the list"),
    ],
)
def test_errors(ns, change, error, words):
    arguments = dict(x=ns.Float([1, 2, 3, 4]), p=0.5, seed=1, convention="triton") | change
    with pytest.raises(error) as info:
        cn.seeded_dropout(arguments.pop("x"), arguments.pop("p"), arguments.pop("seed"), **arguments)
    assert words in str(info.value)


def test_errors_of_arrays(ns):
    x = ns.Float([1, 2])
    m = ns.TensorXf(np.ones((2, 3), np.float32))
    cases = [
        (x, dict(offset=ns.UInt32([1, 2, 3])), ValueError, "offset has 3 entries"),
        (x, dict(offset=ns.UInt64([1, 2])), TypeError, "Int32 or UInt32 array is needed for 'triton'"),
        (x, dict(offset=ns.Int64([1, 2])), TypeError, "Int32 or UInt32 array is needed for 'triton'"),
        (x, dict(offset=ns.Int([1, -2])), ValueError, "offset has negative entries"),
        (x, dict(offset=ns.Float([1, 2])), TypeError, "Dr.Jit integers of 32 or 64 bits"),
        (x, dict(offset=ns.Array2u([1, 2], [3, 4])), TypeError, "Dr.Jit integers of 32 or 64 bits"),
        (x, dict(offset=ns.Bool([True, False])), TypeError, "Dr.Jit integers of 32 or 64 bits"),
        (x, dict(seed=ns.UInt64([1, 2])), ValueError, "seed has 2 entries"),
        (m, dict(seed=ns.UInt64([1, 2, 3])), ValueError, "seed has 3 entries"),
        (m, dict(seed=ns.Int([1, -1])), ValueError, "seed has negative entries"),
        (m, dict(offset=np.zeros((3, 2), int)), ValueError, "offset has the shape (3, 2)"),
        (m, dict(offset=ns.UInt32([1, 2])), ValueError, "offset has 2 entries"),
        (np.ones((2, 2, 2)), {}, ValueError, "1D or 2D array"),
        (np.ones(3, int), {}, TypeError, "floating point"),
        (ns.Float16([1, 2]), dict(p=1 - 2**-20), ValueError, "float16 cannot hold"),
    ]
    for value, change, error, words in cases:
        arguments = dict(p=0.5, seed=1, convention="triton") | change
        with pytest.raises(error) as info:
            cn.seeded_dropout(value, **arguments)
        assert words in str(info.value)
