"""What tests of the command line share."""

from __future__ import annotations


def fails(capsys, arguments, code, *words):
    """The command must end with ``code`` and one line on standard error that holds ``words``."""
    from coopnet import cli  # needs typer

    capsys.readouterr()
    assert cli.main([str(a) for a in arguments]) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("coopnet: error: ")
    for word in words:
        assert str(word) in lines[0], lines[0]
