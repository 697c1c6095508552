"""The suite itself: it ends, whatever happens to the processes that run it."""

import os

import numpy as np
import pytest
from support.arrays import close
from support.machines import ROOT, environment, python

FILES = {
    "test_quick.py": """
import time, pytest
@pytest.mark.parametrize("i", range(400))
def test(i): time.sleep(0.1)
""",
    "test_killed.py": """
import os, signal
def test(): os.kill(os.getpid(), signal.SIGKILL)
""",
    "test_hangs.py": """
import ctypes, signal
def test():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).pause()  # outside Python, and with its lock held
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("culprit", ["test_killed.py", "test_hangs.py"])
def test_a_lost_worker_ends_the_run(tmp_path, culprit):
    """Neither goes on with another worker nor waits for one that will never answer."""
    pytest.importorskip("xdist")
    pytest.importorskip("pytest_timeout")
    for name in ("test_quick.py", culprit):
        (tmp_path / name).write_text(FILES[name])
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-n", "2", "--dist", "loadfile"]
    options += ["-p", "support.lost_workers", "-p", "no:cacheprovider"]
    options += ["-o", "timeout=3", "-o", "faulthandler_timeout=6"]
    path = os.pathsep.join([str(ROOT / "tests"), environment()["PYTHONPATH"]])
    done = python("-m", "pytest", "-q", *options, tmp_path, PYTHONPATH=path)
    assert done.returncode == 3 and f"died while running {culprit}::test" in done.stdout, done.stdout + done.stderr
    assert "400 passed" not in done.stdout  # the other worker did not finish its forty seconds


def test_what_is_not_close():
    """Other numbers, NaN and other shapes are noticed, whatever share may be wrong."""
    x = np.linspace(1, 2, 100)
    close(x + 1e-3, x, 1e-3)
    close(np.where(x < 1.05, 9, x), x, 1e-3, allowed=0.05)
    for wrong, allowed in ((x + 3e-3, 0.0), (x * np.nan, 0.5), (x[:50], 0.0), (np.where(x < 1.05, 9, x), 0.04)):
        with pytest.raises(AssertionError):
            close(wrong, x, 1e-3, allowed)
