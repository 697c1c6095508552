"""Figures in pages that are written by hand are those of ``benchmarks/results``."""

from __future__ import annotations

import json

from support.machines import ROOT

from coopnet.audit import Audit, LayerAudit


def page(name):
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def results(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))["results"]


def test_errors_of_precision():
    found, names = results("precision-llvm"), {"relu": "ReLU", "tanh": "tanh", "softplus": "softplus", "silu": "SiLU"}
    errors = {(e["activation"], e["precision"]): e for e in found["errors"]}
    for activation, name in names.items():
        pair = [errors[activation, precision] for precision in ("single", "half")]
        row = [f"{e[what]:.1e}".replace("e-0", "e-") for what in ("output", "gradient") for e in pair]
        assert f"| {' | '.join([name, *row])} |" in page("precision")
    layers = tuple(LayerAudit(**layer) for layer in found["audit"]["layers"])
    lines = str(Audit(**(found["audit"] | {"layers": layers}))).split("\n")
    assert "\n".join(f"    {line}".rstrip() for line in lines) in page("precision")


def test_what_came_of_hostile_calls():
    found = results("fuzz-llvm")
    kinds = ("calls", "returned", "clear errors", "unclear errors", "aborts", "hangs")
    assert f"| {' | '.join(f'{found[kind]:,}' for kind in kinds)} |" in page("reliability")
