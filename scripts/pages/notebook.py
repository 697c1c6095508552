"""A page of Markdown as a notebook: ``python scripts/pages/notebook.py`` writes ``docs/ten_minutes.ipynb``.

Blocks of Python become cells, the text between them cells of Markdown. Where the page shows the picture that its
program has drawn, the notebook opens that picture.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
PICTURE = 'Image.open("solid.png")'
SAID = "Run the cells from top to bottom. This notebook is made of the page `docs/ten_minutes.md`."


def cells(text: str) -> list[tuple[str, str]]:
    """Kinds and sources of the cells of a page."""
    text = re.sub(r"^!\[.*?\]\(images/.*?\)$", f"```python\n{PICTURE}\n```", text, flags=re.M)
    found = []
    for i, part in enumerate(re.split(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)):
        if part.strip():
            kind = "code" if i % 2 else "markdown"
            found.append((kind, part.strip("\n") if i % 2 else plain(part.strip())))
    title, _, rest = found[0][1].partition("\n")
    found[0] = ("markdown", f"{title}\n\n{SAID}\n{rest}")
    return found


def plain(text: str) -> str:
    """Links to other pages become their names: a notebook travels alone."""
    text = re.sub(r"\[([^\]]*)\]\(([\w/]+\.(?:md|rst))(?:#[\w-]*)?\)", r"\1 (`docs/\2`)", text)
    return re.sub(r"\n?\{download\}`[^`]*`[^\n]*", "", text)


def notebook(page: Path) -> dict[str, Any]:
    """A notebook of the format 4.5."""
    made: list[dict[str, Any]] = []
    for i, (kind, source) in enumerate(cells(page.read_text(encoding="utf-8"))):
        ran = {"execution_count": None, "outputs": []} if kind == "code" else {}
        lines = source.splitlines(keepends=True)
        made.append({"cell_type": kind, "id": f"cell-{i}", "metadata": {}, **ran, "source": lines})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def written(page: Path) -> str:
    return json.dumps(notebook(page), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (DOCS / "ten_minutes.ipynb").write_text(written(DOCS / "ten_minutes.md"), encoding="utf-8")
