"""Pictures of the site, and the programs that draw them."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_picture_has_a_program():
    spec = importlib.util.spec_from_file_location("draw_site", ROOT / "scripts" / "draw_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plots = [name for names in module.PLOTS.values() for name in names]
    drawn = [*plots, *(name.replace(".png", "-dark.png") for name in plots)]
    drawn += [name for names in module.PROGRAMS.values() for name in names]
    assert sorted(drawn) == sorted(p.name for p in (ROOT / "docs" / "images").iterdir())
    assert all((ROOT / program).is_file() for program, *_ in (*module.PROGRAMS, *module.PLOTS))
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {name for page in pages for name in re.findall(r"images/([\w-]+\.png)", page.read_text(encoding="utf-8"))}
    assert shown <= set(drawn)


def test_every_picture_has_words():
    """What it shows, for those who do not see it."""
    pages = [ROOT / "README.md", *(p for p in (ROOT / "docs").rglob("*.md") if "gallery" not in p.parts)]
    texts = [p.read_text(encoding="utf-8") for p in pages]
    words = [w for text in texts for w in re.findall(r"!\[(.*?)\]\(", text)]
    assert len(words) > 8 and all(len(w) > 12 for w in words)
    assert not any("<img" in text and 'alt="' not in text for text in texts)
