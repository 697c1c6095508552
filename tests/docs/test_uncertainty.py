"""The page on uncertainty says what ``benchmarks/results/uncertainty-quality-llvm.json`` has."""

from __future__ import annotations

import json
import re
import sys

import pytest
from support.machines import ROOT

pytest.importorskip("PIL")
sys.path.insert(0, str(ROOT / "benchmarks"))

import uncertainty_quality as quality

PAGE = (ROOT / "docs" / "uncertainty.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def results():
    path = ROOT / "benchmarks" / "results" / "uncertainty-quality-llvm.json"
    return json.loads(path.read_text(encoding="utf-8"))["results"]


def test_tables(results):
    rows = quality.table(results)
    assert len(rows) > 8
    for row in rows + quality.goal_rows(results):
        assert row in PAGE, row


def test_sentences(results):
    """Made anew from the file; breaks of lines do not count."""
    words = re.sub(r"\s+", " ", PAGE)
    for sentence in quality.sentences(results):
        assert sentence in words, sentence


def test_goals_are_those_of_the_rows(results):
    assert results["goals"] == json.loads(json.dumps(quality.goals(results)))


def test_cheapest_is_ours_and_within_a_third():
    """The method of smallest area among those that cost a third of the largest ensemble's training."""

    def row(method, ause, train):
        return {"method": method, "ause": ause, "train": train}

    rows = [row("ensemble of 5", 0.1, 5.0), row("ensemble of 10", 0.3, 10.0), row("laplace", 0.3, 1.1)]
    rows += [row("laplace of 2", 0.2, 3.4), row("MC dropout 0.1", 0.5, 1.0), row("gradient length", 0.0, 1.0)]
    found = quality.cheapest(rows, "ause")
    assert found["method"] == "laplace" and found["of ensemble of 10"][0] == 0.3 and found["reached"]
    rows[2]["ause"] = 0.4
    assert not quality.cheapest(rows, "ause")["reached"]
