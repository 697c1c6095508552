"""The rows of ``coopnet info``, and the product that is run for them."""

import importlib
import subprocess
from pathlib import Path

import pytest
from support.machines import pretend, run

from coopnet import backend as b
from coopnet.backend import llvm, report
from coopnet.jit.native import cublas, cuda


def test_runs_coopvec(backend):
    assert b.runs_coopvec(backend) is None


def test_coopvec_that_fails(backend, monkeypatch):
    monkeypatch.setattr(report, "_PRODUCT", "print('wrong: 1 instead of 2')")
    assert b.runs_coopvec(backend) == "wrong: 1 instead of 2"
    monkeypatch.setattr(report, "_PRODUCT", "raise OSError('out of order')")
    assert b.runs_coopvec(backend) == "OSError: out of order"
    monkeypatch.setattr(report, "_PRODUCT", "import os; os.kill(os.getpid(), 9)")
    assert b.runs_coopvec(backend) == "the process died of signal 9"


@pytest.mark.parametrize(
    ("status", "output", "error", "reason"),
    [
        (0, "a\nright\n", "warning", None),
        (0, "", "warning", "no result, exit status 0"),
        (1, "right", "Traceback\nOSError: broken\n", "OSError: broken"),
        (3, "right", "", "no result, exit status 3"),
        (-1, "right", "", "the process died of signal 1"),
    ],
)
def test_ends_of_the_product(backend, monkeypatch, status, output, error, reason):
    done = subprocess.CompletedProcess([], status, output, error)
    monkeypatch.setattr(report.subprocess, "run", lambda command, **_: done)
    assert b.runs_coopvec(backend) == reason


def test_a_product_that_cannot_be_run(backend, monkeypatch):
    for error in (OSError("no more processes"), subprocess.TimeoutExpired("python", 120)):

        def fail(*_, error=error, **__):
            raise error

        monkeypatch.setattr(report.subprocess, "run", fail)
        assert b.runs_coopvec(backend) == f"could not be run: {error}"


def test_info():
    rows = b.info()
    table = {what: (finding, cure) for what, finding, cure in rows}
    packages = {p for extra in b.EXTRAS.values() for p in extra}
    first = ("coopnet", "Dr.Jit", "Python", "NumPy", "LLVM", "CUDA driver", "GPU", "OptiX", "cuBLAS")
    assert set(table) == {*first, "LLVM product", "CUDA product", "kernel cache", *packages}
    assert len(table) == len(rows)
    assert all(finding for _, finding, _ in rows)
    for name in b.BACKENDS:
        ran = table[f"{name.upper()} product"][0].startswith("cooperative vectors run")
        assert ran == (name in b.available())
    for package in packages:
        if table[package][0] == "missing":
            assert table[package][1] == f"pip install {package}"


def table_of(
    monkeypatch, faults=(None, None), reason=None, driver=("570.1", "12.8", ["GPU 1"]), optix=True,
    library="libcublas.so",
):  # fmt: skip
    """:func:`info` of a machine with ``faults`` of CUDA and LLVM, where products end with ``reason``."""
    monkeypatch.setattr(report, "fault_of", dict(zip(b.BACKENDS, faults, strict=True)).get)
    monkeypatch.setattr(report, "runs_coopvec", lambda name: reason)
    monkeypatch.setattr(cuda, "driver", lambda: driver)
    monkeypatch.setattr(cuda, "has_optix", lambda: optix)
    monkeypatch.setattr(cublas, "location", lambda: library)
    return {what: (finding, cure) for what, finding, cure in b.info()}


def test_rows_of_info(monkeypatch):
    table = table_of(monkeypatch)
    assert table["Dr.Jit"] == (report._version("drjit"), "") and table["NumPy"][1] == ""
    assert table["CUDA driver"] == ("570.1, CUDA 12.8", "") and table["GPU"] == ("GPU 1", "")
    assert table["OptiX"] == ("usable", "") and table["cuBLAS"] == ("libcublas.so", "")
    assert table["LLVM product"] == ("cooperative vectors run, single precision", "")
    assert table["CUDA product"] == ("cooperative vectors run, half precision", "")

    table = table_of(monkeypatch, reason="wrong", driver=("", "12.8", ["GPU 1", "GPU 2"]), optix=False)
    assert table["LLVM product"] == ("wrong", b.llvm_cure()) and table["CUDA product"] == ("wrong", report.CURE_CUDA)
    assert table["CUDA driver"] == ("unknown version, CUDA 12.8", "") and table["GPU"] == ("GPU 1, GPU 2", "")
    assert table["OptiX"] == ("not found", report.CURE_OPTIX)

    table = table_of(monkeypatch, faults=("no GPU", None), driver=("", "", []), optix=False)
    assert table["CUDA driver"] == ("none", f"for the CUDA backend: {report.CURE_CUDA}")
    assert table["GPU"] == ("none", "") and table["OptiX"] == ("not found", "")
    assert table["CUDA product"] == ("not run: backend not usable", "")
    assert table_of(monkeypatch, driver=("", "", []), library=None)["cuBLAS"] == ("not found", "")
    assert table_of(monkeypatch, library=None)["cuBLAS"][1].endswith("pip install nvidia-cublas")
    assert table_of(monkeypatch, faults=("no libnvoptix", None))["CUDA driver"][1] == ""  # OptiX' row has the cure


@pytest.mark.parametrize(
    ("version", "good"), [("1.5", True), ("1.5.9", True), ("1.4.2", False), ("1.50", False), ("1.6", False)]
)
def test_versions_of_dr_jit(monkeypatch, version, good):
    monkeypatch.setattr(report, "_version", lambda package: version)
    assert table_of(monkeypatch)["Dr.Jit"] == (version, "" if good else 'pip install "drjit>=1.5,<1.6"')


def test_info_without_packages(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(report, "_version", lambda package: None)
    table = table_of(monkeypatch)
    assert table["coopnet"][0] == "not installed, run from its sources"
    assert table["Dr.Jit"] == ("missing", 'pip install "drjit>=1.5,<1.6"')
    assert table["NumPy"] == ("missing", "pip install numpy")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert report._package_row("x") == ("x", "present, version unknown", "")


def test_row_of_llvm(monkeypatch):
    found = []
    monkeypatch.setattr(report, "found_llvm", lambda: found)
    monkeypatch.setattr(report, "_loaded_path", lambda: "")
    monkeypatch.setattr(llvm, "chosen", "/chosen")
    monkeypatch.delenv(b.VARIABLE, raising=False)
    pretend(monkeypatch)
    assert report._llvm_row(None) == ("19.1.7, chosen by Dr.Jit", "")
    monkeypatch.setenv(b.VARIABLE, "/chosen")
    assert report._llvm_row(None) == ("19.1.7, /chosen", "")
    monkeypatch.setattr(report, "_loaded_path", lambda: "/loaded")
    assert report._llvm_row(None) == ("19.1.7, /loaded", "")
    # with a fault: what there is, and the end of its message
    assert report._llvm_row("Bad. Cure: this.") == ("too old: 19.1.7, /loaded", "this")
    assert report._llvm_row("Bad") == ("too old: 19.1.7, /loaded", "Bad")
    pretend(monkeypatch, active=False)
    assert report._llvm_row("Bad")[0] == "none"
    found.append(b.LLVM("/old", (16,)))
    assert report._llvm_row("Bad")[0] == "too old: LLVM 16 (/old)"
    found.insert(0, b.LLVM("/new", (19,)))
    assert report._llvm_row("Bad")[0] == "LLVM 19 (/new) is not in use"
    monkeypatch.setenv(b.VARIABLE, "/mine")
    assert report._llvm_row("Bad")[0] == "DRJIT_LIBLLVM_PATH='/mine' is unsuitable"


def test_row_of_the_kernel_cache(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("DRJIT_CACHE_DIR", str(cache))
    assert report._kernel_cache_row() == f"{cache}, empty"
    cache.mkdir()
    (cache / "a").write_bytes(bytes(1536))
    assert report._kernel_cache_row() == f"{cache}, 1 files, 1.5 KiB"
    with open(cache / "b", "wb") as file:
        file.truncate(2**20 - 1536)
    assert report._kernel_cache_row() == f"{cache}, 2 files, 1.0 MiB"
    with open(cache / "b", "wb") as file:
        file.truncate(5 * 2**19 - 1536)
    assert report._kernel_cache_row() == f"{cache}, 2 files, 2.5 MiB"
    monkeypatch.delenv("DRJIT_CACHE_DIR")
    assert b.kernel_cache() == Path.home() / ".drjit"


def test_info_survives_a_missing_llvm():
    done = run(
        "import coopnet.backend as b\nb.prepare()\nprint(b.format_info(b.info()))",
        DRJIT_LIBLLVM_PATH="/nonsense",
    )
    assert done.returncode == 0, done.stderr
    assert "LLVM          DRJIT_LIBLLVM_PATH='/nonsense' is unsuitable\n              -> unset" in done.stdout


def test_info_names_missing_packages(monkeypatch):
    monkeypatch.setattr(report, "_IMPORT_NAME", {"pillow": "no_such_module"})
    assert report._package_row("pillow") == ("pillow", "missing", "pip install pillow")


def test_format_info():
    text = b.format_info([("a", "one", ""), ("longer", "two", "do this")])
    assert text.splitlines() == ["a       one", "longer  two", "        -> do this"]
    assert b.format_info([]) == ""
