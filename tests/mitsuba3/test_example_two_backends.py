"""The example ``two_backends.py``, run small."""

import re

import pytest
from support.machines import ROOT, python

pytest.importorskip("mitsuba")


@pytest.mark.slow
def test_two_backends(tmp_path, backend):
    out = tmp_path / "picture.png"
    done = python(ROOT / "examples" / "two_backends.py", "--learn", backend, "--steps", "60", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert out.is_file() and "masks on LLVM and " in done.stdout and "equal to the bit" in done.stdout
    assert float(re.search(r"RMSE (\S+)", done.stdout)[1]) < 0.15
    differences = [float(v) for v in re.findall(r"largest difference (\S+)", done.stdout)]
    assert len(differences) == 2 and max(differences) < 2e-2
