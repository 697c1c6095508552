"""A figure of a page can be changed by nobody without a test that notices."""

from __future__ import annotations

import re

import pytest
from support.machines import ROOT, python

#: How many figures of a page nobody measured: versions, settings, constants, goals, and what is in no file. A figure
#: that is measured is compared with its file by another test of this folder, instead of being counted here.
UNMEASURED = {
    "coming_from/drjit_nn": 1, "config": 1, "derivatives": 2, "distributed": 5, "drjit_in_five_minutes": 1,
    "dropout": 17, "encodings": 2, "export": 9, "export_gallery": 6, "faq": 1, "gradients": 1, "installation": 5,
    "limits": 2, "many_fields": 1, "mitsuba": 8, "mitsuba_light": 5, "neural_path": 1, "performance/gradients": 5,
    "performance/networks": 2, "performance/whole_jobs": 1, "precision": 1, "pytorch": 6, "reliability": 15,
    "rendering": 8, "ten_minutes": 1, "textures": 3, "uncertainty": 14, "uncertainty_quality": 6, "weights": 1,
    "which_settings": 11, "why_training_fails": 1, "your_data": 1,
}  # fmt: skip


@pytest.mark.slow
def test_every_figure():
    pytest.importorskip("PIL")  # for what compares docs/uncertainty.md
    done = python(ROOT / "tests" / "slow" / "figures.py", PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^(\S+)\.md: (\d+) of (\d+)\n((?: {4}.*\n)*)", done.stdout, re.M)
    assert len(found) > 30 and sum(int(of) for *_, of, _ in found) > 1500
    for page, lost, _, words in found:
        allowed = UNMEASURED.get(page.removeprefix("docs/"), 0)
        assert int(lost) <= allowed, f"{page}.md: no test notices if one of these changes\n{words}"
