"""The ``coopnet`` command: info on the machine, training and rendering of fields, benchmarks, conversion, export.

Errors are one line on standard error that begins with ``coopnet: error:``. Exit codes: 0 done, 1 failed, 2 wrong
usage, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated

from . import command

try:
    import typer
except ImportError:
    sys.exit("coopnet: error: the command line needs the package typer; pip install typer, or coopnet[cli]")

from .commands.arguments import parse_size  # noqa: F401
from .commands.bench import bench
from .commands.convert import convert
from .commands.errors import DONE, EXIT_CODES, FAILED, INTERRUPTED, USAGE, Stopped, complain, text
from .commands.export import export
from .commands.fit import fit
from .commands.info import info
from .commands.mesh import mesh
from .commands.render import render
from .commands.uncertainty import uncertainty
from .training.interrupts import caused_by_interrupt
from .version import __version__

SAID = "interrupted."

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for function in (info, fit, render, mesh, uncertainty, bench, convert, export):
    app.command(epilog=EXIT_CODES)(function)


def _show_version(wanted: bool) -> None:
    if wanted:
        print("coopnet", __version__)
        raise typer.Exit


@app.callback(epilog=EXIT_CODES)
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Neural fields with dropout on Dr.Jit."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command with ``arguments`` (those of the process if ``None``); returns the exit code."""
    code = _run(arguments)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()  # raises here if the disk is full or the pipe closed
        return code
    except OSError as error:
        with suppress(OSError, ValueError):  # the interpreter flushes again when it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        silent = code != DONE or isinstance(error, BrokenPipeError)  # an error has been printed already
        return code or FAILED if silent else complain(text(error), FAILED)


def _run(arguments: list[str] | None) -> int:
    with suppress(AttributeError, ValueError):  # no error if the output's encoding lacks a character
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        command.imported()
        code = app(args=arguments or ["--help"], prog_name="coopnet", standalone_mode=False)
        if code == INTERRUPTED:  # typer raises this, without a message, after Ctrl-C
            raise KeyboardInterrupt
        return code if isinstance(code, int) else DONE
    except Stopped:
        return INTERRUPTED
    except (KeyboardInterrupt, typer.Abort):
        return complain(SAID, INTERRUPTED)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the interpreter's own flush at exit
        return FAILED
    except RuntimeError as error:  # the only type of errors that Dr.Jit raises
        return complain(SAID, INTERRUPTED) if caused_by_interrupt(error) else complain(text(error), FAILED)
    except (OSError, ImportError, MemoryError, ValueError, TypeError) as error:
        return complain(text(error), FAILED)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return complain(
            error.format_message().replace(": Value error, ", ": "), USAGE
        )  # an error of typer's about the arguments


if __name__ == "__main__":
    sys.exit(main())
