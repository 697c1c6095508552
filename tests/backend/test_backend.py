"""Finding LLVM and CUDA, and what is said when they are missing."""

import ctypes
import fnmatch
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import drjit as dr
import pytest

from coopnet import backend as b

ROOT = Path(__file__).resolve().parents[2]


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


def sources(monkeypatch, files, directories):
    """Make ``glob.glob``, ``os.path.isdir`` and ``Path.read_text`` see these alone."""
    monkeypatch.setattr(b.glob, "glob", lambda pattern: [p for p in directories if fnmatch.fnmatchcase(p, pattern)])
    monkeypatch.setattr(b.os.path, "isdir", lambda path: path in directories)

    class Files(type(Path())):
        def read_text(self, *_, **__):
            if str(self) not in files:
                raise FileNotFoundError(str(self))
            return files[str(self)]

    monkeypatch.setattr(b, "Path", Files)


@linux
def test_directories_of_linux(monkeypatch):
    """All kinds of places, in this order, once each and only where there is such a directory."""
    triple = f"/usr/lib/{b.platform.machine()}-linux-gnu"
    places = [
        f"{sys.prefix}/lib", "/mine", "/configured", "/added", "/usr/lib", "/usr/lib64", triple, "/usr/lib/llvm-19/lib",
        "/usr/lib64/llvm20/lib64", "/usr/local/lib", "/usr/local/lib/llvm/lib", "/usr/lib/llvm/21/lib64",
        "/usr/lib/wsl/lib",
    ]  # fmt: skip
    conf = ["/etc/ld.so.conf", "/etc/ld.so.conf.d/x.conf", "/etc/ld.so.conf.d/y.conf"]
    texts = ["include /etc/ld.so.conf.d/*.conf\n/configured\n", "# none\n/added \n/gone\n"]  # y.conf cannot be read
    sources(monkeypatch, dict(zip(conf, texts, strict=False)), [*places, *conf, "include"])
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/mine:{os.pathsep}/gone:/mine:/usr/lib")
    found = b._directories()
    assert sorted(found) == sorted(places)
    assert found[:2] == places[:2] and found[2:5] == ["/usr/lib", "/configured", "/added"]
    sources(monkeypatch, {}, ["/usr/lib"])
    assert b._directories() == ["/usr/lib"]
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert b._directories() == ["/usr/lib"]


@linux
def test_programs_are_asked(tmp_path, monkeypatch):
    """``ldconfig`` and every ``llvm-config`` on PATH, but neither one that fails nor one of another name."""
    tools, libraries = tmp_path / "bin[1]", tmp_path / "lib"
    tools.mkdir()
    libraries.mkdir()
    library = fake(libraries, "libLLVM-18.so.1", "libLLVMSupport.so") / "libLLVM-18.so.1"
    listed = f"2 libs found\n\tlibLLVM-18.so.1 (libc6) => {library}\n\tlibLLVMX.so (libc6) => /no\n"
    scripts = {
        "ldconfig": f"[ $1 = -p ] && printf '{listed}'",
        "llvm-config": f"[ $1 = --libdir ] && echo {libraries}",
        "llvm-config-17": "echo /wrong; exit 3",
        "llvm-config-16": "",
        "llvm-config.old": f"touch {tmp_path}/run",
    }
    for name, text in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{tmp_path}/nothing")
    assert b._asked() == [str(library)] * 2
    assert not (tmp_path / "run").exists()
    (tools / "ldconfig").write_text("#!/bin/sh\nexit 1\n")
    assert b._asked() == [str(library)]


def test_output_of_commands():
    assert b._run([sys.executable, "-S", "-c", "print('fine')"]) == "fine\n"
    assert b._run([sys.executable, "-S", "-c", "print('fine'); raise SystemExit(1)"]) is None
    assert b._run(["/nonsense/program"]) is None
    assert b._run(["a\0b"]) is None


@linux
def test_libraries_of_other_machines_are_none(tmp_path):
    head = Path(sys.executable).read_bytes()[:20]
    for name, content in {
        "libLLVM-18.so": head,
        "libLLVM-19.so": head[:18] + b"\xff\xff",
        "libLLVM-20.so": head[:4] + bytes([3 - head[4]]) + head[5:],  # 32 bits instead of 64
        "libLLVM-21.so": head[:19],
        "libLLVM-22.so": b"\0" * 20,
    }.items():
        (tmp_path / name).write_bytes(content)
    assert [llvm.version for llvm in b.found_llvm([str(tmp_path)])] == [(18,)]
    assert b._machine(str(tmp_path)) is None


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


def test_the_package_prepares_before_it_imports_the_rest(monkeypatch):
    """Ctrl-C and the choice of libLLVM come first: the one ends what takes long, Dr.Jit makes the other."""
    import builtins

    import coopnet

    steps, real = [], builtins.__import__

    def note(name, scope=None, local=None, names=(), level=0):
        if level and scope["__name__"] == "coopnet":
            steps.append(name or names[0])
        return real(name, scope, local, names, level)

    monkeypatch.setattr(coopnet.command, "importing", lambda: steps.append("importing()"))
    monkeypatch.setattr(b, "prepare", lambda: steps.append("prepare()"))
    monkeypatch.setattr(builtins, "__import__", note)
    importlib.reload(coopnet)
    assert steps[:4] == ["command", "importing()", "backend", "prepare()"] and len(steps) > 10


def test_the_search_for_backends_is_over_before_dr_jit_is_asked(monkeypatch):
    calls = []
    monkeypatch.setattr(dr, "sync_thread", lambda: calls.append("waited"))
    assert b._drjit() is dr and calls == ["waited"]


def pretend(monkeypatch, active=True, **facts):
    """Dr.Jit as it would be on another machine."""
    facts = {"llvm_version": (19, 1, 7), "cuda_version": (12, 8), "cuda_compute_capability": 75} | facts
    detail = SimpleNamespace(**{name: lambda value=value: value for name, value in facts.items()})
    fake = SimpleNamespace(JitBackend=dr.JitBackend, has_backend=lambda which: active, detail=detail)
    monkeypatch.setattr(b, "_drjit", lambda: fake)


def test_what_is_said_of_llvm(monkeypatch):
    best = b.LLVM("/lib/libLLVM.so.19.1", (19, 1))
    monkeypatch.setattr(b, "find_llvm", lambda: best)
    for version in ((17, 0, 0), (19, 1, 7)):
        pretend(monkeypatch, llvm_version=version)
        assert b._llvm_fault() is None
    pretend(monkeypatch, llvm_version=(16, 9, 9))
    monkeypatch.setattr(b, "_early", True)
    assert "has loaded LLVM 16.9.9 before coopnet" in b._llvm_fault()  # coopnet would have chosen another
    pretend(monkeypatch, active=False)
    assert "did not start with LLVM 19.1 (/lib/libLLVM.so.19.1)" in b._llvm_fault()
    monkeypatch.setattr(b, "_early", False)
    assert "found no usable libLLVM before coopnet" in b._llvm_fault()
    assert "DRJIT_LIBLLVM_PATH=/lib/libLLVM.so.19.1 before Python starts" in b._llvm_fault()
    monkeypatch.setattr(b, "find_llvm", lambda: None)
    monkeypatch.setattr(b, "_llvm_missing", lambda: "none here")
    assert b._llvm_fault() == "none here"


def test_what_is_said_of_cuda(monkeypatch):
    monkeypatch.setattr(b, "has_optix", lambda: True)
    monkeypatch.setattr(b, "_cuda_driver", lambda: ("570.1", "12.8", ["GPU 1", "GPU 2"]))
    for facts in ({}, {"cuda_version": (13, 0)}, {"cuda_compute_capability": 120}):
        pretend(monkeypatch, **facts)
        assert b._cuda_fault() is None
    for facts, words in [
        ({"active": False}, "no usable GPU (driver 570.1, CUDA 12.8, GPU: GPU 1, GPU 2). Cure: install an NVIDIA"),
        ({"cuda_version": (12, 7)}, "the driver offers CUDA 12.7. Cure: install an NVIDIA driver"),
        ({"cuda_compute_capability": 70}, "compute capability 7.0. Cure: install"),
    ]:
        pretend(monkeypatch, **facts)
        assert words in b._cuda_fault()
    pretend(monkeypatch)
    monkeypatch.setattr(b, "has_optix", lambda: False)
    assert "libnvoptix.so.1 cannot be loaded. Cure: install the driver's OptiX" in b._cuda_fault()
    monkeypatch.setattr(b, "_cuda_driver", lambda: ("", "12.8", []))
    assert b._describe_cuda() == "driver of unknown version, CUDA 12.8, GPU: none"
    monkeypatch.setattr(b, "_cuda_driver", lambda: ("", "", []))
    assert b._describe_cuda() == "no driver: libcuda cannot be loaded"


class Driver:
    """NVIDIA's driver: what ``ctypes`` makes of libcuda, with two GPUs, of which the first cannot be named."""

    def __init__(self, initialized=0, counted=0):
        self.initialized, self.counted = initialized, counted

    def cuDriverGetVersion(self, number):
        number._obj.value = 12090

    def cuInit(self, flags):
        assert flags == 0  # all that CUDA accepts
        return self.initialized

    def cuDeviceGetCount(self, count):
        count._obj.value = 3
        return self.counted

    def cuDeviceGet(self, device, i):
        device._obj.value = 10 + i
        return 0 if i < 2 else 101

    def cuDeviceGetName(self, name, length, device):
        assert ctypes.sizeof(name) == length
        name.value = f"GPU {device.value}".encode()
        return 0 if device.value > 10 else 1


@linux
def test_the_driver_is_asked(monkeypatch):
    ask = b._cuda_driver.__wrapped__
    monkeypatch.delenv("DRJIT_LIBCUDA_PATH", raising=False)
    loaded, text = [], "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 2025\nGCC version 12.2.0"
    sources(monkeypatch, {"/proc/driver/nvidia/version": text}, [])

    drivers = [Driver(), Driver(initialized=100), Driver(counted=100), Driver(), Driver()]

    def load(name):
        loaded.append(name)
        return drivers.pop(0)

    monkeypatch.setattr(b.ctypes, "CDLL", load)
    assert ask() == ("570.86.15", "12.9", ["GPU 11"])
    monkeypatch.setenv("DRJIT_LIBCUDA_PATH", "/mine/libcuda.so")
    for _ in range(2):  # it does not start, and does not count
        assert ask() == ("570.86.15", "12.9", [])
    assert loaded == ["libcuda.so.1", "/mine/libcuda.so", "/mine/libcuda.so"]
    sources(monkeypatch, {"/proc/driver/nvidia/version": "nothing known"}, [])
    assert ask()[0] == ""
    sources(monkeypatch, {}, [])
    assert ask()[0] == ""

    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(b.ctypes, "CDLL", missing)
    assert ask() == ("", "", [])


@linux
def test_optix_is_loaded(monkeypatch):
    usable, loaded = b.has_optix.__wrapped__, []
    monkeypatch.setattr(b.ctypes, "CDLL", loaded.append)
    monkeypatch.delenv("DRJIT_LIBOPTIX_PATH", raising=False)
    assert usable() is True
    monkeypatch.setenv("DRJIT_LIBOPTIX_PATH", "/mine/optix.so")
    assert usable() is True
    assert loaded == ["libnvoptix.so.1", "/mine/optix.so"]
    monkeypatch.undo()
    monkeypatch.setenv("DRJIT_LIBOPTIX_PATH", "/nonsense/optix.so")
    assert usable() is False


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
    monkeypatch.setattr(b.subprocess, "run", lambda command, **_: done)
    assert b.runs_coopvec(backend) == reason


def test_a_product_that_cannot_be_run(backend, monkeypatch):
    for error in (OSError("no more processes"), subprocess.TimeoutExpired("python", 120)):

        def fail(*_, error=error, **__):
            raise error

        monkeypatch.setattr(b.subprocess, "run", fail)
        assert b.runs_coopvec(backend) == f"could not be run: {error}"


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


def table_of(monkeypatch, faults=(None, None), reason=None, driver=("570.1", "12.8", ["GPU 1"]), optix=True):
    """:func:`info` of a machine with ``faults`` of CUDA and LLVM, where products end with ``reason``."""
    monkeypatch.setattr(b, "_fault", dict(zip(b.BACKENDS, faults, strict=True)).get)
    monkeypatch.setattr(b, "runs_coopvec", lambda name: reason)
    monkeypatch.setattr(b, "_cuda_driver", lambda: driver)
    monkeypatch.setattr(b, "has_optix", lambda: optix)
    return {what: (finding, cure) for what, finding, cure in b.info()}


def test_rows_of_info(monkeypatch):
    table = table_of(monkeypatch)
    assert table["Dr.Jit"] == (b._version("drjit"), "") and table["NumPy"][1] == ""
    assert table["CUDA driver"] == ("570.1, CUDA 12.8", "") and table["GPU"] == ("GPU 1", "")
    assert table["OptiX"] == ("usable", "")
    assert table["LLVM product"] == ("cooperative vectors run, single precision", "")
    assert table["CUDA product"] == ("cooperative vectors run, half precision", "")

    table = table_of(monkeypatch, reason="wrong", driver=("", "12.8", ["GPU 1", "GPU 2"]), optix=False)
    assert table["LLVM product"] == ("wrong", b.llvm_cure()) and table["CUDA product"] == ("wrong", b._CURE_CUDA)
    assert table["CUDA driver"] == ("unknown version, CUDA 12.8", "") and table["GPU"] == ("GPU 1, GPU 2", "")
    assert table["OptiX"] == ("not found", b._CURE_OPTIX)

    table = table_of(monkeypatch, faults=("no GPU", None), driver=("", "", []), optix=False)
    assert table["CUDA driver"] == ("none", f"for the CUDA backend: {b._CURE_CUDA}")
    assert table["GPU"] == ("none", "") and table["OptiX"] == ("not found", "")
    assert table["CUDA product"] == ("not run: backend not usable", "")
    assert table_of(monkeypatch, faults=("no libnvoptix", None))["CUDA driver"][1] == ""  # OptiX' row has the cure


@pytest.mark.parametrize(
    ("version", "good"), [("1.5", True), ("1.5.9", True), ("1.4.2", False), ("1.50", False), ("1.6", False)]
)
def test_versions_of_dr_jit(monkeypatch, version, good):
    monkeypatch.setattr(b, "_version", lambda package: version)
    assert table_of(monkeypatch)["Dr.Jit"] == (version, "" if good else 'pip install "drjit>=1.5,<1.6"')


def test_info_without_packages(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(b, "_version", lambda package: None)
    table = table_of(monkeypatch)
    assert table["coopnet"][0] == "not installed, run from its sources"
    assert table["Dr.Jit"] == ("missing", 'pip install "drjit>=1.5,<1.6"')
    assert table["NumPy"] == ("missing", "pip install numpy")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert b._package_row("x") == ("x", "present, version unknown", "")


def test_row_of_llvm(monkeypatch):
    found = []
    monkeypatch.setattr(b, "found_llvm", lambda: found)
    monkeypatch.setattr(b, "_loaded_path", lambda: "")
    monkeypatch.setattr(b, "_chosen", "/chosen")
    monkeypatch.delenv(b.VARIABLE, raising=False)
    pretend(monkeypatch)
    assert b._llvm_row(None) == ("19.1.7, chosen by Dr.Jit", "")
    monkeypatch.setenv(b.VARIABLE, "/chosen")
    assert b._llvm_row(None) == ("19.1.7, /chosen", "")
    monkeypatch.setattr(b, "_loaded_path", lambda: "/loaded")
    assert b._llvm_row(None) == ("19.1.7, /loaded", "")
    # with a fault: what there is, and the end of its message
    assert b._llvm_row("Bad. Cure: this.") == ("too old: 19.1.7, /loaded", "this")
    assert b._llvm_row("Bad") == ("too old: 19.1.7, /loaded", "Bad")
    pretend(monkeypatch, active=False)
    assert b._llvm_row("Bad")[0] == "none"
    found.append(b.LLVM("/old", (16,)))
    assert b._llvm_row("Bad")[0] == "too old: LLVM 16 (/old)"
    found.insert(0, b.LLVM("/new", (19,)))
    assert b._llvm_row("Bad")[0] == "LLVM 19 (/new) is not in use"
    monkeypatch.setenv(b.VARIABLE, "/mine")
    assert b._llvm_row("Bad")[0] == "DRJIT_LIBLLVM_PATH='/mine' is unsuitable"


def test_row_of_the_kernel_cache(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("DRJIT_CACHE_DIR", str(cache))
    assert b._kernel_cache_row() == f"{cache}, empty"
    cache.mkdir()
    (cache / "a").write_bytes(bytes(1536))
    assert b._kernel_cache_row() == f"{cache}, 1 files, 1.5 KiB"
    with open(cache / "b", "wb") as file:
        file.truncate(2**20 - 1536)
    assert b._kernel_cache_row() == f"{cache}, 2 files, 1.0 MiB"
    with open(cache / "b", "wb") as file:
        file.truncate(5 * 2**19 - 1536)
    assert b._kernel_cache_row() == f"{cache}, 2 files, 2.5 MiB"
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
    monkeypatch.setattr(b, "_IMPORT_NAME", {"pillow": "no_such_module"})
    assert b._package_row("pillow") == ("pillow", "missing", "pip install pillow")


def test_format_info():
    text = b.format_info([("a", "one", ""), ("longer", "two", "do this")])
    assert text.splitlines() == ["a       one", "longer  two", "        -> do this"]
    assert b.format_info([]) == ""
