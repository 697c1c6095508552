"""Completion: the script that shells get, and bash with it."""

import os
import shutil
import subprocess
import sys

import pytest
from support.machines import ROOT, environment, python

pytest.importorskip("typer")

bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.fixture(scope="module")
def script():
    """What ``coopnet --show-completion`` prints in bash."""
    done = python("-m", "coopnet", "--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_script(script):
    assert "_COOPNET_COMPLETE=complete_bash" in script and "complete -o default" in script


@bash
@pytest.mark.parametrize("typed, expected", [
    ("coopnet ", ["bench", "convert", "export", "fit", "info", "mesh", "render", "uncertainty"]),
    ("coopnet fit --enc", ["--encoding"]), ("coopnet fit --encoding ha", ["hashgrid"]),
])  # fmt: skip
def test_bash_completes(script, tmp_path, typed, expected):
    """The function that the script defines, called as bash does when Tab is pressed."""
    command = tmp_path / "coopnet"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m coopnet "$@"\n')
    command.chmod(0o755)
    words = typed.split() + ([""] if typed.endswith(" ") else [])
    lines = [
        script,
        f"COMP_WORDS=({' '.join(repr(word) for word in words)})",
        f"COMP_CWORD={len(words) - 1}",
        "$(complete -p coopnet | sed -E 's/.*-F ([^ ]+).*/\\1/') coopnet",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ]
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(lines)], env=environment(PATH=path), cwd=ROOT, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == expected, done.stderr


def test_unknown_shell():
    done = python("-m", "coopnet", "--show-completion", "tcsh", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode != 0
