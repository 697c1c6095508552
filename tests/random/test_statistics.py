"""The masks and the words that they are made from behave like independent random numbers.

A quick version, over 2^20 elements, of benchmarks/mask_statistics.py, whose functions it uses. The seed is fixed, so
that it passes always or never.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import drjit as dr
import numpy as np
import pytest

import coopnet as cn

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
ELEMENTS = 1 << 20


@pytest.fixture(scope="module")
def bench():
    """The benchmark as a module, without leaving its folder on the path."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        specification = importlib.util.spec_from_file_location("mask_statistics", BENCHMARKS / "mask_statistics.py")
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


@pytest.fixture
def few_features(bench, monkeypatch):
    """Of a sample: more samples, and less to compile."""
    monkeypatch.setattr(bench, "FEATURES", 16)


def test_keep_rates(ns, bench, few_features):
    rows = bench.keep_rates(ns, ELEMENTS)
    assert len(rows) == 15
    for row in rows:
        assert abs(row["standard_errors"]) < 5, row
        assert abs(row["drop_rate"] - row["p"]) <= 2 ** -(row["bits"] + 1)
    # the count is exact: it is that of the masks
    key = cn.Key(bench.SEED, np.arange(ELEMENTS // bench.FEATURES))
    assert rows[6]["kept"] == np.count_nonzero(cn.dropout_mask(bench.FEATURES, rows[6]["p"], key, bits=16))


@pytest.mark.parametrize("bits, p", [(8, 0.5), (16, 0.1)])
def test_neighbours_are_independent(ns, bench, few_features, bits, p):
    for name, result in bench.pairs(ns, ELEMENTS, p, bits).items():
        assert 1e-5 < result["p_value"] < 1 - 1e-5, (name, result)


def test_streams_are_uncorrelated(ns, bench, few_features, monkeypatch):
    monkeypatch.setattr(bench, "STREAMS", 5)
    result = bench.stream_correlations(ns, ELEMENTS, 0.1, 16)
    assert result["pairs"] == 10 and result["p_value"] > 1e-5
    assert 0.5 < result["rms_score"] < 1.5


def test_the_measures_see_dependence(ns, bench):
    """A mask against itself, and against one that copies it in one of 200 samples."""
    n = ELEMENTS // bench.FEATURES
    index = dr.arange(ns.UInt32, n)
    key, other = cn.Key(1, index), cn.Key(2, index)
    a, b = (list(cn.dropout_mask(bench.FEATURES, 0.5, k)) for k in (key, other))
    assert bench.pair_test(a, a, ELEMENTS, 0.5)["p_value"] < 1e-10
    assert bench.pair_test(a, b, ELEMENTS, 0.5)["p_value"] > 1e-3
    leaky = [dr.select(index % 200 == 0, u, v) for u, v in zip(a, b, strict=True)]
    assert bench.pair_test(a, leaky, ELEMENTS, 0.5)["p_value"] < 1e-4
    assert bench.pair_test(a, b, ELEMENTS, 0.49)["p_value"] < 1e-10  # and a wrong rate
    assert math.isclose(bench.chi_square_tail(7.814728), 0.05, rel_tol=1e-5)  # the tabulated quantile


def test_words_are_those_of_the_masks(ns, bench):
    """What SmallCrush reads is what the mask law compares with its threshold."""
    found = bench.words(ns, "layer", 8 * 5, 8 * 3).reshape(3, 32)  # samples 5, 6, 7: 32 words for 64 features
    digits = np.stack([found & 0xFFFF, found >> 16], axis=2).reshape(3, 64)
    keep = cn.dropout_mask(64, 0.3, cn.Key(bench.SEED, np.arange(5, 8)))
    t = round(0.3 * 2**16)
    np.testing.assert_array_equal((digits >= t).T, keep)
    for order in bench.ORDERS:
        assert len(np.unique(bench.words(ns, order, 0, 1000))) > 3995  # no block drawn twice
    x = np.array([1, 0x80000000, 0x12345678], np.uint32)
    assert bench.reverse_bits(x).tolist() == [int(f"{v:032b}"[::-1], 2) for v in x.tolist()]


@pytest.mark.parametrize("order", ["layer", "samples", "steps", "streams", "seeds"])
def test_words_are_uniform(ns, bench, order):
    """Every bit is set half the time, bits of one word and words of one block don't move together."""
    words = bench.words(ns, order, 0, 1 << 14)
    bits = np.unpackbits(words.view(np.uint8).reshape(-1, 4), axis=1).astype(np.float32)
    assert np.abs(bits.mean(axis=0) - 0.5).max() * 2 * math.sqrt(len(bits)) < 5
    signs = np.concatenate(
        [(2 * bits - 1).reshape(-1, 128), np.roll((2 * bits - 1).reshape(-1, 128), 1, axis=0)], axis=1
    )
    correlation = signs.T @ signs / len(signs)
    off = np.abs(correlation - np.eye(256)).max() * math.sqrt(len(signs))
    assert off < 6  # 32640 pairs of bits
    counts = np.bincount(words >> 24, minlength=256)
    chi = ((counts - len(words) / 256) ** 2).sum() / (len(words) / 256)
    assert abs(chi - 255) < 5 * math.sqrt(2 * 255)


def test_the_benchmark_writes_what_it_measures(ns, backend, bench, tmp_path, monkeypatch, capsys):
    if backend != "llvm":
        pytest.skip("one backend will do")
    arguments = ["mask_statistics.py", "--backend", "llvm", "--log2-elements", "12", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setattr(bench, "compile_smallcrush", lambda folder, prefix: None)
    for name, value in {"PROBABILITIES": (0.1,), "FEATURES": 4, "STREAMS": 2}.items():
        monkeypatch.setattr(bench, name, value)
    bench.main()
    written = json.loads((tmp_path / "statistics-llvm.json").read_text())
    assert written["machine"]["backend"] == "llvm" and len(written["results"]["keep_rates"]) == 3
    out = capsys.readouterr().out
    assert "| bits | p | drop rate |" in out and "SmallCrush was left out" in out
