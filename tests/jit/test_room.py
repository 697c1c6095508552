"""What leans on Dr.Jit's inner workings stands in ``coopnet/jit``, and says so."""

import ast
import re
import sys
from pathlib import Path

import pytest
from support.machines import run

import coopnet
from coopnet import jit

PACKAGE = Path(coopnet.__file__).parent
ROOM = sorted((PACKAGE / "jit").rglob("*.py"))
FILES = [path for path in ROOM if path.name != "__init__.py"]

NAMES = ("SymbolicScope", "FreezingScope", "MatrixView()", "_packed_buffer", "_traverse_1_cb", "jit_var_self")
INNER = "|".join([r"\bctypes\b", r"\bdr(?:jit)?\.detail\b", *map(re.escape, NAMES)])
#: Of NumPy's arrays ``ctypes`` tells the address, which has nothing to do with Dr.Jit.
ADDRESS = r"\w+\.ctypes\.data\b"


def inner(source):
    """Names of Dr.Jit's inner workings in ``source``, outside comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body[0].value.value = ""
    return [found[0] for found in re.finditer(INNER, re.sub(ADDRESS, "", ast.unparse(tree)))]


@pytest.mark.parametrize("path", sorted({*PACKAGE.rglob("*.py")} - {*ROOM}), ids=lambda p: p.name)
def test_no_other_room_knows_them(path):
    # finding LLVM starts a Python that asks the library for its version: text that is run elsewhere
    elsewhere = ["ctypes"] * 4 if path == PACKAGE / "backend" / "llvm.py" else []
    assert inner(path.read_text(encoding="utf-8")) == elsewhere


def test_they_are_found():
    code = '"""dr.detail"""\nimport ctypes  # MatrixView()\na = drjit.detail.x, drnn.MatrixView()\nb = a.ctypes.data\n'
    assert inner(code) == ["ctypes", "drjit.detail", "MatrixView()"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_file_says_what_it_was_checked_with(path):
    text = " ".join(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).split())
    assert re.search(rf"[Cc]hecked (with|against) .*{re.escape(jit.CHECKED)}", text)
    assert (Path(__file__).parent / f"test_{path.stem}.py").exists()


def test_what_is_asked_before_dr_jit_is_imported():
    """``coopnet.backend.prepare`` chooses LLVM first."""
    code = (
        "import sys, types\n"
        "sys.modules['coopnet'] = package = types.ModuleType('coopnet')\n"
        f"package.__path__ = [{str(PACKAGE)!r}]\n"
        "import coopnet.backend, coopnet.jit.native.core, coopnet.jit.native.cuda\n"
        "print({'drjit', 'numpy'} & set(sys.modules))"
    )
    done = run(code)
    assert done.stdout.strip() == "set()", done.stderr
    assert "drjit" in sys.modules
