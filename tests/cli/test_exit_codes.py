"""Exit codes: in every help, and what happens."""

import warnings

import pytest
from support.command_line import fails
from support.machines import python

pytest.importorskip("typer")

from coopnet import cli
from coopnet.commands import errors

COMMANDS = ["info", "fit", "render", "mesh", "uncertainty", "bench", "convert", "export"]


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS)])
def test_documented_in_help(arguments, capsys):
    assert cli.main([*arguments, "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert " ".join(errors.EXIT_CODES.split()) in said
    for code in (errors.DONE, errors.FAILED, errors.USAGE, errors.INTERRUPTED):
        assert f" {code} " in said


def test_every_command_is_listed(capsys):
    assert cli.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"\n  {name} " in said for name in COMMANDS)


@pytest.mark.parametrize("arguments, code", [
    (["info", "--json"], 0), (["render", "none.safetensors", "-o", "x.png", "--size", "2x2"], 1), (["info", "--no"], 2),
])  # fmt: skip
def test_of_the_process(arguments, code):
    """What a shell sees: the code, and one line of error or none."""
    done = python("-m", "coopnet", *arguments)
    assert done.returncode == code
    lines = done.stderr.splitlines()
    assert len(lines) == (code != 0) and all(line.startswith("coopnet: error: ") for line in lines)


def test_words_of_the_library_become_a_line(capsys, tmp_path):
    (tmp_path / "a.json").write_text('{"network": {"otype": "Fully"}}')
    fails(capsys, ["convert", tmp_path / "a.json", "-o", tmp_path / "x.safetensors", "--inputs", 2, "--outputs", 3], 1,
          str(tmp_path / "a.json"), "Fully")  # fmt: skip


def test_warnings_of_a_command_that_fails(capsys):
    """They are told, too: they may say why."""
    with pytest.raises(KeyError), errors.telling_warnings():
        warnings.warn("the reason", UserWarning, stacklevel=1)
        raise KeyError("name")
    assert capsys.readouterr().err == "coopnet: warning: the reason\n"
