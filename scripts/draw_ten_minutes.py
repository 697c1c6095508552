"""Runs the program of ``docs/ten_minutes.md`` and keeps its picture as ``docs/images/ten-minutes.png``."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main() -> None:
    text = (DOCS / "ten_minutes.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(compile(code, "ten_minutes.md", "exec"), {"__name__": "ten_minutes"})
        shutil.copy("solid.png", DOCS / "images" / "ten-minutes.png")
        os.chdir(DOCS)
    print(f"{time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
