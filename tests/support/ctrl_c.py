"""Ctrl-C in tests, also in a suite that ignores it, as what a shell starts in the background does."""

from __future__ import annotations

import signal

import pytest


@pytest.fixture
def ctrl_c_works():
    """Python's own handler, as in a program at a terminal; processes that the test starts don't ignore it, either."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
