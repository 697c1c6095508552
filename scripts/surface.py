"""The public surface: every public name with its arguments, and the command line's options.

``python scripts/surface.py`` writes tests/public_surface.txt, which a test compares with the code. A change of that
file is a change of what users may rely on: it belongs in CHANGELOG.md, and what goes is deprecated first
(CONTRIBUTING.md).
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PATH = ROOT / "tests" / "public_surface.txt"
#: Public modules; some need optional packages.
MODULES = (
    "coopnet", "coopnet.backend", "coopnet.image", "coopnet.interop.export", "coopnet.interop.tcnn",
    "coopnet.interop.torch", "coopnet.io", "coopnet.mesh", "coopnet.mitsuba", "coopnet.nn", "coopnet.reference",
    "coopnet.render", "coopnet.training",
)  # fmt: skip
COMMANDS = "the command line"


def sections() -> dict[str, list[str]]:
    """Lines of every part of the surface that can be looked at here."""
    found = {}
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        found[name] = _module(module)
    with contextlib.suppress(ImportError, SystemExit):
        found[COMMANDS] = _commands()
    return found


def _module(module: Any) -> list[str]:
    names = getattr(module, "__all__", None)
    if names is None:
        own = module.__name__
        names = [n for n, v in vars(module).items() if not n.startswith("_") and getattr(v, "__module__", "") == own]
    lines: list[str] = []
    for name in sorted(names, key=str.lower):
        # what is not there is made when it is asked for: Mitsuba's classes, once a variant is chosen
        lines += _value(name, vars(module)[name]) if name in vars(module) else [f"class {name}, of a variant"]
    return lines


def _value(name: str, value: Any) -> list[str]:
    if inspect.ismodule(value):
        return [f"{name}: module"]
    if inspect.isclass(value):
        error = issubclass(value, BaseException)
        lines = [f"class {name}" + ("" if error else _signature(value.__init__, skip=1))]
        for member in sorted({n for c in _own(value) for n in vars(c) if not n.startswith("_")}):
            lines += _member(value, member)
        return lines
    if callable(value):
        return [f"{name}{_signature(value)}"]
    return [f"{name}: {type(value).__name__}"]


def _own(cls: type) -> list[type]:
    """The class and its bases of this package."""
    return [c for c in cls.__mro__ if c.__module__.startswith("coopnet")]


def _member(cls: type, name: str) -> list[str]:
    raw = next(vars(c)[name] for c in _own(cls) if name in vars(c))
    if isinstance(raw, property):
        return [f"    .{name}"]
    static = isinstance(raw, (staticmethod, classmethod))
    if static or inspect.isfunction(raw):
        return [f"    .{name}{_signature(getattr(cls, name), skip=0 if static else 1)}"]
    return []  # constants of classes, such as DRJIT_STRUCT


def _signature(function: Any, skip: int = 0) -> str:
    """Names of arguments, their kinds and defaults; annotations are left out."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[skip:]
    except (TypeError, ValueError):
        return "(...)"
    parts, star = [], False
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        star = star or p.kind is p.VAR_POSITIONAL
        prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        parts.append(prefix + p.name + ("" if p.default is p.empty else f"={_default(p.default)}"))
    return f"({', '.join(parts)})"


def _default(value: Any) -> str:
    plain = value is None or isinstance(value, (bool, int, float, str, tuple))
    return repr(value) if plain else f"<{getattr(value, '__qualname__', type(value).__name__)}>"


def _commands() -> list[str]:
    from coopnet import cli

    lines = []
    for command in [
        cli.app.registered_callback,
        *sorted(cli.app.registered_commands, key=lambda c: c.callback.__name__),
    ]:
        lines.append("coopnet" if command is cli.app.registered_callback else command.callback.__name__)
        for name, p in inspect.signature(command.callback, eval_str=True).parameters.items():
            option = p.annotation.__metadata__[0]
            # beside a type, the first of an option's names is where a default would be
            words = " ".join(d for d in (option.default, *(option.param_decls or ())) if isinstance(d, str))
            if not words:
                argument = type(option).__name__ == "ArgumentInfo"
                words = option.metavar if argument else f"--{name.replace('_', '-')}"
            lines.append(f"    {words}" + ("" if p.default is p.empty else f" [{p.default!r}]"))
    return lines


def text(found: dict[str, list[str]]) -> str:
    """The file."""
    head = "# What users may rely on; written by `python scripts/surface.py`. Changes belong in CHANGELOG.md.\n"
    return head + "".join(f"\n[{name}]\n" + "".join(f"{line}\n" for line in lines) for name, lines in found.items())


def parsed(text: str) -> dict[str, list[str]]:
    """Sections of the file."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            found[line.strip("[]")] = lines = []
        elif line and not line.startswith("#"):
            lines.append(line)
    return found


def main() -> int:
    found = sections()
    if missing := [name for name in (*MODULES, COMMANDS) if name not in found]:
        print(f"not importable here: {', '.join(missing)}; nothing is written", file=sys.stderr)
        return 1
    PATH.write_text(text(found), encoding="utf-8")
    print(f"wrote {PATH.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
