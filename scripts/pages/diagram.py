"""Flowcharts of Mermaid's simplest kind, ``a --> b`` line by line, as SVG: the site shows them without a network.

Nodes stand in layers, each below all that point to it; a few sweeps order the layers so that few arrows cross. Arrows
that pass through a layer bend through a place of their own in it.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from html import escape

WIDTH, HEIGHT, GAP, ROW = 116, 26, 14, 64  # of a box, between boxes, from layer to layer
BEND = 10  # width of a place in which an arrow passes


def edges(text: str) -> list[tuple[str, str]]:
    """Arrows of a flowchart. ``ValueError`` names the first line that is none."""
    found = []
    for line in text.strip().splitlines():
        if line.strip().startswith("flowchart"):
            continue
        match = re.fullmatch(r"\s*(\w+) --> (\w+)\s*", line)
        if not match:
            raise ValueError(f"edges: {line.strip()!r} is no arrow; only lines such as 'a --> b' are drawn.")
        found.append((match[1], match[2]))
    return found


def depths(arrows: list[tuple[str, str]]) -> dict[str, int]:
    """The layer of every node: the longest way to it from above."""
    below = defaultdict(list)
    for a, b in arrows:
        below[a].append(b)
    depth: dict[str, int] = {}

    def visit(node: str, at: int, above: tuple[str, ...]) -> None:
        if node in above:
            raise ValueError(f"depths: there is a circle through {node!r}.")
        if depth.get(node, -1) < at:
            depth[node] = at
            for other in below[node]:
                visit(other, at + 1, (*above, node))

    for node in sorted({a for a, _ in arrows} - {b for _, b in arrows}):
        visit(node, 0, ())
    for node in sorted(depth):  # down to just above what they point to, where that shortens arrows
        lower = [depth[b] for a, b in arrows if a == node]
        if lower and not any(b == node for _, b in arrows):
            depth[node] = min(lower) - 1
    return depth


def svg(text: str, title: str) -> str:
    """The flowchart as an SVG element, in the colors of the text around it."""
    arrows = edges(text)
    depth = depths(arrows)
    layers: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for node in sorted(depth):
        layers[depth[node]].append(node)
    chains = []  # an arrow as the nodes and bends that it passes
    links = []
    for a, b in arrows:
        chain = [a, *(f"{a}>{b}:{i}" for i in range(depth[a] + 1, depth[b])), b]
        for i, bend in enumerate(chain[1:-1], depth[a] + 1):
            layers[i].append(bend)
        chains.append(chain)
        links += list(itertools.pairwise(chain))
    x = _places(layers, links)
    total = max(x[n] + _width(n) / 2 for layer in layers for n in layer) + 2
    low = (len(layers) - 1) * ROW + HEIGHT + 4
    y = {n: 2 + HEIGHT / 2 + i * ROW for i, layer in enumerate(layers) for n in layer}
    parts = [
        f'<svg class="flowchart" role="img" viewBox="0 0 {total:.0f} {low}" width="{total:.0f}" height="{low}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="currentColor"/></marker></defs>'
    ]
    for chain in chains:
        points = [(x[n], y[n] + (HEIGHT / 2 if i == 0 else -HEIGHT / 2 if i == len(chain) - 1 else 0))
                  for i, n in enumerate(chain)]  # fmt: skip
        path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
        for (ax, ay), (bx, by) in itertools.pairwise(points):
            middle = (ay + by) / 2
            path += f"C{ax:.1f} {middle:.1f} {bx:.1f} {middle:.1f} {bx:.1f} {by:.1f}"
        parts.append(
            f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="0.55" marker-end="url(#tip)"/>'
        )
    for node in sorted(depth):
        left, top = x[node] - WIDTH / 2, y[node] - HEIGHT / 2
        parts.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
            f'<text x="{x[node]:.1f}" y="{y[node]:.1f}">{escape(node)}</text>'
        )
    return "".join(parts) + "</svg>"


def _width(node: str) -> int:
    return BEND if ":" in node else WIDTH


def _places(layers: list[list[str]], links: list[tuple[str, str]]) -> dict[str, float]:
    """Horizontal places: neighbours' means decide the order, then push and pull until boxes are apart."""
    near = defaultdict(list)
    for a, b in links:
        near[a].append(b)
        near[b].append(a)
    x = {n: float(i * (WIDTH + GAP)) for layer in layers for i, n in enumerate(layer)}
    for sweep in range(60):
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            wanted = {n: sum(x[m] for m in near[n]) / len(near[n]) if near[n] else x[n] for n in layer}
            if sweep < 40:
                layer.sort(key=lambda n, w=wanted: (w[n], n))
            for n in layer:
                x[n] = wanted[n]
            for _ in range(40):
                for a, b in itertools.pairwise(layer):
                    short = (_width(a) + _width(b)) / 2 + GAP - (x[b] - x[a])
                    if short > 0:
                        x[a], x[b] = x[a] - short / 2, x[b] + short / 2
            for a, b in itertools.pairwise(layer):
                x[b] = max(x[b], x[a] + (_width(a) + _width(b)) / 2 + GAP)
    left = min(x[n] - _width(n) / 2 for layer in layers for n in layer) - 2
    return {n: v - left for n, v in x.items()}
