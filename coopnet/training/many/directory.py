"""The directory of the results of many jobs: a checkpoint for each, and one file with the outcome of each."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from ...checks import ensure, is_int
from ...io.files import file_name
from ..result import FitResult

RESULTS = "results.jsonl"


class Directory:
    """``number.safetensors`` for each job, and :data:`RESULTS`, a line of JSON for each that has ended.

    Several processes may write to that file. Each line is appended by one write, and begins and ends with a line break,
    so that an incomplete line does not damage the next. The last line of a job counts.
    """

    def __init__(self, path: Any, jobs: int):
        self.path = None if path is None else Path(file_name(path, "fit_many", "directory"))
        self.digits = max(4, len(str(jobs - 1)))
        if self.path is not None:
            exists = not self.path.exists() or self.path.is_dir()
            ensure(exists, f"fit_many: directory {str(self.path)!r} is a file.", NotADirectoryError)
            self.path.mkdir(parents=True, exist_ok=True)

    def checkpoint(self, number: int) -> Path | None:
        return None if self.path is None else self.path / f"{number:0{self.digits}}.safetensors"

    def diverged(self) -> dict[int, dict[str, Any]]:
        """Results of the jobs that diverged, which are not trained again unless their checkpoint has been removed."""
        diverged = {number: outcome for number, outcome in self._ended().items() if outcome["stopped"] == "diverged"}
        return {k: v for k, v in diverged.items() if not v["file"] or self.checkpoint(k).exists()}  # type: ignore[union-attr]

    def _ended(self) -> dict[int, dict[str, Any]]:
        outcomes: dict[int, dict[str, Any]] = {}
        if self.path is None or not (self.path / RESULTS).exists():
            return outcomes
        for line in (self.path / RESULTS).read_text(errors="replace").splitlines():
            try:
                entry = json.loads(line)
                job, outcome = entry["job"], {name: entry[name] for name in ("stopped", "file", "message")}
            except (ValueError, TypeError, KeyError, RecursionError):  # an incomplete line, or of another program
                continue
            if is_int(job, 0) and isinstance(outcome["message"], str):
                outcomes[job] = outcome
        return outcomes

    def note(self, number: int, seed: int, result: FitResult) -> None:
        """Append the outcome of a job to the file of results."""
        if self.path is None:
            return
        checkpoint = self.checkpoint(number)
        assert checkpoint is not None
        last = result.losses[-1] if result.losses and math.isfinite(result.losses[-1]) else None
        entry = {
            "job": number, "file": checkpoint.name if checkpoint.exists() else None, "seed": seed,
            "steps": result.steps, "loss": last, "stopped": result.stopped, "seconds": round(result.seconds, 6),
            "skipped": result.skipped, "message": result.message,
        }  # fmt: skip
        line = f"\n{json.dumps(entry)}\n".encode()
        descriptor = os.open(self.path / RESULTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
