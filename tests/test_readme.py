"""The README's example runs as it stands, and what the documentation names exists."""

from __future__ import annotations

import re

from support.machines import ROOT, python

#: Files that commands in the documentation write.
WRITTEN = ["benchmarks/results/threads-llvm.json"]


def test_example(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    code = code.replace("steps=500", "steps=5, progress=False")
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"-?\d\.\d+", done.stdout)) == 2
    assert (tmp_path / "field.safetensors").exists()


def test_files_and_tests_that_the_documentation_names():
    texts = {p.name: p.read_text(encoding="utf-8") for p in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
    tests = [p for p in (ROOT / "tests").rglob("*.py")]
    functions = {name for p in tests for name in re.findall(r"^def (test_\w+)", p.read_text(encoding="utf-8"), re.M)}
    known = functions | {p.stem for p in tests}
    places = r"(?:benchmarks|coopnet|docs|examples|scripts|tests)"
    files, names = 0, 0
    for name, text in texts.items():
        for path in re.findall(rf"\b{places}/[\w./-]*\.(?:py|md|json)\b", text):
            assert (ROOT / path).exists() or path in WRITTEN, (name, path)
            files += 1
        for test in re.findall(r"\btest_\w+", text):
            assert test in known, (name, test)
            names += 1
    assert files > 30 and names > 30  # it does find them
