"""Cards of the exported pages that the site has."""

from __future__ import annotations

from .performance import load, place


def cards() -> str:
    """A card for each page of ``docs/_static/export``."""
    found = load("export-gallery-llvm")
    lines = ["::::{grid} 1 2 2 2", ":gutter: 2", ""]
    for name, page in found["results"].items():
        lines += [
            f":::{{grid-item-card}} {page['title']}",
            f":link: _static/export/{name}.html",
            f":img-bottom: images/export-{name}.png",
            f":img-alt: {page['title']}",
            "",
            f"{page['said']}; trained in {page['seconds']} s; {page['bytes'] / 1000:.0f} kB.",
            ":::",
            "",
        ]
    return "\n".join([*lines, "::::", "", f"Trained on: {place(found['machine'])}."])
