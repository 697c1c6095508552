"""The pages on uncertainty say what ``benchmarks/results/uncertainty-quality-llvm.json`` has."""

from __future__ import annotations

import json
import re
import statistics
import sys

import pytest
from support.machines import ROOT

pytest.importorskip("PIL")
sys.path.insert(0, str(ROOT / "benchmarks"))

import uncertainty_quality as quality

PAGES = [ROOT / "docs" / f"{name}.md" for name in ("uncertainty", "uncertainty_quality")]
PAGE = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


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
    missed = [row for row in results["goals"]["area at most that of 10"].values() if not row["reached"]]
    by = [f"{row['ause'][0] - row['of ensemble of 10'][0]:.2f}" for row in missed]
    assert by == ["0.01", "0.01", "0.01", "0.03"]  # two of the texture, colours and depths of views
    assert "missed by about 0.01 for the texture" in PAGE and "and by 0.03 for their depths" in PAGE


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


def file(name):
    path = ROOT / "benchmarks" / "results" / f"{name}-llvm.json"
    return json.loads(path.read_text(encoding="utf-8"))["results"]


def around(values):
    """Mean and standard deviation over seeds, as the page prints them."""
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f}"


def test_table_of_what_was_not_seen():
    found: dict[tuple, list[float]] = {}
    for row in file("uncertainty-unseen"):
        found.setdefault((row["method"], row["encoding"]), []).append(row["auroc"])
    encodings = list(dict.fromkeys(encoding for _, encoding in found))
    for label, method in {
        "trained with dropout 0.1, 64 masks": "dropout 0.1, masks",
        "`posthoc_dropout`, 64 masks": "posthoc_dropout, masks",
        "`laplace`, `std(p)`": "laplace, std",
        "`laplace`, 64 draws": "laplace, draws",
        "`laplace`, `spatial=16`, `std(p)`": "laplace of displacements, std",
        "`laplace`, `spatial=16`, 64 draws": "laplace of displacements, draws",
        "`ensemble` of 5": "ensemble of 5",
    }.items():
        row = " | ".join(around(found[method, encoding]) for encoding in encodings)
        assert f"| {label} | {row} |" in PAGE, row
    rays = [around(found["laplace of displacements, along rays", encoding]) for encoding in encodings]
    assert f"AUROC of {rays[0]} (sinusoidal) and {rays[1]} (hash grid)" in re.sub(r"\s+", " ", PAGE)


def test_tables_of_where_dropout_pays():
    conditions = file("photo-dropout")["conditions"]
    few = conditions[0]
    ways = {way.get("decay", f"dropout {way.get('dropout')}"): way for way in few["ways"]}
    for label, way in {
        **{f"weight decay {d:.0f}": ways[d] for d in (0.0, 1.0, 2.0, 4.0)},
        "dropout 0.3": ways["dropout 0.3"],
    }.items():
        cells = [
            f"{statistics.fmean(way[k]):.2f} ± {statistics.stdev(way[k]):.2f}" if k in way else ""
            for k in ("last", "best", "mean")
        ]
        assert f"| {label} | {' | '.join(cells)} |" in PAGE, cells
    words = re.sub(r"\s+", " ", PAGE)
    last, mean = (few["gains"]["0.3"][k] for k in ("last", "mean"))
    assert f"dropout is {last[0]:.2f} ± {last[1]:.2f} dB better than the best step" in words
    assert f"over masks is {mean[0]:.2f} ± {mean[1]:.2f} dB better" in words
    labels = {
        (0.1, 0.1, 128): "10 % of the pixels, noise 0.1", (0.1, 0.0, 128): "10 %, no noise",
        (0.2, 0.1, 128): "20 %, noise 0.1",
        (0.2, 0.1, 32): "20 %, noise 0.1, network 32 wide", (0.2, 0.1, 64): "20 %, noise 0.1, hash grid and 64 wide",
        (0.5, 0.2, 128): "50 %, noise 0.2", (0.5, 0.0, 128): "50 %, no noise",
    }  # fmt: skip
    for condition in conditions:
        label = labels[condition["fraction"], condition["noise"], condition["width"]]
        gains = [condition["gains"][p]["last"] for p in ("0.1", "0.2", "0.3")]
        cells = [f"{gain:+.2f} ± {spread:.2f}".replace("-", "−") for gain, spread in gains]
        assert f"| {label} | {' | '.join(cells)} |" in PAGE, cells
    assert len(conditions) == len(labels)


def test_table_of_loops_and_unrolled_kernels():
    for row in file("uncertainty")["passes"]:
        cells = [
            shown
            for way in ("loop", "unrolled")
            for shown in (f"{row[way]['compile_ms']:.0f}", few(row[way]["kernel_ms"]), few(row[way]["wall_ms"]))
        ]
        assert f"| {row['width']}, {row['masks']} | {' | '.join(cells)} |" in PAGE, cells


def few(milliseconds):
    """Two digits, or all those before the point."""
    return f"{milliseconds:#.2g}".rstrip(".") if milliseconds < 100 else f"{milliseconds:.0f}"


def test_sentences_of_the_example_and_of_the_face():
    words = re.sub(r"\s+", " ", PAGE)
    found = file("uncertainty")["example"]
    one, two = (100 * found[f"within {n} sigma"] for n in (1, 2))
    assert f"{one:.1f} % lie within one predictive standard deviation and {two:.1f} % within two" in words
    times = found["sigma in the gap"] / found["sigma on the data"]
    share = 100 * found["curve in the gap within 2 sigma"]
    assert f"the deviation is {times:.1f} times that on the data, but only {share:.0f} % of the curve" in words
    (way,) = (w for w in file("photo-dropout")["conditions"][0]["ways"] if w.get("dropout") == 0.3)
    shown = [
        f"{statistics.fmean(way[k]):.2f} ± {statistics.stdev(way[k]):.2f}" for k in ("area by dropout", "area by edges")
    ]
    assert f"over 64 masks has {shown[0]} of the random order's area" in words
    assert f"for the same picture it has {shown[1]}." in words
