"""What plots and tables have in common: result files, and the best variant of each peer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: Peers in the order of columns and legends.
NAMES = {
    "coopnet": "coopnet",
    "drjit-coop": "drjit.nn, CoopVec",
    "drjit-tensor": "drjit.nn, tensors",
    "torch": "PyTorch",
    "torch-compile": "torch.compile",
}


def load(folder: Path, backend: str) -> dict[str, Any] | None:
    """The result file of a backend, or ``None`` where it was not measured."""
    path = folder / f"networks-{backend}.json"
    return json.loads(path.read_text()) if path.exists() else None


def best(entries: list[dict], value: str = "wall_ms", **where: Any) -> dict | None:
    """The entry with the smallest ``value`` among those that have ``where``: frozen or not, whichever is faster."""
    found = [e for e in entries if e[value] is not None and all(e[k] == v for k, v in where.items())]
    return min(found, key=lambda e: e[value]) if found else None


def peers(entries: list[dict]) -> list[str]:
    found = {e["peer"] for e in entries}
    return [name for name in NAMES if name in found]


def place(machine: dict[str, Any]) -> str:
    """Machine, versions and date in one line."""
    cpu, gpu = f"{machine['cpu']}, {machine['cores']} cores", machine["found"].get("GPU", "none")
    versions = ", ".join(
        f"{label} {machine['versions'][name]}"
        for name, label in (("drjit", "Dr.Jit"), ("torch", "PyTorch"))
        if name in machine["versions"]
    )
    return f"{gpu if machine['backend'] == 'cuda' else cpu}; {versions}; {machine['date']}"
