"""Runs shade.slang, beside which an exported ``field.slang`` lies, on the first device that slangpy finds.

python shade.py field.weights surface.ppm [--device cpu|vulkan|cuda] [--fields FOLDER of field.slang]
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
    weights = device.create_buffer(size=words.nbytes, struct_size=4, usage=spy.BufferUsage.shader_resource, data=words)
    out = device.create_buffer(size=4 * SIDE * SIDE, struct_size=4, usage=spy.BufferUsage.unordered_access)
    kernel = device.create_compute_kernel(device.load_program("shade.slang", ["shade"]))
    kernel.dispatch(thread_count=[SIDE, SIDE, 1], vars={"weights": weights, "picture": out, "side": SIDE})
    values = out.to_numpy().view(np.float32)[: SIDE * SIDE]
    grey = np.repeat((255 * values + 0.5).astype(np.uint8)[:, None], 3, axis=1)
    args.picture.write_bytes(b"P6\n%d %d\n255\n" % (SIDE, SIDE) + grey.tobytes())


if __name__ == "__main__":
    main()
