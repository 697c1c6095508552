"""How long a stream of a GPU waits for a function of the host, after work of several lengths.

    python benchmarks/host_functions.py --backend cuda

Dr.Jit frees the parameters of each OptiX launch by such a function. The work is setting memory to zero, and the
function does nothing. ``flags`` are those of the context: how the host waits for the GPU, 0 automatically (Dr.Jit's), 1
by spinning, 2 by yielding, 4 by blocking. Times are medians, of a process for each of the flags.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import common

#: Bytes that are set to zero before the function, launches that are timed together, and how often.
BYTES, LAUNCHES, TIMES = (1 << 10, 1 << 26, 1 << 28), 200, 5
FLAGS = (0, 1, 2, 4)


def child(flags: int) -> None:
    """Print a row for every size, as JSON."""
    cuda, libc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
    context, stream, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    done = [
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxSetFlags_v2(0, flags),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxPushCurrent_v2(context),
        cuda.cuStreamCreate(ctypes.byref(stream), 0),
        cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(max(BYTES))),
    ]
    assert not any(done), f"CUDA's driver returned {done}"
    nothing = ctypes.cast(libc.labs, ctypes.c_void_p)

    def microseconds(size: int, function: bool) -> float:
        times = []
        for _ in range(TIMES):
            cuda.cuStreamSynchronize(stream)
            start = time.perf_counter()
            for _ in range(LAUNCHES):
                cuda.cuMemsetD8Async(memory, ctypes.c_ubyte(0), ctypes.c_size_t(size), stream)
                if function:
                    cuda.cuLaunchHostFunc(stream, nothing, None)
                cuda.cuMemsetD8Async(memory, ctypes.c_ubyte(0), ctypes.c_size_t(1 << 10), stream)
            cuda.cuStreamSynchronize(stream)
            times.append((time.perf_counter() - start) / LAUNCHES * 1e6)
        return statistics.median(times)

    for size in BYTES:
        work = microseconds(size, function=False)
        row = {"flags": flags, "bytes": size, "work_us": work, "wait_us": microseconds(size, function=True) - work}
        print(json.dumps(row))


def main() -> None:
    args = common.arguments(__doc__, child=dict(type=int, help="flags of the context"))
    if args.child is not None:
        return child(args.child)
    rows: list[dict[str, Any]] = []
    for flags in FLAGS:
        command = [sys.executable, __file__, "--backend", args.backend, "--child", str(flags)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows += [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        print(*rows[-len(BYTES) :], sep="\n", file=sys.stderr, flush=True)
    print(common.write("host-functions", args.backend, rows, args.out))


if __name__ == "__main__":
    main()
