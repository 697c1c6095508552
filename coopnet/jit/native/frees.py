"""Memory of launches that is freed when the host next waits for the GPU, and not after every evaluation.

Dr.Jit passes the parameters of an OptiX launch to the GPU in memory that it must free later. At the end of the
evaluation it queues a function of the host that does so, and the GPU waits for this function: for 70 to 110
microseconds on an H200 (``waiting-cuda.json``). That is all that ``CUDAThreadState::barrier`` does; ``sync_thread``
does it, too. So within :func:`postponed_frees`, evaluations call the method of the base class, which does nothing, and
``sync_thread`` frees.

To this end, an entry is replaced in the table of virtual functions of that class, in Dr.Jit's own memory. Nothing is
done unless Dr.Jit has exactly the version that this was checked with, its library names the class and both methods, and
exactly one entry of the table is the method. Relies on these names and on what the methods do. Checked with Dr.Jit
1.5.0.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import drjit as dr

from .. import CHECKED
from .core import function

#: The table, its entry, what takes its place, and an exported function by which the addresses of the others are known.
TABLE, METHOD = "_ZTV15CUDAThreadState", "_ZN15CUDAThreadState7barrierEv"
NOTHING, KNOWN = "_ZN11ThreadState7barrierEv", "_Z15jit_cuda_streamv"
_SYMBOLS, _READ, _WRITE = 2, 1, 2  # SHT_SYMTAB, PROT_READ, PROT_WRITE


class Entry(NamedTuple):
    """The address of an entry, and its two values."""

    address: int
    method: int
    nothing: int


_open = 0  #: blocks that are open, in all threads


@contextmanager
def postponed_frees() -> Iterator[None]:
    """A block in which evaluations on CUDA free no memory of launches; ``sync_thread`` does.

    A thread must hold the lock of :mod:`coopnet.jit.turns` when it enters and leaves.
    """
    global _open
    entry = find()
    if entry is None:
        yield
        return
    if _open == 0:
        _write(entry.address, entry.nothing)
    _open += 1
    try:
        yield
    finally:
        _open -= 1
        if _open == 0:
            _write(entry.address, entry.method)


@functools.cache
def find() -> Entry | None:
    """The entry to replace, or ``None`` if this is another Dr.Jit, or another system, than those that are known."""
    known = function(KNOWN)
    if sys.platform != "linux" or dr.__version__ != CHECKED or known is None:
        return None
    try:
        found = symbols(Path(dr.__file__).with_name("libdrjit-core.so").read_bytes(), [TABLE, METHOD, NOTHING, KNOWN])
    except (OSError, struct.error, ValueError):
        return None
    if len(found) < 4:
        return None
    base = (ctypes.cast(known, ctypes.c_void_p).value or 0) - found[KNOWN][0]
    method, nothing = base + found[METHOD][0], base + found[NOTHING][0]
    start, size = found[TABLE]
    places = range(base + start, base + start + size, 8)
    entries = [place for place in places if ctypes.c_uint64.from_address(place).value == method]
    changeable = len(entries) == 1 and _only_read(entries[0]) and _writable(entries[0])
    return Entry(entries[0], method, nothing) if changeable else None


def symbols(data: bytes, names: list[str]) -> dict[str, tuple[int, int]]:
    """Values and sizes of symbols in the contents of a library (ELF with 64 bits, System V ABI, chapter 4)."""
    if data[:6] != b"\x7fELF\x02\x01":  # 64 bits, little endian
        return {}
    (sections,), (size, count) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<HH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, sections + i * size) for i in range(count)]
    wanted, found = {name.encode(): name for name in names}, {}
    for _, kind, _, _, start, length, link, *_ in headers:
        if kind != _SYMBOLS:
            continue
        begin = headers[link][4]
        places = {data.find(b"\0" + name + b"\0", begin, begin + headers[link][5]) + 1 - begin: name for name in wanted}
        for name, _, _, _, value, extent in struct.iter_unpack("<IBBHQQ", data[start : start + length]):
            if name in places:
                found[wanted[places[name]]] = value, extent
    return found


def _only_read(address: int) -> bool:
    """Can the page of ``address`` be read, but neither written nor executed? So it is left."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        (first, _, last), how = line.split()[0].partition("-"), line.split()[1]
        if int(first, 16) <= address < int(last, 16):
            return how == "r--p"
    return False


def _writable(address: int) -> bool:
    """Can the page of ``address`` be made writable? It holds the value that is there afterwards."""
    try:
        _write(address, ctypes.c_uint64.from_address(address).value)
    except OSError:
        return False
    return True


def _write(address: int, value: int) -> None:
    """Replace the eight bytes at ``address``, in a page that can only be read before and after."""
    page = address // mmap.PAGESIZE * mmap.PAGESIZE
    _protect(page, _READ | _WRITE)
    ctypes.c_uint64.from_address(address).value = value
    _protect(page, _READ)


def _protect(page: int, how: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), ctypes.c_int(how)):
        raise OSError(ctypes.get_errno(), "mprotect")
