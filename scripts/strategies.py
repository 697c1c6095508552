"""The engine's tables as they are in the code: ``python scripts/strategies.py`` renews them in docs/strategies.md, and
``--check`` fails if they are out of date."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "strategies.md"
SOURCE = ROOT / "coopnet" / "engine" / "strategies.py"
MARKS = ("<!-- drawn by scripts/strategies.py -->", "<!-- end -->")
sys.path.insert(0, str(ROOT))

from coopnet.engine import strategies  # noqa: E402
from coopnet.engine.situation import Situation  # noqa: E402


def conditions() -> dict[str, list[str]]:
    """The conditions of the rows of every table, as they are written, by the table's name."""
    text = SOURCE.read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            (target,) = node.targets
            rows = [_written(entry, text) for entry in node.value.elts if _is_row(entry)]
            if rows and isinstance(target, ast.Name):
                found[target.id] = rows
    return found


def _is_row(entry: ast.expr) -> bool:
    return isinstance(entry, ast.Call) and isinstance(entry.func, ast.Name) and entry.func.id == "Row"


def _written(entry: ast.Call, text: str) -> str:
    when = entry.args[1]
    source = ast.get_source_segment(text, when.body if isinstance(when, ast.Lambda) else when) or ""
    return " ".join(source.split()).replace("_always", "otherwise").removeprefix("_")


def lines() -> Iterator[str]:
    """All tables in Markdown."""
    written = conditions()
    names = {id(value): name for name, value in vars(strategies).items() if isinstance(value, tuple)}
    for chapter, tables in strategies.CHAPTERS.items():
        yield from ("", f"## {chapter}")
        for question, table in tables.items():
            yield from ("", f"### {question}", "", "| strategy | when | why |", "|---|---|---|")
            conditions_left = iter(written[names[id(table)]])
            for strategy, _, why in table:
                condition = next(conditions_left)
                error = why.replace("{s.forced}", "...").replace("|", "\\|")
                yield f"| {strategy} | `{condition}` | {why} |" if strategy else f"| error | `{condition}` | {error} |"
    yield from ("", "## Conditions in words", "", "The functions that these conditions call:", "")
    for name, words in in_words(" ".join(itertools.chain(*written.values()))):
        yield f"- `{name}`: {words}"
    yield from ("", "The facts about a situation `s`:", "")
    for name, words in facts():
        yield f"- `s.{name}`: {words}"


def in_words(conditions: str) -> Iterator[tuple[str, str]]:
    """The functions that are called in ``conditions``, by name, and the first paragraph of their docstrings."""
    for name, function in vars(strategies).items():
        if re.search(rf"(?<![\w.]){name}\b", conditions) and inspect.isfunction(function) and function.__doc__:
            yield name, _plain(function.__doc__.partition("\n\n")[0])


def facts() -> Iterator[tuple[str, str]]:
    """The fields of a situation, and the comments before them."""
    source = inspect.getsource(Situation)
    for comment, names in re.findall(r"((?:    #: .*\n)+)((?:    \w+: .*\n)+)", source):
        words = _plain(" ".join(line.strip(" #:") for line in comment.splitlines()))
        yield "`, `s.".join(re.findall(r"^    (\w+):", names, re.M)), words


def _plain(text: str) -> str:
    """A docstring in Markdown."""
    return re.sub(r":\w+:`~?\.*([^`]*)`", r"`\1`", " ".join(text.split())).replace("``", "`")


def page() -> str:
    """The page with the tables as they are now."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return before + "\n".join([MARKS[0], *lines(), "", MARKS[1]]) + after


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit("docs/strategies.md is out of date: python scripts/strategies.py" if page() != PAGE.read_text() else 0)
    PAGE.write_text(page(), encoding="utf-8")
