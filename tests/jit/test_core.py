"""What libdrjit-core is asked beside Dr.Jit's Python package."""

import drjit as dr
import pytest
from support.machines import pretend, run

from coopnet.jit.native import core


def test_the_search_for_backends_is_over_before_dr_jit_is_asked(monkeypatch):
    calls = []
    monkeypatch.setattr(dr, "sync_thread", lambda: calls.append("waited"))
    assert core.drjit() is dr and calls == ["waited"]


def test_what_it_found(backend, monkeypatch):
    if backend == "llvm":
        assert all(isinstance(v, int) for v in core.llvm_version()) and core.llvm_version() > (17,)
    else:
        version, compute = core.gpu()
        assert version >= (12, 8) and 75 <= compute < 1000
    pretend(monkeypatch)
    assert core.llvm_version() == (19, 1, 7) and core.gpu() == ((12, 8), 75)
    pretend(monkeypatch, active=False)
    assert core.llvm_version() is None and core.gpu() is None
    with pytest.raises(RuntimeError, match=r"set_llvm_target: Dr\.Jit has found no LLVM"):
        core.set_llvm_target("haswell", 8)


def test_functions_by_their_symbols():
    assert core.function("jit_no_such_function") is None
    assert core.function("_Z19jit_llvm_set_targetPKcS0_j") is not None


TARGET = """
from coopnet.jit.native.core import llvm_lanes, set_llvm_target
set_llvm_target("haswell", 8)
print(llvm_lanes(), "lanes")
import drjit as dr
from drjit.llvm.ad import Float
with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
    dr.eval(dr.opaque(Float, 2, 100) * 3)
    print(*(h["ir"].getvalue() for h in dr.kernel_history() if h["type"] == dr.KernelType.JIT))
"""


def test_llvm_compiles_for_another_processor(backend):
    if backend != "llvm":
        pytest.skip("about LLVM")
    done = run(TARGET)
    assert done.stdout.startswith("8 lanes")
    assert '"target-cpu"="haswell"' in done.stdout and "<8 x float>" in done.stdout, done.stderr
