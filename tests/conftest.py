"""Fixtures shared by all tests: one run of a test per usable backend, and another processor to compile for."""

import collections
import gc
import importlib
import os

import pytest

from coopnet import backend as backends
from coopnet.jit import CHECKED
from coopnet.jit.native.core import drjit, set_llvm_target

backends.prepare()
pytest_plugins = ["support.lost_workers", "support.missing_packages", "support.ctrl_c"]

try:
    from hypothesis import settings
except ImportError:  # a GPU machine's own Python may lack it; the tests that need it are skipped there
    pass
else:
    # The same examples everywhere, so that a failure on one machine is a failure on all.
    settings.register_profile(
        "coopnet",
        deadline=None,
        derandomize=True,
        print_blob=True,
        max_examples=int(os.environ.get("COOPNET_EXAMPLES", "30")),
    )
    settings.load_profile("coopnet")

#: Another processor than this one for LLVM, as "name:vector width": haswell:8, skylake-avx512:16, znver4:16 and so on.
TARGET = os.environ.get("COOPNET_TARGET", "")


if TARGET:
    cpu, _, width = TARGET.partition(":")
    set_llvm_target(cpu, int(width))

#: Processes of tests side by side share the processors. A thread that finds no work goes on looking for it for a while,
#: and kernels of tests are small: on two cores, a second one takes a quarter more CPU time and makes nothing faster.
THREADS = drjit().thread_count()
drjit().set_thread_count(max(1, THREADS // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))


def pytest_report_header() -> list[str]:
    return [
        f"Dr.Jit: {drjit().__version__} installed, {CHECKED} checked",
        f"backends: {', '.join(backends.available()) or 'none'}; LLVM compiles for {TARGET or 'this processor'}",
    ]


@pytest.fixture(scope="session", params=backends.available() or ["none"])
def backend(request):
    """Name of a backend: "llvm" or "cuda"."""
    if request.param == "none":
        backends.require("auto")  # fails the test with the cure
    return request.param


@pytest.fixture(scope="session")
def ns(backend):
    """Dr.Jit's module of differentiable types of the backend."""
    return backends.namespace(backend)


#: Files that take long with few tests: what begins with them last keeps the others waiting.
LONG = (
    "test_readme", "test_pages", "test_neural_path", "test_plugins", "test_radiance_cache", "test_fit_bsdf",
    "test_render_mc", "test_own_engine", "test_control_flow", "test_cotangents", "test_multipliers", "test_loops",
    "test_concrete_dropout", "test_inner_loss", "test_input_gradient", "test_call_targets", "test_projection",
    "test_mitsuba_docstrings", "test_everywhere", "test_laplace", "test_neural_bsdf", "test_memory",
)  # fmt: skip


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Processes side by side begin with what takes long, and end with files of one test, so that none waits long."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        tests = collections.Counter(item.path for item in items)
        items.sort(key=lambda item: (item.path.stem not in LONG, -tests[item.path]))


def pytest_collection_finish():
    """Modules and tests stay: collections, of which every fit and many tests make one, need not look at all of them."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    """What stayed may go at the end of the process: Dr.Jit would report it as lost."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def llvm():
    """Dr.Jit's module of differentiable types of the CPU: for what only the CPU has, or moves between backends."""
    return backends.namespace("llvm")


@pytest.fixture
def set_limits(monkeypatch):
    """Constants of the engine and of training for one test: ``set_limits(KEPT_BYTES=1000)``."""
    from coopnet.engine import limits, strategies
    from coopnet.training import limits as of_training

    def change(**values):
        if "KEPT_BYTES" in values:
            values.setdefault("KEPT_SHARE", 0)
        for name, value in values.items():
            monkeypatch.setattr(limits if hasattr(limits, name) else of_training, name, value)
        strategies.strategy_of.cache_clear()

    yield change
    strategies.strategy_of.cache_clear()


@pytest.fixture
def as_if_unwarned(monkeypatch):
    """The warning of sums that stall has not been given in this process."""
    monkeypatch.setattr("coopnet.engine.stall._warned", False)


@pytest.fixture
def play_lanes(monkeypatch):
    """``play_lanes(8)`` has the engine choose as where vectors have 8 lanes; what is compiled stays."""
    from coopnet.jit.native import core

    def play(lanes):
        for name in ("llvm_lanes", "stored_lanes"):
            monkeypatch.setattr(core, name, lambda: lanes)

    return play


@pytest.fixture
def chosen(monkeypatch):
    """What networks chose as they were evaluated: their situations, and the ways that they took."""
    from coopnet.engine.situation import Situation

    module, seen = importlib.import_module("coopnet.engine.evaluate"), []
    choose = module.choose

    def noted(table, s):
        strategy, why = choose(table, s)
        if isinstance(s, Situation):
            seen.append((s, strategy))
        return strategy, why

    monkeypatch.setattr(module, "choose", noted)
    return seen


@pytest.fixture
def several_threads():
    """As many threads as Dr.Jit has by itself, at least two: for what they may do to each other."""
    before = drjit().thread_count()
    drjit().set_thread_count(max(2, THREADS))
    yield
    drjit().set_thread_count(before)


@pytest.fixture(scope="module")
def browser():
    """Opens exported pages; tests are skipped where there is none."""
    from support.pages import Browser

    if reason := Browser.missing():
        pytest.skip(reason)
    made = Browser()
    yield made
    made.close()


@pytest.fixture(autouse=True, scope="module")
def what_a_file_finds_stays():
    """Collections need not look at what tests before have imported, either: a quarter of a second each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def collection_between_tests():
    """Python's cyclic collector runs between tests only.

    Memory of NumPy's that it frees while Dr.Jit records a frozen function aborts the process, whoever left it behind.
    """
    gc.disable()
    yield
    gc.enable()
