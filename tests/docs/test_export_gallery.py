"""The exported pages of the site: are they what the exporter would write today?"""

from __future__ import annotations

import base64
import json

import pytest
from support.machines import ROOT
from support.pages import Elements, page_data

from coopnet.interop.export.page import document

PAGES = ROOT / "docs" / "_static" / "export"
NOTES = json.loads((ROOT / "benchmarks" / "results" / "export-gallery-llvm.json").read_text("utf-8"))["results"]


def test_there_are_six():
    assert sorted(NOTES) == sorted(p.stem for p in PAGES.iterdir()) and len(NOTES) == 6


@pytest.mark.parametrize("name", NOTES)
def test_pages_are_of_today_and_small(name):
    path, noted = PAGES / f"{name}.html", NOTES[name]
    style, _, script = Elements(path.read_text("utf-8")).texts
    cure = "run python scripts/draw_export_gallery.py"
    assert (style, script) == (document._part("page.css"), document._part("page.js")), cure
    data = page_data(path)
    for target in ("wgsl", "glsl"):
        assert data[target].endswith(document._shader(target, data["view"], 3, "samples" in data)), cure
    assert base64.b64decode(data["weights"])[:8] == b"coopnet\0"
    assert path.stat().st_size == noted["bytes"] < 2_000_000 and data["title"] == noted["title"]
    assert (ROOT / "docs" / "images" / f"export-{name}.png").exists()
