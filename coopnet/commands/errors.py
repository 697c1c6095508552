"""Exit codes and errors: one line, in the terms of the command line."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from ..checks.memory import NoRoom

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
#: The last lines of every ``--help``.
EXIT_CODES = (
    "Exit codes: 0 done; 1 failed, with one line on standard error that begins with 'coopnet: error:'; 2 wrong usage, "
    "with such a line, too; 130 interrupted (Ctrl-C)."
)


class Stopped(Exception):
    """Ctrl-C, after its message has been printed: exit code 130."""


def complain(what: str, code: int) -> int:
    """Print the error in one line; returns ``code``."""
    print("coopnet: error:", in_one_line(what), file=sys.stderr)
    return code


def in_one_line(what: str) -> str:
    """``what``, its lines one after the other. Spaces stay, which may be those of a file's name."""
    return " ".join(line.strip() for line in what.splitlines() if line.strip())


def text(error: BaseException) -> str:
    """The message of an error, with the file's name if the system gave it."""
    if isinstance(error, MemoryError):
        return "not enough memory."
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename!r}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _plain(error: BaseException) -> str:
    """The library's message, without the name of its function."""
    functions = r"^(load|read|save|fit|fit_image|fit_mesh|from_config|construct|export|View|[\w.]*load_tcnn): "
    return re.sub(functions, "", text(error))


@contextmanager
def about(path: Path) -> Iterator[None]:
    """Names the file in errors of the library, whose messages are for programmers."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        if isinstance(error, NoRoom):
            raise ValueError(_plain(error)) from None  # the file is not the cause
        if isinstance(error, OSError) and error.filename not in (None, str(path)):
            raise  # names another file
        said = _plain(error)
        raise ValueError(said if str(path) in said else f"{str(path)!r}: {said}") from None


@contextmanager
def about_options() -> Iterator[None]:
    """Turns errors of the library about arguments into errors of usage."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(_plain(error)) from None


@contextmanager
def telling_warnings() -> Iterator[list[str]]:
    """Prints the warnings of a block after it, a line each, except messages in the list.

    Warnings for programmers, such as those about unclosed files and deprecated names, are not printed.
    """
    silent: list[str] = []
    noted: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("ignore")
            for meant in (UserWarning, RuntimeWarning):
                warnings.simplefilter("default", meant)
            yield silent
    finally:
        for warning in noted:
            if str(warning.message) not in silent:
                print("coopnet: warning:", in_one_line(str(warning.message)), file=sys.stderr)
