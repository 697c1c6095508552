"""Handles Ctrl-C while the command line is being imported, which takes a second."""

from __future__ import annotations

import os
import signal
import sys
import threading
from itertools import pairwise
from typing import Any


def is_running() -> bool:
    """Is this process the ``coopnet`` command, or ``python -m coopnet``?"""
    name = os.path.basename((getattr(sys, "argv", None) or [""])[0])
    if name == "-m":  # while Python imports the package to run
        words = sys.orig_argv
        return any(a == "-m" and b.split(".")[0] == "coopnet" for a, b in pairwise(words))
    return os.path.splitext(name)[0] == "coopnet"


def _end(number: int, frame: Any) -> None:
    # Do not raise: a package that is being imported may catch the exception, or raise another one.
    os.write(2, b"coopnet: error: interrupted.\n")
    os._exit(130)


def importing() -> None:
    """From now on, Ctrl-C ends the command at once: there is nothing to save yet."""
    main = threading.current_thread() is threading.main_thread()
    if main and is_running() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def imported() -> None:
    """From now on, Ctrl-C raises ``KeyboardInterrupt`` again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
