"""Threads of tests, of which none may wait forever."""

from __future__ import annotations

import threading
import time

LONG = 120  # seconds to wait for what takes none, on a machine that does other things


def start(*functions):
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    return threads


def join(threads):
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()


def wait_for(condition):
    limit = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)
