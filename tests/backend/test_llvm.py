"""Finding libLLVM, and what is said where it is missing."""

import fnmatch
import importlib
import os
import sys
from pathlib import Path

import pytest
from support.machines import linux, python, run

from coopnet import backend as b
from coopnet.backend import llvm


def fake(directory, *names):
    """Files that pass for libraries of this machine as long as nobody loads them."""
    head = Path(sys.executable).read_bytes()[:64]
    for name in names:
        (directory / name).write_bytes(head)
    return directory


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
    assert llvm.name_version(path) == version


@linux
def test_newest_suitable_is_found(tmp_path, monkeypatch):
    monkeypatch.delenv(llvm.VARIABLE, raising=False)
    fake(tmp_path, "libLLVM-9.so.1", "libLLVM-15.so.1", "libLLVM-18.so.18.1", "libLLVM.so.19.1")
    fake(tmp_path, "libLLVMSupport.so.20", "libLLVMSupport.a")  # parts of LLVM are not LLVM
    (tmp_path / "libLLVM-21.so").write_text("INPUT(libLLVM.so.21.1)")  # a linker script
    (tmp_path / "libLLVM.so.22.1").symlink_to("gone")
    (tmp_path / "libLLVM-19.so").symlink_to("libLLVM.so.19.1")  # one library under two names
    (tmp_path / "libLLVM-20.so").mkdir()
    assert [found.version for found in llvm.found_llvm([str(tmp_path)])] == [(19, 1), (18,), (15,), (9,)]
    assert llvm.find_llvm([str(tmp_path)]) == llvm.LLVM(str(tmp_path / "libLLVM.so.19.1"), (19, 1))


def sources(monkeypatch, files, directories):
    """Make ``glob.glob``, ``os.path.isdir`` and ``Path.read_text`` see these alone."""
    monkeypatch.setattr(llvm.glob, "glob", lambda pattern: [p for p in directories if fnmatch.fnmatchcase(p, pattern)])
    monkeypatch.setattr(llvm.os.path, "isdir", lambda path: path in directories)

    class Files(type(Path())):
        def read_text(self, *_, **__):
            if str(self) not in files:
                raise FileNotFoundError(str(self))
            return files[str(self)]

    monkeypatch.setattr(llvm, "Path", Files)


@linux
def test_directories_of_linux(monkeypatch):
    """All kinds of places, in this order, once each and only where there is such a directory."""
    triple = f"/usr/lib/{llvm.platform.machine()}-linux-gnu"
    places = [
        f"{sys.prefix}/lib", "/mine", "/configured", "/added", "/usr/lib", "/usr/lib64", triple, "/usr/lib/llvm-19/lib",
        "/usr/lib64/llvm20/lib64", "/usr/local/lib", "/usr/local/lib/llvm/lib", "/usr/lib/llvm/21/lib64",
        "/usr/lib/wsl/lib",
    ]  # fmt: skip
    conf = ["/etc/ld.so.conf", "/etc/ld.so.conf.d/x.conf", "/etc/ld.so.conf.d/y.conf"]
    texts = ["include /etc/ld.so.conf.d/*.conf\n/configured\n", "# none\n/added \n/gone\n"]  # y.conf cannot be read
    sources(monkeypatch, dict(zip(conf, texts, strict=False)), [*places, *conf, "include"])
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/mine:{os.pathsep}/gone:/mine:/usr/lib")
    found = llvm._directories()
    assert sorted(found) == sorted(places)
    assert found[:2] == places[:2] and found[2:5] == ["/usr/lib", "/configured", "/added"]
    sources(monkeypatch, {}, ["/usr/lib"])
    assert llvm._directories() == ["/usr/lib"]
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert llvm._directories() == ["/usr/lib"]


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
    assert llvm._asked() == [str(library)] * 2
    assert not (tmp_path / "run").exists()
    (tools / "ldconfig").write_text("#!/bin/sh\nexit 1\n")
    assert llvm._asked() == [str(library)]


def test_output_of_commands():
    assert llvm._run([sys.executable, "-S", "-c", "print('fine')"]) == "fine\n"
    assert llvm._run([sys.executable, "-S", "-c", "print('fine'); raise SystemExit(1)"]) is None
    assert llvm._run(["/nonsense/program"]) is None
    assert llvm._run(["a\0b"]) is None


@linux
def test_libraries_of_other_machines_are_none(tmp_path, monkeypatch):
    monkeypatch.delenv(llvm.VARIABLE, raising=False)
    head = Path(sys.executable).read_bytes()[:20]
    for name, content in {
        "libLLVM-18.so": head,
        "libLLVM-19.so": head[:18] + b"\xff\xff",
        "libLLVM-20.so": head[:4] + bytes([3 - head[4]]) + head[5:],  # 32 bits instead of 64
        "libLLVM-21.so": head[:19],
        "libLLVM-22.so": b"\0" * 20,
    }.items():
        (tmp_path / name).write_bytes(content)
    assert [found.version for found in llvm.found_llvm([str(tmp_path)])] == [(18,)]
    assert llvm._machine(str(tmp_path)) is None


@linux
def test_nothing_suitable(tmp_path, monkeypatch):
    monkeypatch.delenv(llvm.VARIABLE, raising=False)
    assert llvm.found_llvm([str(tmp_path)]) == []
    fake(tmp_path, "libLLVM-15.so.1", "libLLVM-16.so.1")
    assert llvm.find_llvm([str(tmp_path)]) is None
    (tmp_path / "libLLVM.so").write_bytes((tmp_path / "libLLVM-15.so.1").read_bytes())
    # a file whose name tells nothing and that cannot be loaded is no library
    assert len(llvm.found_llvm([str(tmp_path)])) == 2


@linux
def test_variable_comes_first(tmp_path, monkeypatch):
    fake(tmp_path, "libLLVM.so.18.1", "libLLVM.so.19.1")
    monkeypatch.setenv(llvm.VARIABLE, str(tmp_path / "libLLVM.so.18.1"))
    assert llvm.find_llvm([str(tmp_path)]).version == (18, 1)
    monkeypatch.setenv(llvm.VARIABLE, str(tmp_path / "nothing"))
    assert llvm.find_llvm([str(tmp_path)]) is None


# A machine on which the search finds only what lies in argument 1 of the caller.
ONLY = """
import coopnet.backend as b
from coopnet.backend import llvm
llvm._directories = lambda: [{directory!r}]
llvm._asked = lambda: []
"""


@linux
def test_only_an_old_llvm(tmp_path):
    fake(tmp_path, "libLLVM-15.so.1")
    code = ONLY.format(directory=str(tmp_path)) + (
        "import drjit as dr\n"
        "dr.detail.llvm_version = lambda: (15, 0, 6)\n"  # what Dr.Jit would have loaded by itself
        "llvm.prepare()\n"
        "import os; os.environ.pop(llvm.VARIABLE, None)\n"
        "b.require('llvm')\n"
    )
    done = run(code)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("coopnet.backend.BackendError: ")
    for part in ("libLLVM 17 or newer", "LLVM 15", str(tmp_path), "ldconfig", llvm.VARIABLE, llvm.llvm_cure()):
        assert part in last


@linux
def test_old_llvm_for_real():
    """With a real library older than 17 named or found, nothing aborts."""
    old = [found for found in llvm.found_llvm() if not found.suitable]
    if not old:
        pytest.skip("this machine has no libLLVM older than 17")
    for found in old:
        done = run("import coopnet.backend as b; b.prepare(); b.require('llvm')", DRJIT_LIBLLVM_PATH=found.path)
        assert done.returncode == 1
        assert f"{llvm.VARIABLE}={found.path!r} names LLVM {found.version[0]}" in done.stderr


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
    for part in (f"{llvm.VARIABLE}={value!r}", what, "Cure: unset"):
        assert part in done.stdout


def test_prepare_respects_the_variable():
    done = run(
        "import os, coopnet.backend as b\nb.prepare()\nprint(os.environ[b.VARIABLE])",
        DRJIT_LIBLLVM_PATH="/mine",
    )
    assert done.stdout.strip() == "/mine"


@linux
def test_the_file_by_itself(tmp_path):
    """Runs it without the package, which imports Dr.Jit, after which there is nothing to prepare."""
    fake(tmp_path, "libLLVM-18.so.1")
    code = (
        "import importlib.util, os, sys\n"
        "spec = importlib.util.spec_from_file_location('finder', 'coopnet/backend/llvm.py')\n"
        "llvm = sys.modules['finder'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(llvm)\n"
        f"llvm._directories = lambda: [{str(tmp_path)!r}]\n"
        "llvm.prepare()\n"
        "print(os.environ.get(llvm.VARIABLE), 'drjit' in sys.modules)"
    )
    done = run(code, DRJIT_LIBLLVM_PATH=None)
    assert done.stdout.split() == [str(tmp_path / "libLLVM-18.so.1"), "False"], done.stderr


@linux
def test_the_file_as_a_script(tmp_path):
    """As scripts/setup-system.sh runs it, with the standard library alone."""
    for path, code, words in (
        (str(fake(tmp_path, "libLLVM-18.so.1") / "libLLVM-18.so.1"), 0, "LLVM 18 (/"),
        ("/nonsense", 1, "DRJIT_LIBLLVM_PATH='/nonsense' names a file that does not exist. Cure: "),
    ):
        done = python("-I", "-S", "coopnet/backend/llvm.py", **{llvm.VARIABLE: path})
        assert done.returncode == code and words in done.stdout, done


@linux
def test_drjit_imported_first(tmp_path):
    """Dr.Jit has made its choice at its import; the message says to import coopnet first."""
    fake(tmp_path, "libLLVM.so.19.1")
    code = ("import drjit as dr\n" + ONLY + "import os\n").format(directory=str(tmp_path)) + (
        "llvm.prepare()\n"
        "assert llvm.VARIABLE not in os.environ\n"
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
