"""The NVIDIA driver and OptiX, queried without Dr.Jit, for messages that explain why Dr.Jit finds no GPU.

Relies on the names of the libraries that Dr.Jit loads, on its variables ``DRJIT_LIBCUDA_PATH`` and
``DRJIT_LIBOPTIX_PATH``, and on the driver's own interface. Checked with Dr.Jit 1.5.0.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any


@lru_cache(maxsize=1)
def has_optix() -> bool:
    """Can OptiX be loaded? It comes with the driver, but containers often leave it out.

    >>> usable = cn.backend.has_optix()
    """
    if sys.platform == "win32":
        return True  # Dr.Jit finds it beside the display driver
    try:
        ctypes.CDLL(os.environ.get("DRJIT_LIBOPTIX_PATH") or "libnvoptix.so.1")
    except OSError:
        return False
    return True


@lru_cache(maxsize=1)
def driver() -> tuple[str, str, list[str]]:
    """Driver version, CUDA version and GPU names as the driver reports them; empty without a driver."""
    try:
        lib = _library()
    except OSError:
        return "", "", []
    number, count, names = ctypes.c_int(), ctypes.c_int(), []
    lib.cuDriverGetVersion(ctypes.byref(number))
    cuda = f"{number.value // 1000}.{number.value % 1000 // 10}"
    if lib.cuInit(0) == 0 and lib.cuDeviceGetCount(ctypes.byref(count)) == 0:
        for i in range(count.value):
            device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
            if lib.cuDeviceGet(ctypes.byref(device), i) == 0 and lib.cuDeviceGetName(name, 256, device) == 0:
                names.append(name.value.decode(errors="replace"))
    version = None
    with suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text()
        version = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return version[1] if version else "", cuda, names


def gpu_id(number: int) -> str:
    """The UUID of the GPU with this number among the visible ones."""
    device, buffer = ctypes.c_int(), ctypes.create_string_buffer(16)
    lib = _library()
    if lib.cuDeviceGet(ctypes.byref(device), number) or lib.cuDeviceGetUuid(buffer, device):
        raise RuntimeError(f"gpu_id: the driver does not know the GPU number {number}.")
    return buffer.raw.hex()


@lru_cache(maxsize=16)
def memory(number: int) -> int:
    """Bytes of memory of the GPU with this number among the visible ones, 0 if the driver does not know it."""
    device, size = ctypes.c_int(), ctypes.c_size_t()
    lib = _library()
    failed = lib.cuDeviceGet(ctypes.byref(device), number) or lib.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    return 0 if failed else size.value


def _library() -> Any:
    """The driver's library; raises ``OSError`` if there is none."""
    if sys.platform == "win32":
        return ctypes.CDLL("nvcuda.dll")
    return ctypes.CDLL(os.environ.get("DRJIT_LIBCUDA_PATH") or "libcuda.so.1")
