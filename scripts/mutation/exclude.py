"""Places whose mutants say nothing: equivalent by construction, or for machines other than this one.

Annotations, docstrings, texts (of errors, warnings and ``__repr__``), ``__all__``, ``DRJIT_STRUCT``, sizes of caches
and caching itself, ``zip``'s ``strict`` and ``open``'s ``encoding``, ``is`` for ``==`` of strings (which Python
shares), and what coopnet does on Windows and macOS.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

#: ``((line, column), (line, column))``
Span = tuple[tuple[int, int], tuple[int, int]]

_NAMES = {"__all__", "DRJIT_STRUCT"}
_TEXTS = {"__repr__", "__str__"}
_KEYWORDS = {"strict", "encoding", "stacklevel"}
_CACHES = {"lru_cache", "cache", "cached_property", "overload"}


def excluded(source: str) -> list[Span]:
    """Spans of ``source`` in which no mutant is made; columns count characters, lines from 1."""
    lines = source.splitlines()

    def characters(line: int, column: int) -> tuple[int, int]:
        return line, len(lines[line - 1].encode()[:column].decode())

    return [
        (characters(n.lineno, n.col_offset), characters(n.end_lineno, n.end_col_offset))
        for n in _nodes(ast.parse(source))
    ]


def _nodes(tree: ast.Module) -> Iterator:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        if isinstance(node, ast.FunctionDef):
            if node.returns is not None:
                yield node.returns
            if node.name in _TEXTS:
                yield from node.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from (d for d in node.decorator_list if _name(d) in _CACHES)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from node.exc.args
        if isinstance(node, ast.Call) and _name(node) in ("warn", "cast", "TypeVar"):
            yield from node.args
            yield from (k.value for k in node.keywords)
        if isinstance(node, ast.keyword) and node.arg in _KEYWORDS:
            yield node
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AnnAssign) and any(getattr(t, "id", "") in _NAMES for t in targets):
            yield node
        if isinstance(node, ast.If | ast.IfExp):
            test = ast.unparse(node.test)
            if "TYPE_CHECKING" in test or "__main__" in test:
                yield node
            other = node.body if "win32" in test or "darwin" in test else node.orelse if "linux" in test else []
            if "sys.platform" in test:
                yield node.test
                yield from other if isinstance(other, list) else [other]
        if isinstance(node, ast.Compare) and "sys.platform" in ast.unparse(node):
            yield node


def _name(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def same_string(operator: str, node: Any) -> bool:
    """Does ``operator`` compare a string by identity that was compared by value?"""
    if not operator.endswith(("_Eq_Is", "_NotEq_IsNot")):
        return False
    return any(child.type in ("string", "strings") for child in node.children)


def statement(source: str, line: int) -> list[range]:
    """Lines of the statement at ``line`` without its body, then of the blocks around it, inside out."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            start = min([node.lineno] + [d.lineno for d in getattr(node, "decorator_list", [])])
            if start <= line <= node.end_lineno:
                found.append((node.end_lineno - start, start, node))
    found.sort(key=lambda f: f[0])
    result = []
    for i, (_, start, node) in enumerate(found):
        body = getattr(node, "body", None)
        if body and i == 0:
            result.append(range(start, max(start + 1, body[0].lineno)))
        if body and isinstance(node, ast.FunctionDef | ast.ClassDef):
            result.append(range(body[0].lineno, node.end_lineno + 1))
        elif not body:
            result.append(range(start, node.end_lineno + 1))
    return [*result, range(1, len(source.splitlines()) + 1)]
