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
            for decorator in node.decorator_list:
                if _name(decorator) in _CACHES:
                    decorator.col_offset -= 1  # with its @
                    yield decorator
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


def inside(source: str, line: int) -> list[set[int]]:
    """The lines of the statement at ``line`` (without the body that it may have) and those of its function; none if it
    runs at import."""
    chain = _around(ast.parse(source), line)
    for node in chain:
        if isinstance(node, ast.FunctionDef) and line >= node.body[0].lineno:
            return [_own(chain[0]), _body(node)]
    return []


def users(sources: dict[str, str], file: str, line: int) -> dict[str, set[int]]:
    """Where something that runs at import is used: a decorator or a default in its function, an attribute in the
    methods of its class, a constant in the functions, of any file, that name it."""
    chain = _around(ast.parse(sources[file]), line)
    functions = [n for n in chain if isinstance(n, ast.FunctionDef)]
    if functions:
        return {file: _body(functions[0])}
    if any(isinstance(n, ast.ClassDef) for n in chain):
        methods = [_body(n) for n in ast.walk(chain[-1]) if isinstance(n, ast.FunctionDef)]
        return {file: set().union(*methods)}
    names = {n.id for c in chain for n in ast.walk(c) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    result = {}
    for other, text in sources.items():
        if any(name in text for name in names):
            found = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
            result[other] = set().union(*(_body(n) for n in found if names & _names(n)))
    return result


def _around(tree: ast.Module, line: int) -> list[Any]:
    """Statements at ``line``, the innermost first."""
    chain = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and _start(n) <= line <= (n.end_lineno or 0)]
    return sorted(chain, key=lambda n: (n.end_lineno or 0) - _start(n))


def _names(node: ast.AST) -> set[str]:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return names | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def _start(node: Any) -> int:
    return min([node.lineno] + [d.lineno for d in getattr(node, "decorator_list", [])])


def _body(node: Any) -> set[int]:
    return set(range(node.body[0].lineno, node.end_lineno + 1))


def _own(node: Any) -> set[int]:
    """Lines of a statement without its body."""
    body = getattr(node, "body", None)
    return set(range(node.lineno, max(node.lineno + 1, body[0].lineno) if body else node.end_lineno + 1))
