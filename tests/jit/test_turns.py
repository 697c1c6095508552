"""The lock that threads take in turn: who waits longest has it next, and no exception leaves it taken."""

from __future__ import annotations

import signal
import sys
import threading
from collections import deque

import pytest
from support.threads import LONG, join, start, wait_for

from coopnet.jit import turns
from coopnet.jit.turns import Turns


def test_first_come_first_served():
    lock, order = Turns(), []

    def take(i):
        with lock:
            order.append(i)

    with lock:
        threads = []
        for i in range(4):
            threads += start(lambda i=i: take(i))
            wait_for(lambda i=i: len(lock.queue) == i + 1)
        assert order == []
    join(threads)
    assert order == [0, 1, 2, 3] and lock.owner is None


def test_taken_several_times():
    lock, got = Turns(), []
    with lock:
        with lock:
            assert lock.held() and lock.depth == 2
        thread = start(lambda: lock.__enter__() or got.append(lock.held()) or lock.__exit__())
        wait_for(lambda: lock.queue)
        with lock:
            lock.since -= 1
            lock.hand_on()  # not while it is held twice
            assert not got
        assert lock.held() and not got
        lock.hand_on()
        join(thread)
        assert got == [True] and lock.held()
    assert lock.owner is None and not lock.held()


def test_a_turn_lasts(monkeypatch):
    monkeypatch.setattr(turns, "TURN_SECONDS", 1000.0)
    lock, got = Turns(), []
    with lock:
        thread = start(lambda: lock.__enter__() or got.append(0) or lock.__exit__())
        wait_for(lambda: lock.queue)
        lock.hand_on()
        assert not got
        lock.since -= 1001
        lock.hand_on()
        assert got
    join(thread)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="Windows cannot send a signal to a thread")
@pytest.mark.usefixtures("ctrl_c_works")
def test_ctrl_c_while_waiting():
    lock, release = Turns(), threading.Event()

    def hold():
        with lock:
            release.wait(LONG)

    thread = start(hold)
    wait_for(lambda: lock.owner is not None)

    def interrupt():
        wait_for(lambda: lock.queue)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    other = start(interrupt)
    with pytest.raises(KeyboardInterrupt), lock:
        pass
    assert not lock.held() and not lock.queue
    lock.__exit__()  # as a with statement does around it: it is not this thread's to leave
    assert lock.owner is not None
    release.set()
    join([*thread, *other])
    with lock:
        assert lock.held()


def test_ctrl_c_while_a_turn_is_taken():
    """At the very moment: whoever comes next finds nobody there."""

    class Queue(deque):
        def popleft(self):
            raise KeyboardInterrupt

    lock = Turns()
    lock.queue = Queue()
    with pytest.raises(KeyboardInterrupt), lock:
        pass
    assert lock.owner is None and not lock.queue


def test_waiting_for_a_while_is_no_error():
    """Who joins a thread with a time limit goes on after it, and so does the thread."""
    lock, got = Turns(), []
    main = threading.main_thread().ident

    def joins():
        frame = sys._current_frames()[main]  # of join itself, or of what it calls
        return "join" in (frame.f_code.co_name, frame.f_back.f_code.co_name)

    def take():
        wait_for(joins)
        with lock:
            got.append(0)

    with lock:
        threads = start(take)
        threads[0].join(1)
    join(threads)
    assert got == [0]


def test_forget():
    lock = Turns()
    lock.__enter__()
    lock.forget()
    assert lock.owner is None and not lock.held()
