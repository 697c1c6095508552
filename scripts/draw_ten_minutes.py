"""Runs the program of ``docs/ten_minutes.md``, keeps its picture, and measures what it has made.

    python scripts/draw_ten_minutes.py

The picture is ``docs/images/ten-minutes.png``. ``benchmarks/results/ten-minutes-<backend>.json`` has the field's
parameters, the bytes of its file, the last loss, and of a frame the median time and what kernels it runs, by lanes.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "benchmarks"))

import common  # noqa: E402 - the benchmarks' own


def measure(names: dict[str, Any], file: Path) -> dict[str, Any]:
    """Of what the program leaves behind."""
    import drjit as dr

    def frame() -> None:
        dr.eval(names["trace"](names["field"], names["o"], names["d"]))
        dr.sync_thread()

    ms = 1e3 * common.median_seconds(frame, repeat=15, warmup=3)
    with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
        dr.kernel_history_clear()
        frame()
        lanes = [kernel["size"] for kernel in dr.kernel_history()]
    return {
        "size": names["SIZE"],
        "parameters": sum(dr.width(v) for v in names["field"].values()),
        "bytes": file.stat().st_size,
        "steps": names["result"].steps,
        "loss": float(names["result"].losses[-1]),
        "frame_ms": ms,
        "kernels": lanes,
    }


def main() -> None:
    from coopnet.backend import require

    text = (DOCS / "ten_minutes.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    start = time.perf_counter()
    names: dict[str, Any] = {"__name__": "ten_minutes"}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(compile(code, "ten_minutes.md", "exec"), names)
        print(f"{time.perf_counter() - start:.1f} s")
        shutil.copy("solid.png", DOCS / "images" / "ten-minutes.png")
        found = measure(names, Path("solid.safetensors"))
        os.chdir(DOCS)
    print(found, common.write("ten-minutes", require("auto"), found))


if __name__ == "__main__":
    main()
