"""Machines other than this: Python processes of their own, and what Dr.Jit finds on hardware that is not here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import drjit as dr
import pytest

from coopnet.jit.native import core

ROOT = Path(__file__).resolve().parents[2]

linux = pytest.mark.skipif(sys.platform != "linux", reason="library names of Linux")


def environment(**changed):
    """Variables of a process in which this library and what the tests use can be imported; ``None`` removes one."""
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])} | changed
    return {name: value for name, value in variables.items() if value is not None}


def python(*arguments, cwd=ROOT, timeout=240, **environ):
    """Run Python with arguments in a process of its own."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment(**environ), cwd=cwd, capture_output=True, text=True, timeout=timeout)


#: What a program begins with beside which other tests run: their processes share the processors.
ONE_THREAD = "import drjit\ndrjit.set_thread_count(1)\n"


def run(code, **environ):
    """Run Python code in a process of its own."""
    return python("-c", code, **environ)


def pretend(monkeypatch, active=True, **facts):
    """Dr.Jit as it would be on another machine."""
    facts = {"llvm_version": (19, 1, 7), "cuda_version": (12, 8), "cuda_compute_capability": 75} | facts
    detail = SimpleNamespace(**{name: lambda value=value: value for name, value in facts.items()})
    fake = SimpleNamespace(JitBackend=dr.JitBackend, has_backend=lambda which: active, detail=detail)
    monkeypatch.setattr(core, "drjit", lambda: fake)
