"""The suite itself: it ends, whatever happens to the processes that run it, and runs with few packages."""

import importlib
import os
import re
import sys

import numpy as np
import pytest
from support.arrays import close
from support.machines import ROOT, environment, python
from support.missing_packages import NEEDED, hide_empty_folders, missing

TESTS = ROOT / "tests"

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
    path = os.pathsep.join([str(TESTS), environment()["PYTHONPATH"]])
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


# ---- with Dr.Jit, NumPy, pytest and pytest-xdist ----------------------------

#: A package that a file imports at its head, and the line that skips the file where it is missing.
IMPORTS = re.compile(r"^(?:import|from) (\w+)(?:[\w.]*$| as |[\w.]* import )", re.M)
SKIPS = r"""^(?:\w+ = )?pytest\.importorskip\("{}[".]"""

#: Rooms of the library that need packages themselves.
ROOMS = re.compile(
    r"^from coopnet(?:\.| import .*\b)(?:cli|commands|image|mesh|mitsuba)\b|^from coopnet\.interop\.torch", re.M
)

#: As a plugin: everything else that is installed here is not.
FORGET = """
import importlib.metadata, importlib.util, sys
pytest_itself = {"pluggy", "iniconfig", "packaging", "pygments", "execnet", "xdist", "exceptiongroup", "tomli"}
forgotten = importlib.metadata.packages_distributions().keys() - {needed} - pytest_itself
genuine = importlib.util.find_spec

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in forgotten:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nowhere())
importlib.util.find_spec = lambda name, *rest: None if name.partition(".")[0] in forgotten else genuine(name, *rest)
"""


def ours(name):
    """Whether a module is a file or folder of this repository."""
    return any((ROOT / at / n).exists() for at in ("benchmarks", "scripts", "tests") for n in (name, f"{name}.py"))


def test_files_say_what_they_need():
    """What is imported at the head of a file of tests is here, or was asked for by ``pytest.importorskip``."""
    files = sorted(TESTS.rglob("test_*.py"))
    wrong = []
    for path in files:
        text = path.read_text(encoding="utf-8")
        for line in IMPORTS.finditer(text):
            skipped = re.search(SKIPS.format(line[1]), text[: line.start()], re.M)
            if not (line[1] in NEEDED or ours(line[1]) or skipped):
                wrong.append(f"{path.relative_to(ROOT)}: {line[0]}")
        if (line := ROOMS.search(text)) and "importorskip" not in text[: line.start()]:
            wrong.append(f"{path.relative_to(ROOT)}: {line[0]}")
    assert len(files) > 100 and not wrong, wrong


def test_no_folder_of_tests_is_taken_for_a_package():
    """``import mitsuba`` finds a folder of that name, as an empty package, where Mitsuba is not installed."""
    texts = [p.read_text(encoding="utf-8") for p in TESTS.rglob("*.py")]
    optional = {name for text in texts for name in re.findall(r'importorskip\("(\w+)', text)}
    assert optional > {"mitsuba", "safetensors", "torch"}
    assert not optional & {p.name for p in TESTS.iterdir() if any(p.glob("*.py"))}


def test_a_folder_that_was_left_behind_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "leftover").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    hide_empty_folders(("leftover", "json"))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("leftover")
    importlib.import_module("json")
    monkeypatch.delitem(sys.modules, "leftover")


def test_what_is_missing_is_named():
    def asked(package):
        try:
            try:
                __import__(package)
            except ImportError:
                raise ImportError("Clouds need a package") from None
        except ImportError as error:
            return missing(error)

    assert asked("a_package_that_nobody_has.part") == "a_package_that_nobody_has"
    assert asked("coopnet.nothing") is asked("json.nothing") is asked("drjit.nothing") is None
    assert missing(ImportError("no package", name=None)) is missing(ImportError("broken", name="pytest.x")) is None
    assert missing(ValueError()) is None


@pytest.mark.slow
def test_collection_needs_nothing_else(tmp_path):
    """And tests that need more are skipped, by its name."""
    (tmp_path / "forget.py").write_text(FORGET.replace("{needed}", repr(NEEDED)))
    (tmp_path / "test_needs.py").write_text(
        """
import pytest
from support.properties import given, st
@pytest.fixture
def file(): import safetensors
def test_fixture(file): pass
def test_call():
    try: import matplotlib
    except ImportError: raise ImportError("figures") from None
def test_warns():
    with pytest.warns(RuntimeWarning): import tqdm
@given(st.integers())
def test_property(i): pass
def test_inner():
    @given(i=st.lists(st.none() | st.builds(abs, st.just(1)).map(str)))
    def inner(i): pass
    inner()
def test_broken(): import coopnet.nothing
"""
    )
    path = os.pathsep.join([str(tmp_path), str(TESTS), environment()["PYTHONPATH"]])
    options = ["-m", "pytest", "-p", "forget", "-p", "xdist", "-p", "no:cacheprovider", "-q", "-W", "error"]
    few = {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = python(*options, "--collect-only", TESTS, **few)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert "could not import 'typer'" in done.stdout
    done = python(*options, "-c", ROOT / "pyproject.toml", "-p", "support.missing_packages", tmp_path, **few)
    assert "1 failed, 5 skipped" in done.stdout, done.stdout
    assert all(
        f"could not import '{name}'" in done.stdout for name in ("safetensors", "matplotlib", "tqdm", "hypothesis")
    )
