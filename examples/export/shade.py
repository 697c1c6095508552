"""Runs shade.slang, beside which an exported ``field.slang`` lies, on the first device that slangpy finds.

python shade.py field.slang.weights surface.ppm [--device cpu|vulkan|cuda] [--fields FOLDER of field.slang]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import slangpy as spy

SIDE = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--device", default="automatic", choices=["automatic", "cpu", "vulkan", "cuda"])
    parser.add_argument("--fields", type=Path, default=Path())
    args = parser.parse_args()
    folders = [str(Path(__file__).resolve().parent), str(args.fields.resolve())]
    options = spy.SlangCompilerOptions({"include_paths": folders})
    try:
        device = spy.Device(type=getattr(spy.DeviceType, args.device), compiler_options=options)
    except RuntimeError:
        if args.device != "automatic":
            raise
        device = spy.Device(type=spy.DeviceType.cpu, compiler_options=options)
    words = np.fromfile(args.weights, np.uint32)
    # of bytes: with a struct_size, the CPU's device would give the number of elements as its size
    weights = device.create_buffer(size=words.nbytes, usage=spy.BufferUsage.shader_resource, data=words)
    out = device.create_buffer(size=4 * SIDE * SIDE, struct_size=4, usage=spy.BufferUsage.unordered_access)
    given = {"weights": weights, "picture": out, "side": SIDE}
    for entry, threads in (("check", [1, 1, 1]), ("shade", [SIDE, SIDE, 1])):
        kernel = device.create_compute_kernel(device.load_program("shade.slang", [entry]))
        kernel.dispatch(thread_count=threads, vars=given)
        values = out.to_numpy().view(np.float32)[: SIDE * SIDE]
        if entry == "check" and values[0] != 1:
            raise SystemExit(f"{args.weights}: not the weights of this field")
    grey = np.repeat((255 * values + 0.5).astype(np.uint8)[:, None], 3, axis=1)
    args.picture.write_bytes(b"P6\n%d %d\n255\n" % (SIDE, SIDE) + grey.tobytes())


if __name__ == "__main__":
    main()
