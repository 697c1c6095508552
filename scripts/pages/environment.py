"""What can be installed, and what ``coopnet info`` prints."""

from __future__ import annotations

import re
from pathlib import Path

from .markdown import table

#: What the extras are for, but those for development.
WHAT = {
    "cli": "the command `coopnet`, pictures, plots, checkpoints",
    "train": "checkpoints and a progress bar for `cn.fit`",
    "mesh": "signed distances of meshes in `coopnet fit`",
    "mitsuba": "`coopnet.mitsuba`",
    "cuda": "cuBLAS, which trains networks wider than 64 on the GPU",
    "torch": "`coopnet.interop.torch`",
    "distributed": "several GPUs or hosts for one field",
}


def extras() -> str:
    """The extras for users, from ``pyproject.toml``."""
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    found = dict(re.findall(r'^(\w+) = \[((?:[^\]"]|"[^"]*")*)\]', section, re.M))
    rows = [[f'`pip install "coopnet[{name}]"`', what, found[name].replace('"', "`")] for name, what in WHAT.items()]
    return table(["command", "for", "packages"], rows)


def info() -> str:
    """The output of ``coopnet info`` where the site was built, without paths of that machine."""
    from coopnet import backend

    kept = [row for row in backend.info() if row[0] not in ("kernel cache", "Python", "coopnet")]
    rows = [(name, re.sub(r"(?<!\S)/\S*/", "", found), cure) for name, found, cure in kept]
    return f"```text\n{backend.format_info(rows)}\n```"
