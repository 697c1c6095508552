"""Changes every figure of README.md and the pages, one at a time: does a test notice?

    python tests/slow/figures.py [PAGE ...]

Figures are numbers with a decimal point, and those before a unit (%, ms, s, times, dB, MB), outside code and links. The
tests are those of ``tests/docs`` that compare pages with ``benchmarks/results``. Prints for each page how many figures
it has and how many may change unnoticed, and those with the words around them. What remains should be what nobody
measured: versions, settings, constants, goals. ``tests/docs/test_every_figure.py`` knows how many these are.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / name) for name in ("tests", "tests/docs", "scripts", "benchmarks"))]

FIGURE = re.compile(
    r"(?<![\w.^/-])(?:\d[\d,]*\.\d+(?:e-?\d+)?|\d[\d,]*(?= (?:%|(?:ms|s|dB|times|[GM]i?B|kB|µs|ns)\b)))(?![\w.]\w)"
)
#: Code, and where links lead.
LEFT_OUT = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|^    [^\n]*$", re.S | re.M)

read_text = Path.read_text
pages: dict[Path, str] = {}  #: what is read instead of a file
seen: set[Path] = set()  #: files that have been read


@functools.cache
def kept(path: Path) -> str:
    return read_text(path, encoding="utf-8")


def read(path: Path, *_: object, **__: object) -> str:
    path = path.resolve()
    seen.add(path)
    return pages.get(path) or kept(path)


def comparisons() -> dict[Path, list[Callable[[], None]]]:
    """The tests that read each page, as functions without arguments."""
    import test_figures
    import test_figures_of_peers
    import test_figures_of_rendering
    import test_figures_of_training
    import test_uncertainty as uncertainty

    found: list[Callable[[], None]] = []
    for module in (
        test_figures,
        test_figures_of_peers,
        test_figures_of_rendering,
        test_figures_of_training,
        uncertainty,
    ):
        tests = [test for name, test in vars(module).items() if name.startswith("test_")]
        found += [test for test in tests if not inspect.signature(test).parameters]
    quality = uncertainty.file("uncertainty-quality")
    found += [functools.partial(test, quality) for test in (uncertainty.test_tables, uncertainty.test_sentences)]

    def anew(test: Callable[[], None]) -> None:
        uncertainty.PAGE = "\n".join(read(page) for page in uncertainty.PAGES)
        test()

    by_page: dict[Path, list[Callable[[], None]]] = {}
    for test in found:
        seen.clear()
        test()
        inner = getattr(test, "func", test)
        run = functools.partial(anew, test) if inner.__module__ == "test_uncertainty" else test
        own = set(uncertainty.PAGES) if inner.__module__ == "test_uncertainty" else set()
        for page in {path for path in seen | own if path.suffix == ".md"}:
            by_page.setdefault(page, []).append(run)
    return by_page


def unnoticed(page: Path, tests: list[Callable[[], None]]) -> tuple[int, list[str]]:
    """The number of figures in a page, and the words around those that may change."""
    text, of, lost = kept(page), 0, []
    code = [match.span() for match in LEFT_OUT.finditer(text)]
    for match in FIGURE.finditer(text):
        first, last = match.span()
        if any(begin <= first < end for begin, end in code):
            continue
        of += 1
        digit = re.match(r"[\d,.]*\d", match[0]).end() - 1 + first  # the last one that is not of an exponent
        pages[page] = text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :]
        if not any(fails(test) for test in tests):
            around = f"{text[max(0, first - 60) : first]}«{match[0]}»{text[last : last + 40]}"
            lost.append(re.sub(r"\s+", " ", around))
        pages.clear()
    return of, lost


def fails(test: Callable[[], None]) -> bool:
    try:
        test()
    except Exception:
        return True
    return False


def main() -> None:
    Path.read_text = read  # type: ignore[method-assign, assignment]
    json.loads = functools.cache(json.loads)  # type: ignore[assignment]
    by_page = comparisons()
    files = [ROOT / "README.md", *(p for p in sorted((ROOT / "docs").rglob("*.md")) if "gallery" not in p.parts)]
    for page in [(ROOT / name).resolve() for name in sys.argv[1:]] or files:
        of, lost = unnoticed(page, by_page.get(page, []))
        print(f"{page.relative_to(ROOT)}: {len(lost)} of {of}", *(f"    {words}" for words in lost), sep="\n")


if __name__ == "__main__":
    main()
