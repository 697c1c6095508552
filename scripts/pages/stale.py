"""Which tutorials have to run again: ``make docs`` runs those that something has changed for.

sphinx-gallery runs a tutorial again when its script has changed. Here it also does when the library has: code that the
tutorial may use, but not comments, docstrings, or packages that it never names. So does a new version of a package.
"""

from __future__ import annotations

import ast
import hashlib
import re
from functools import cache
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What no tutorial runs.
NEVER = {"__main__.py", "bench", "cli.py", "command.py", "commands", "deprecation.py", "reference", "version.py"}
#: What runs only in tutorials that name it; all else is part of every field.
NAMED = {"image", "interop", "io", "mesh", "mitsuba", "render", "uncertainty"}
#: Functions of those packages that have no name of a package in front of them.
NAMES = {
    "interop": r"from_config|export|tcnn",
    "io": r"cn\.save|cn\.load|checkpoint",
    "mesh": r"coopnet\.mesh|import mesh",
    "uncertainty": r"mc_dropout|mc_samples|laplace|ensemble|posthoc|calibra|auroc|likelihood",
}
PACKAGES = ("drjit", "numpy", "matplotlib", "mitsuba", "torch", "sphinx-gallery")


@cache
def code(path: Path) -> str:
    """What a file says to Python."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False):
            del node.body[0]
    return ast.dump(tree)


def sources(script: str) -> list[Path]:
    """The library's files that a script may run, given its text."""
    left_out = NEVER | {n for n in NAMED if not re.search(rf"\b(?:{n}|{NAMES.get(n, n)})\b", script)}
    library = ROOT / "coopnet"
    return [p for p in sorted(library.rglob("*.py")) if p.relative_to(library).parts[0] not in left_out]


def digest(script: str) -> str:
    """A number that changes when the script's library does."""
    sums = hashlib.sha256()
    for package in PACKAGES:
        try:
            sums.update(f"{package} {metadata.version(package)}".encode())
        except metadata.PackageNotFoundError:
            continue
    for path in (*sources(script), Path(__file__).with_name("themes.py")):
        sums.update(f"{path.relative_to(ROOT)} {code(path)}".encode())
    return sums.hexdigest()


def forget(tutorials: Path, gallery: Path) -> list[str]:
    """Makes sphinx-gallery run what is stale, of which it returns the names: without a sum it takes a script for new.

    sphinx-gallery writes that sum after a run without errors.
    """
    gallery.mkdir(exist_ok=True)
    found = []
    for script in sorted(tutorials.glob("plot_*.py")):
        now, kept = digest(script.read_text(encoding="utf-8")), gallery / f"{script.stem}.library"
        if not kept.exists() or kept.read_text() != now:
            (gallery / f"{script.name}.md5").unlink(missing_ok=True)
            kept.write_text(now)
            found.append(script.stem)
    return found
