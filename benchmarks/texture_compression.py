"""Neural texture compression against JPEG and block formats: PSNR over bits per texel, and times of decoding.

Runs ``examples/texture_compression.py``, which says what is compared, and writes its figures beside the machine.

    python benchmarks/texture_compression.py [--quick | --third | --full] [--backend llvm] [--pictures FOLDER]

``--third`` trains the file of a third of BC7's size for long, and writes ``texture-third-<backend>.json``. BC7 has a
row for an encoder of several modes if the packages ``etcpak`` and ``texture2ddecoder`` are installed.
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
    third = {"action": "store_true", "help": "only a third of BC7's size, trained for long"}
    pictures = {"type": Path, "help": "folder to draw into"}
    args = arguments(description, quick=quick, third=third, full=full, pictures=pictures)
    import texture_compression as example
    import texture_maps as sources
    import texture_plots as plots

    kinds = {"quick": example.QUICK, "third": example.THIRD, "full": example.FULL}
    effort = next((kind for name, kind in kinds.items() if getattr(args, name)), example.Effort())
    maps = sources.material(effort.size)
    with tempfile.TemporaryDirectory() as folder:
        found, costs = example.study(maps, list(sources.MAPS.values()), args.backend, effort, Path(folder))
    rows = example.table(maps, sources.MAPS, found)
    results = {"effort": effort._asdict(), "channels": maps.shape[2], "codecs": rows, "neural": costs}
    print(write("texture-third" if args.third else "texture-compression", args.backend, results, args.out))
    if args.pictures:
        args.pictures.mkdir(parents=True, exist_ok=True)
        for path in plots.draw(args.pictures, maps, sources.MAPS, found, example.psnr):
            print(path)


if __name__ == "__main__":
    main()
