"""Lines of validation in the package: what a file spends on saying no.

Counted are whole functions whose name starts with ``check``, ``_check`` or ``require`` (without their docstrings),
every ``if`` whose body ends in ``raise``, and every call of such a function or of ``ensure``. ``python
scripts/validation.py [ANOTHER CHECKOUT]`` prints both side by side.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def lines(node: ast.AST) -> set[int]:
    return set(range(node.lineno, node.end_lineno + 1))


def validation(path: Path) -> set[int]:
    """The numbers of the lines of ``path`` that validate."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name.startswith(("check", "_check", "require")):
            found |= lines(node) - (lines(node.body[0]) if ast.get_docstring(node) else set())
        elif isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
            found |= set(range(node.lineno, node.body[-1].end_lineno + 1))
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name.startswith(("check", "_check", "require", "ensure")):
                found |= lines(node)
    return found


def count(root: Path) -> dict[str, int]:
    files = sorted((root / "coopnet").rglob("*.py"))
    return {file.relative_to(root).as_posix(): len(found) for file in files if (found := validation(file))}


if __name__ == "__main__":
    tables = [count(Path(root)) for root in [*sys.argv[1:], ROOT]]
    for name in sorted({name for table in tables for name in table}):
        print(*(f"{table.get(name, 0):5}" for table in tables), "", name)
    print(*(f"{sum(table.values()):5}" for table in tables), "", "in all")
