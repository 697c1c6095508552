"""Finding LLVM and CUDA, and what is said when they are missing."""

import os
import subprocess
import sys
from pathlib import Path

import drjit as dr
import pytest

from coopnet import backend as b

ROOT = Path(__file__).resolve().parent.parent


def run(code, **environ):
    """Run Python code in a process of its own; a value of None removes a variable."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    for name, value in environ.items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    return subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, timeout=120)


def fake(directory, *names):
    """Files that pass for libraries of this machine as long as nobody loads them."""
    head = Path(sys.executable).read_bytes()[:64]
    for name in names:
        (directory / name).write_bytes(head)
    return directory


linux = pytest.mark.skipif(sys.platform != "linux", reason="library names of Linux")


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/usr/lib/x86_64-linux-gnu/libLLVM-15.so.1", (15,)),
        ("/usr/lib/x86_64-linux-gnu/libLLVM-14.0.6.so.1", (14, 0, 6)),
        ("/usr/lib/x86_64-linux-gnu/libLLVM.so.19.1", (19, 1)),
        ("/usr/lib64/libLLVM.so.21.1-rc2", (21, 1)),
        ("/usr/lib64/libLLVM-17.so", (17,)),
        ("/usr/lib/libLLVM-18git.so.1", (18,)),
        ("/usr/lib/llvm-16/lib/libLLVM.so.1", (16,)),
        ("/opt/homebrew/Cellar/llvm/19.1.7_1/lib/libLLVM.dylib", (19, 1, 7)),
        ("/opt/homebrew/Cellar/llvm@18/18.1.8/lib/libLLVM.dylib", (18, 1, 8)),
        ("/usr/lib/libLLVM.so", None),
        ("/usr/lib/libLLVM.so.1", None),
        ("C:\\Program Files\\LLVM\\bin\\LLVM-C.dll", None),
        ("/etc/passwd", None),
        ("", None),
    ],
)
def test_name_version(path, version):
    assert b.name_version(path) == version


@linux
def test_newest_suitable_is_found(tmp_path, monkeypatch):
    monkeypatch.delenv(b.VARIABLE, raising=False)
    fake(tmp_path, "libLLVM-9.so.1", "libLLVM-15.so.1", "libLLVM-18.so.18.1", "libLLVM.so.19.1")
    fake(tmp_path, "libLLVMSupport.so.20", "libLLVMSupport.a")  # parts of LLVM are not LLVM
    (tmp_path / "libLLVM-21.so").write_text("INPUT(libLLVM.so.21.1)")  # a linker script
    (tmp_path / "libLLVM.so.22.1").symlink_to("gone")
    (tmp_path / "libLLVM-19.so").symlink_to("libLLVM.so.19.1")  # one library under two names
    (tmp_path / "libLLVM-20.so").mkdir()
    assert [llvm.version for llvm in b.found_llvm([str(tmp_path)])] == [(19, 1), (18,), (15,), (9,)]
    assert b.find_llvm([str(tmp_path)]) == b.LLVM(str(tmp_path / "libLLVM.so.19.1"), (19, 1))


@linux
def test_nothing_suitable(tmp_path, monkeypatch):
    monkeypatch.delenv(b.VARIABLE, raising=False)
    assert b.found_llvm([str(tmp_path)]) == []
    fake(tmp_path, "libLLVM-15.so.1", "libLLVM-16.so.1")
    assert b.find_llvm([str(tmp_path)]) is None
    (tmp_path / "libLLVM.so").write_bytes((tmp_path / "libLLVM-15.so.1").read_bytes())
    # a file whose name tells nothing and that cannot be loaded is no library
    assert len(b.found_llvm([str(tmp_path)])) == 2


@linux
def test_variable_comes_first(tmp_path, monkeypatch):
    fake(tmp_path, "libLLVM.so.18.1", "libLLVM.so.19.1")
    monkeypatch.setenv(b.VARIABLE, str(tmp_path / "libLLVM.so.18.1"))
    assert b.find_llvm([str(tmp_path)]).version == (18, 1)
    monkeypatch.setenv(b.VARIABLE, str(tmp_path / "nothing"))
    assert b.find_llvm([str(tmp_path)]) is None


# A machine on which the search finds only what lies in argument 1 of the caller.
ONLY = """
import coopnet.backend as b
b._directories = lambda: [{directory!r}]
b._asked = lambda: []
"""


@linux
def test_only_an_old_llvm(tmp_path):
    fake(tmp_path, "libLLVM-15.so.1")
    code = ONLY.format(directory=str(tmp_path)) + (
        "import drjit as dr\n"
        "dr.detail.llvm_version = lambda: (15, 0, 6)\n"  # what Dr.Jit would have loaded by itself
        "b.prepare()\n"
        "import os; os.environ.pop(b.VARIABLE, None)\n"
        "b.require('llvm')\n"
    )
    done = run(code)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("coopnet.backend.BackendError: ")
    for part in ("libLLVM 17 or newer", "LLVM 15", str(tmp_path), "ldconfig", b.VARIABLE, b.llvm_cure()):
        assert part in last


@linux
def test_old_llvm_for_real():
    """With a real library older than 17 named or found, nothing aborts."""
    old = [llvm for llvm in b.found_llvm() if not llvm.suitable]
    if not old:
        pytest.skip("this machine has no libLLVM older than 17")
    for llvm in old:
        done = run("import coopnet.backend as b; b.prepare(); b.require('llvm')", DRJIT_LIBLLVM_PATH=llvm.path)
        assert done.returncode == 1
        assert f"{b.VARIABLE}={llvm.path!r} names LLVM {llvm.version[0]}" in done.stderr


@linux
@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("/nonsense/libLLVM.so", "a file that does not exist"),
        ("/etc/passwd", "no libLLVM at all"),
        ("libnonsense.so", "a file"),
    ],
)
def test_variable_names_nonsense(value, what):
    done = run(
        "import coopnet.backend as b\nb.prepare()\n"
        "try:\n    b.require('llvm')\nexcept b.BackendError as e:\n    print(e); raise SystemExit(3)",
        DRJIT_LIBLLVM_PATH=value,
    )
    assert done.returncode == 3, done.stderr
    for part in (f"{b.VARIABLE}={value!r}", what, "Cure: unset"):
        assert part in done.stdout


def test_prepare_respects_the_variable():
    done = run(
        "import os, coopnet.backend as b\nb.prepare()\nprint(os.environ[b.VARIABLE])",
        DRJIT_LIBLLVM_PATH="/mine",
    )
    assert done.stdout.strip() == "/mine"


@linux
def test_prepare_sets_the_variable(tmp_path):
    """Runs the module's file: once the package has imported Dr.Jit, prepare() has nothing to do."""
    fake(tmp_path, "libLLVM-18.so.1")
    code = (
        "import importlib.util, os, sys\n"
        "spec = importlib.util.spec_from_file_location('finder', 'coopnet/backend.py')\n"
        "b = sys.modules['finder'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(b)\n"
        f"b._directories = lambda: [{str(tmp_path)!r}]\n"
        "b.prepare()\n"
        "print(os.environ.get(b.VARIABLE), 'drjit' in sys.modules)"
    )
    done = run(code, DRJIT_LIBLLVM_PATH=None)
    assert done.stdout.split() == [str(tmp_path / "libLLVM-18.so.1"), "False"], done.stderr


@linux
def test_drjit_imported_first(tmp_path):
    """Dr.Jit has made its choice at its import; the message says to import coopnet first."""
    fake(tmp_path, "libLLVM.so.19.1")
    code = ("import drjit as dr\n" + ONLY + "import os\n").format(directory=str(tmp_path)) + (
        "b.prepare()\n"
        "assert b.VARIABLE not in os.environ\n"
        "dr.has_backend = lambda which: True\n"
        "dr.detail.llvm_version = lambda: (15, 0, 6)\n"
        "b.require('llvm')\n"
    )
    done = run(code, DRJIT_LIBLLVM_PATH=None)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    for part in ("BackendError", "has loaded LLVM 15.0.6", "import coopnet before drjit", "libLLVM.so.19.1"):
        assert part in last


@pytest.mark.parametrize("name", ["", "LLVM", "cpu", "gpu", "opencl"])
def test_unknown_name(name):
    with pytest.raises(ValueError, match=f'require: backend={name!r}.*"auto", "llvm" or "cuda"'):
        b.require(name)


@pytest.mark.parametrize("value", [None, 3, 1.5, [], {}, int, object(), b])
def test_not_a_backend(value):
    with pytest.raises(TypeError, match="require: backend="):
        b.require(value)


def test_types_of_no_backend():
    import drjit.scalar

    for value in (drjit.scalar.ArrayXf, dr.JitBackend.Invalid, dr.JitBackend.Metal):
        with pytest.raises(ValueError, match="neither LLVM nor CUDA"):
            b.require(value)


def test_require(backend, ns):
    which = {"llvm": dr.JitBackend.LLVM, "cuda": dr.JitBackend.CUDA}[backend]
    for value in (backend, which, ns.Float, ns.Array3f, ns.TensorXf16, ns.UInt64, ns.ArrayXb):
        assert b.require(value) == backend
        assert b.require(value) == backend  # from the dictionary
    assert b.require("auto") == b.require() == b.available()[0]
    assert b.namespace(ns.Float) is ns is sys.modules[f"drjit.{backend}.ad"]


@pytest.mark.skipif("cuda" in b.available(), reason="this machine has a usable GPU")
def test_no_cuda():
    import drjit.cuda.ad

    for value in ("cuda", dr.JitBackend.CUDA, drjit.cuda.ad.Float):
        with pytest.raises(b.BackendError, match=r"(?s)CUDA backend needs.*R570.*Turing.*Cure: install"):
            b.require(value)
    assert "Cure" in b.runs_coopvec("cuda")


def test_runs_coopvec(backend):
    assert b.runs_coopvec(backend) is None


def test_coopvec_that_fails(backend, monkeypatch):
    monkeypatch.setattr(b, "_PRODUCT", "print('wrong: 1 instead of 2')")
    assert b.runs_coopvec(backend) == "wrong: 1 instead of 2"
    monkeypatch.setattr(b, "_PRODUCT", "raise OSError('out of order')")
    assert b.runs_coopvec(backend) == "OSError: out of order"
    monkeypatch.setattr(b, "_PRODUCT", "import os; os.kill(os.getpid(), 9)")
    assert b.runs_coopvec(backend) == "the process died of signal 9"


def test_info():
    rows = b.info()
    table = {what: (finding, cure) for what, finding, cure in rows}
    packages = {p for extra in b.EXTRAS.values() for p in extra}
    first = ("coopnet", "Dr.Jit", "Python", "NumPy", "LLVM", "CUDA driver", "GPU", "OptiX")
    assert set(table) == {*first, "LLVM product", "CUDA product", "kernel cache", *packages}
    assert len(table) == len(rows)
    assert all(finding for _, finding, _ in rows)
    for name in b.BACKENDS:
        ran = table[f"{name.upper()} product"][0].startswith("cooperative vectors run")
        assert ran == (name in b.available())
    for package in packages:
        if table[package][0] == "missing":
            assert table[package][1] == f"pip install {package}"


def test_info_survives_a_missing_llvm():
    done = run(
        "import coopnet.backend as b\nb.prepare()\nprint(b.format_info(b.info()))",
        DRJIT_LIBLLVM_PATH="/nonsense",
    )
    assert done.returncode == 0, done.stderr
    assert "LLVM          DRJIT_LIBLLVM_PATH='/nonsense' is unsuitable\n              -> unset" in done.stdout


def test_info_names_missing_packages(monkeypatch):
    monkeypatch.setattr(b, "_IMPORT_NAME", {"pillow": "no_such_module"})
    assert b._package_row("pillow") == ("pillow", "missing", "pip install pillow")


def test_format_info():
    text = b.format_info([("a", "one", ""), ("longer", "two", "do this")])
    assert text.splitlines() == ["a       one", "longer  two", "        -> do this"]
    assert b.format_info([]) == ""
