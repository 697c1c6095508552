"""The tutorials of the site, each as a script in a process of its own."""

from __future__ import annotations

import re

import pytest
from support.machines import ROOT, python

SCRIPTS = sorted((ROOT / "docs" / "tutorials").glob("plot_*.py"))
#: What scripts import beyond what the library needs; where it is missing, they are skipped.
EXTRAS = ("matplotlib", "mitsuba", "PIL", "safetensors", "torch")


def test_numbers():
    """They are read in the order of their names."""
    assert [script.name[5:7] for script in SCRIPTS] == [f"{i:02}" for i in range(1, len(SCRIPTS) + 1)]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_opening(script):
    """A title, one sentence that promises something, and links to pages that exist."""
    text = script.read_text()
    title, rule, _, promise, *_ = text.removeprefix('"""\n').split("\n")
    assert len(rule) == len(title) and set(rule) == {"="}
    assert promise and not promise.startswith("#")
    pages = re.findall(r":doc:`(?:[^`<]*<)?/([\w-]+)>?`", text)
    assert pages
    for page in pages:
        assert (ROOT / "docs" / f"{page}.md").exists(), page


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_tutorial(script, tmp_path):
    for name in ("matplotlib", *(n for n in EXTRAS if re.search(rf"\b(import|from) {n}\b", script.read_text()))):
        pytest.importorskip(name)
    # warnings are shown: matplotlib says so when plt.show() has no window, and nothing else may
    done = python("-W", "ignore:FigureCanvasAgg", script, cwd=tmp_path, timeout=540, MPLBACKEND="Agg")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "Warning" not in done.stderr, done.stderr
    assert not list(tmp_path.iterdir()), "a tutorial left files where it was run"
