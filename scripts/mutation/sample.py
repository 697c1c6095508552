"""A seeded sample of mutants, spread over files by their size."""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast

from .exclude import excluded, same_string
from .operators import operators


@dataclass(frozen=True)
class Mutant:
    """One change: what ``operator`` made of ``line`` of ``file``, and the whole ``source`` with it."""

    file: str
    operator: str
    line: int
    before: str
    after: str
    source: str

    @property
    def id(self) -> str:
        return hashlib.sha256(f"{self.file} {self.source}".encode()).hexdigest()[:12]

    def diff(self, original: str) -> str:
        pair = original.splitlines(), self.source.splitlines()
        return "\n".join(difflib.unified_diff(*pair, "a/" + self.file, "b/" + self.file, lineterm="", n=2))


def sample(root: Path, files: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """``count`` mutants: at least two of every file that has some, the others in proportion to its size."""
    sources = {f: (root / f).read_text(encoding="utf-8") for f in files}
    places = {f: len(list(ast_nodes(get_ast(s)))) for f, s in sources.items()}
    result = []
    for file, quota in _shares(places, count).items():
        result += _of_file(file, sources[file], quota, random.Random(f"{seed} {file}"))
    return result


def _shares(sizes: dict[str, int], count: int) -> dict[str, int]:
    least = min(2, count // max(1, len(sizes)))
    total = sum(sizes.values())
    exact = {f: max(0.0, (count - least * len(sizes)) * n / total) for f, n in sizes.items()}
    result = {f: least + int(x) for f, x in exact.items()}
    rest = sorted(exact, key=lambda f: (int(exact[f]) - exact[f], f))
    for f in rest[: max(0, count - sum(result.values()))]:
        result[f] += 1
    return result


def _of_file(file: str, source: str, quota: int, rng: random.Random) -> list[Mutant]:
    spans, known = excluded(source), _parsed(source)
    nodes = list(enumerate(ast_nodes(get_ast(source))))
    rng.shuffle(nodes)
    table = operators()
    result: list[Mutant] = []
    for number, node in nodes:
        if len(result) == quota:
            break
        if node.type in ("name", "string", "newline", "param", "parameters"):
            continue  # no operator has a use for them
        choices = []
        for name, op in table.items():
            if not (node.type == "operator" and node.parent.type in ("parameters", "lambdef", "param")):
                found = [(name, i, *p) for i, p in enumerate(op.mutation_positions(node))]
                choices += [] if found and same_string(name, node) else found
        choices = [c for c in choices if not any(start <= c[2] < end for start, end in spans)]
        rng.shuffle(choices)
        for name, i, start, _ in choices:
            mutated = _apply(source, table[name], number, i)
            if _parsed(mutated) not in (known, None):
                before, after = _changed(source, mutated)
                result.append(Mutant(file, name, start[0], before, after, mutated))
                break
    return sorted(result, key=lambda m: m.line)


def _apply(source: str, operator: Any, number: int, index: int) -> str:
    tree = get_ast(source)
    node = list(ast_nodes(tree))[number]
    parent = node.parent
    try:
        new = operator.mutate(node, index)
    except AttributeError:  # cosmic-ray 8.7 fails at exceptions with dots, such as OSError or json.JSONDecodeError
        return source
    if new is not node:
        i = next(i for i, child in enumerate(parent.children) if child is node)
        parent.children[i : i + 1] = [] if new is None else [new]
    return tree.get_code()


@functools.cache
def _parsed(source: str) -> str | None:
    try:
        return ast.dump(ast.parse(source))
    except (SyntaxError, ValueError):
        return None


def _changed(original: str, mutated: str) -> tuple[str, str]:
    """The lines that differ."""
    delta = list(difflib.ndiff(original.splitlines(), mutated.splitlines()))
    return tuple("\n".join(d[2:].strip() for d in delta if d.startswith(sign)) for sign in ("- ", "+ "))  # type: ignore
