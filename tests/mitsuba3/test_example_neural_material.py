"""The example ``neural_material.py``, run small."""

from __future__ import annotations

import re

import pytest
from support.machines import ROOT, python

pytest.importorskip("mitsuba")


@pytest.mark.slow
def test_neural_material(tmp_path, backend):
    pytest.importorskip("safetensors")
    done = python(ROOT / "examples" / "neural_material.py", "--quick", "--backend", backend, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    written = {path.name for path in tmp_path.iterdir()}
    assert {"material.safetensors", "material.html", "reference.png", "neural.png", "neural_material.png"} <= written
    found = float(re.search(r"relative error (\d\.\d+)", done.stdout).group(1))
    assert found < 0.8  # of an image, nearly nothing is learned in these few steps
    rows = [line for line in done.stdout.splitlines() if line.startswith(("principled, path", "neural,"))]
    assert len(rows) == 3, done.stdout
    reference, *neural = (float(row.split()[-1]) for row in rows)
    assert reference == 0 and all(0 < e < 1 for e in neural)
