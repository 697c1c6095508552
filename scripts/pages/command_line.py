"""The page of the command line: what every command says to ``--help``."""

from __future__ import annotations

import contextlib
import io
import os
import re
from unittest import mock

WIDTH = 88  #: columns of the help, as in a terminal


def names() -> list[str]:
    """Commands of the application, in its order; those that are hidden are left out."""
    from coopnet import cli

    shown = [c for c in cli.app.registered_commands if not c.hidden]
    return [c.name or c.callback.__name__.replace("_", "-") for c in shown if c.callback or c.name]


def help_of(*arguments: str) -> str:
    """What the command prints for ``arguments`` and ``--help``."""
    from coopnet import cli

    printed = io.StringIO()
    plain = {"COLUMNS": str(WIDTH), "TERMINAL_WIDTH": str(WIDTH), "NO_COLOR": "1"}
    with mock.patch.dict(os.environ, plain), contextlib.redirect_stdout(printed):
        code = cli.main([*arguments, "--help"])
    if code:
        raise RuntimeError(f"coopnet {' '.join(arguments)} --help ended with exit code {code}.")
    return re.sub(r"[ \t]+$", "", printed.getvalue(), flags=re.M).strip()


def usage() -> str:
    """The help of the whole."""
    return f"```text\n{help_of()}\n```"


def commands() -> str:
    """A section for every command."""
    return "\n\n".join(f"## coopnet {name}\n\n```text\n{help_of(name)}\n```" for name in names())
