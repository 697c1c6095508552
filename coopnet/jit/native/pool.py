"""Work for Dr.Jit's own threads on the CPU.

These threads spin for 20 ms after a kernel, during which the work of other threads takes up to twice as long
(``docs/performance/gradients.md`` has figures). So work that follows a kernel is best done by them. Relies on the
functions that ``libnanothread`` exports and on Dr.Jit's threads being its default pool. Checked with Dr.Jit 1.5.0.
Without these functions, a Python thread pool does the work.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import drjit as dr

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_void_p)


def parallel(function: Callable[[int], Any], count: int) -> list[Any]:
    """``[function(0), ..., function(count - 1)]``, in parallel; raises the first exception when all are done."""
    if count < 2:
        return [function(i) for i in range(count)]
    library = _library()
    if library is None:
        return list(_executor().map(function, range(count)))
    results: list[Any] = [None] * count
    errors: list[BaseException | None] = [None] * count

    def work(i: int, _: Any) -> None:
        try:
            results[i] = function(i)
        except BaseException as error:  # no exception may leave this function: its caller is not Python code
            errors[i] = error

    function_pointer = _FUNCTION(work)  # to be kept until the work is done
    task = library.task_submit_dep(None, None, 0, count, function_pointer, None, 0, None, 0, 0)
    library.task_wait_and_release(task)
    for error in errors:
        if error is not None:
            raise error
    return results


@functools.lru_cache(maxsize=1)
def _library() -> Any:
    for path in glob.glob(os.path.join(os.path.dirname(dr.__file__), "*nanothread*")):
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(path)
            u32, pointer, integer = ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int
            library.task_submit_dep.argtypes = [
                pointer, pointer, u32, u32, _FUNCTION, pointer, u32, pointer, integer, integer,
            ]  # fmt: skip
            library.task_submit_dep.restype = pointer
            library.task_wait_and_release.argtypes, library.task_wait_and_release.restype = [pointer], None
            return library
    return None


@functools.lru_cache(maxsize=1)
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, dr.thread_count()), thread_name_prefix="coopnet")
