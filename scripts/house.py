"""Which room imports which, drawn from the imports: ``python scripts/house.py`` renews the diagram in
docs/architecture.md, and ``--check`` fails if it is out of date."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
MARKS = ("<!-- drawn by scripts/house.py -->", "<!-- end -->")

Graph = dict[str, set[str]]


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Modules of the package by their dotted names."""
    paths = {".".join(p.relative_to(root).with_suffix("").parts): p for p in (root / "coopnet").rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in sorted(paths.items())}


def imported(path: Path, root: Path = ROOT) -> set[str]:
    """Dotted names of all that a file imports, anywhere in it: ``a.b.c`` for ``from a.b import c``."""
    here, names = path.relative_to(root).with_suffix("").parts, set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = [*here[: len(here) - node.level], *filter(None, [node.module])] if node.level else [node.module]
            names |= {".".join([*base, alias.name]) for alias in node.names}
    return names


def imports(root: Path = ROOT) -> Graph:
    """The modules of the package that each imports."""
    known = modules(root)
    return {
        name: {n if n in known else n.rpartition(".")[0] for n in imported(path, root) if n.startswith("coopnet")}
        for name, path in known.items()
    }


def room(module: str) -> str:
    """The room of a module; that of the package's own is empty."""
    return (module.split(".") + [""])[1]


def rooms(root: Path = ROOT) -> Graph:
    """The rooms that each imports."""
    graph: Graph = {}
    for name, found in imports(root).items():
        graph.setdefault(room(name), set()).update({room(n) for n in found} - {room(name)})
    return graph


def circle(graph: Graph) -> list[str]:
    """A way along the arrows of ``graph`` that comes back to its start, or nothing."""
    done: set[str] = set()

    def walk(node: str, above: list[str]) -> list[str]:
        if node in above:
            return [*above[above.index(node) :], node]
        found = [] if node in done else next(filter(None, (walk(n, [*above, node]) for n in graph.get(node, ()))), [])
        done.add(node)
        return found

    return next(filter(None, (walk(node, []) for node in graph)), [])


def reached(graph: Graph, node: str) -> set[str]:
    """All that can be reached from ``node``, of a graph without circles."""
    return graph[node].union(*(reached(graph, n) for n in graph[node]))


def diagram(root: Path = ROOT) -> str:
    """The rooms with their imports, without those that follow from others."""
    outside = {"", "__main__"}  # they give names and start the command line
    graph = {name: found - outside for name, found in rooms(root).items() if name not in outside}
    if found := circle(graph):
        raise SystemExit(f"the imports go around: {' -> '.join(found)}")
    lines = []
    for name in sorted(graph):
        further = set().union(*(reached(graph, n) for n in graph[name]))
        lines += [f"    {name} --> {n}" for n in sorted(graph[name] - further)]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def main(arguments: list[str]) -> int:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(MARKS[0])
    new = f"{before}{MARKS[0]}\n{diagram()}\n{MARKS[1]}{rest.split(MARKS[1])[1]}"
    if "--check" in arguments:
        print(f"{PAGE.name} is {'as drawn' if new == text else 'out of date; run python scripts/house.py'}")
        return int(new != text)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
