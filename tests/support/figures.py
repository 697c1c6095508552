"""What pages say, and what ``benchmarks/results`` has."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from .machines import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from pages import performance as performance


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))["results"]


def sentences_of(name: str) -> str:
    """A page, or README.md, with single blanks between words, so that sentences may be broken anywhere."""
    path = ROOT / "README.md" if name == "README" else ROOT / "docs" / f"{name}.md"
    return re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
