"""What it costs to read a checkpoint rather than to map it into memory, which a file cut short meanwhile would end.

python benchmarks/reading.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import common


def main() -> None:
    args = common.arguments(__doc__ or "")
    import numpy as np
    import safetensors
    import safetensors.numpy

    import coopnet as cn

    table = cn.HashGrid(3, n_levels=16, n_features_per_level=2, hashmap_size=2**20)
    field = cn.NeuralField(table, cn.MLP(out_features=3)).build(args.backend)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "field.safetensors"
        cn.save(path, field)
        field_bytes = path.stat().st_size
        plain = Path(folder) / "plain.safetensors"
        safetensors.numpy.save_file({"a": np.ones(25_000_000, np.float32)}, plain)

        def read(**options: str) -> None:
            with safetensors.safe_open(plain, framework="np", **options) as file:
                file.get_tensor("a").sum()

        results["100 MB, read"] = common.median_seconds(lambda: read(backend="pread"))
        results["100 MB, mapped"] = common.median_seconds(read)
        results[f"load() of {field_bytes / 1e6:.0f} MB"] = common.median_seconds(lambda: cn.load(path, args.backend))
    for name, seconds in results.items():
        print(f"{name}: {1e3 * seconds:.1f} ms")
    print(common.write("reading", args.backend, {"seconds": results}, args.out))


if __name__ == "__main__":
    main()
