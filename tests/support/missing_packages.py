"""Plugin of pytest: a test that needs a package which is not installed is skipped by the package's name.

Dr.Jit, NumPy, pytest and pytest-xdist are enough to run the tests. What a file needs as a whole, it asks for by
``pytest.importorskip``; what the library asks for while a test runs (safetensors for a checkpoint, Pillow for a
picture) is found here.
"""

from __future__ import annotations

import importlib.util
import sys

import pytest

#: Without these nothing is tested; that one of them cannot be imported is an error.
NEEDED = {*sys.stdlib_module_names, "coopnet", "drjit", "numpy", "pytest", "_pytest", "support"}


def hide_empty_folders(names: tuple[str, ...] = ("mitsuba",)) -> None:
    """Python takes a folder without files of its own for a package: one that an older checkout had among the tests, and
    left behind, is none."""
    for name in names:
        spec = importlib.util.find_spec(name) if name not in sys.modules else None
        if spec is not None and spec.origin is None:
            sys.modules[name] = None  # type: ignore[assignment]  # importing it is a ModuleNotFoundError now


hide_empty_folders()


def missing(error: BaseException | None) -> str | None:
    """The package that an error, or one that led to it, asks for: one that could be installed and is not."""
    while error is not None:
        package = ((isinstance(error, ImportError) and error.name) or "").partition(".")[0]
        hidden = package in sys.modules and sys.modules[package] is None
        if package and package not in NEEDED and (hidden or importlib.util.find_spec(package) is None):
            return package
        error = error.__cause__ or error.__context__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    except (ImportError, pytest.fail.Exception) as error:  # or that "pytest.warns" fails instead
        if (package := missing(error)) is None:
            raise
        pytest.skip(f"could not import {package!r}: {error}")


pytest_runtest_setup = pytest_runtest_call  # fixtures


def pytest_addoption(parser, pluginmanager):
    """What ``pyproject.toml`` and marks say to pytest-timeout is known without it, too."""
    if not pluginmanager.hasplugin("timeout"):
        for name in ("timeout", "timeout_method"):
            parser.addini(name, "read by pytest-timeout, which is not installed")


def pytest_configure(config):
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout(seconds): read by pytest-timeout, which is not installed")
