"""What one mutation changes: the operators of cosmic-ray, and two more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import parso
from cosmic_ray.operators.operator import Operator
from cosmic_ray.operators.provider import OperatorProvider


class DropStatement(Operator):
    """Replaces a statement that has an effect by ``pass``: a call, ``raise``, an assignment that changes something."""

    def mutation_positions(self, node: Any) -> Iterator[tuple]:
        if node.type == "simple_stmt" and _has_effect(node.children[0]):
            yield (node.children[0].start_pos, node.children[0].end_pos)

    def mutate(self, node: Any, index: int) -> Any:
        first = node.children[0]
        node.children[0] = parso.parse(first.get_first_leaf().prefix + "pass")
        return node

    @classmethod
    def examples(cls) -> tuple:
        return ()


class DropKeyword(Operator):
    """Leaves one keyword argument out of a call."""

    def mutation_positions(self, node: Any) -> Iterator[tuple]:
        for i in _keywords(node):
            yield (node.children[i].start_pos, node.children[i].end_pos)

    def mutate(self, node: Any, index: int) -> Any:
        i = list(_keywords(node))[index]
        if node.type == "trailer":
            del node.children[i]
        elif i + 1 < len(node.children):
            del node.children[i : i + 2]  # with its comma
        else:
            del node.children[i - 1 :]
        return node

    @classmethod
    def examples(cls) -> tuple:
        return ()


def _has_effect(node: Any) -> bool:
    if node.type == "raise_stmt":
        return True
    if node.type == "atom_expr":
        last = node.children[-1]
        return last.type == "trailer" and last.children[0].value == "("
    if node.type != "expr_stmt":
        return False
    target, sign = node.children[0], node.children[1]
    if sign.type == "annassign":
        return False
    if target.type == "atom_expr" or sign.value != "=":
        return True
    # removing the only assignment of a name would be noticed at once; where the name was there before, it may not
    return target.type == "name" and any(n.value == target.value for n in _names(node.children[2:]))


def _names(nodes: list) -> Iterator[Any]:
    for node in nodes:
        if node.type == "name":
            yield node
        yield from _names(getattr(node, "children", []))


def _keywords(node: Any) -> Iterator[int]:
    if node.type in ("arglist", "trailer"):
        for i, child in enumerate(node.children):
            if child.type == "argument" and getattr(child.children[1], "value", "") == "=":
                yield i


def operators() -> dict[str, Operator]:
    """All operators by name. Those of cosmic-ray that replace variables need to be told which, and are left out."""
    provider = OperatorProvider()
    found = {name: provider[name]() for name in provider if not provider[name].arguments()}
    return found | {op.__name__: op() for op in (DropStatement, DropKeyword)}
