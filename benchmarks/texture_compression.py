"""Neural texture compression against JPEG and block formats: PSNR over bits per texel, and times of decoding.

Runs ``examples/texture_compression.py``, which says what is compared, and writes its figures beside the machine.

    python benchmarks/texture_compression.py [--quick | --full] [--backend llvm] [--pictures FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from common import arguments, write

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))


def main() -> None:
    description = (__doc__ or "").split("\n")[0]
    quick = {"action": "store_true", "help": "small maps, hardly trained: does it run?"}
    full = {"action": "store_true", "help": "large maps, trained for long; for a GPU"}
    pictures = {"type": Path, "help": "folder to draw into"}
    args = arguments(description, quick=quick, full=full, pictures=pictures)
    import texture_compression as example
    import texture_maps as sources
    import texture_plots as plots

    effort = example.QUICK if args.quick else example.FULL if args.full else example.Effort()
    maps = sources.material(effort.size)
    with tempfile.TemporaryDirectory() as folder:
        found, costs = example.study(maps, list(sources.MAPS.values()), args.backend, effort, Path(folder))
    rows = example.table(maps, sources.MAPS, found)
    results = {"effort": effort._asdict(), "channels": maps.shape[2], "codecs": rows, "neural": costs}
    print(write("texture-compression", args.backend, results, args.out))
    if args.pictures:
        args.pictures.mkdir(parents=True, exist_ok=True)
        for path in plots.draw(args.pictures, maps, sources.MAPS, found, example.psnr):
            print(path)


if __name__ == "__main__":
    main()
