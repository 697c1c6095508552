"""Neural texture compression against JPEG and block formats: PSNR over bits per texel, and times of decoding.

Runs ``examples/texture_compression.py``, which says what is compared, and writes its figures beside the machine.

    python benchmarks/texture_compression.py [--quick | --third | --full] [--backend llvm] [--pictures FOLDER]
    python benchmarks/texture_compression.py --search third.texture
    python benchmarks/texture_compression.py --unrounded

``--third`` trains the file of a third of BC7's size for long, and writes ``texture-third-<backend>.json``. BC7 has a
row for an encoder of several modes if the packages ``etcpak`` and ``texture2ddecoder`` are installed. ``--search``
takes a file of that layout, alternates between searching its fine codes and training the rest, and writes
``texture-search-<backend>.json``. ``--unrounded`` trains the same layout with codes that no file can hold, to see what
rounding costs, and writes ``texture-unrounded-<backend>.json``.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import drjit as dr
from common import arguments, write

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))


def searched(start: Path, backend: str, rounds: int = 8, steps: int = 1500) -> list[dict[str, Any]]:
    """PSNR of the file ``start``, and after each search and each training with fixed fine codes."""
    import texture_compression as example
    import texture_maps as sources
    from texture_codec import decode, read, trainable, write

    field = trainable(read(start, backend), backend)
    maps = sources.material(field.encoding.layout.height)
    rows: list[dict[str, Any]] = []

    def row(what: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "x.texture"
            write(path, field)
            decoded, bits = decode(read(path, backend), backend), 8 * path.stat().st_size / maps[..., 0].size
        (made,) = example.table(maps, sources.MAPS, {"": [example.Result(what, bits, decoded)]})
        rows.append(made | {"cpu_s": time.process_time() - begin})
        print(rows[-1], flush=True)

    begin = time.process_time()
    row("as it was")
    for i in range(rounds):
        example.search(field, maps, backend)
        row(f"searched {i + 1}")
        example.fit(field, maps, backend, steps, 1 << 14, lr=3e-3, fine=1e-9, coarse=1.0)
        row(f"trained {i + 1}")
    example.search(field, maps, backend)
    row(f"searched {rounds + 1}")
    write(start.with_name(f"{start.stem}-searched{start.suffix}"), field)
    return rows


def unrounded(backend: str) -> list[dict[str, Any]]:
    """PSNR of the layout and training of ``--third`` with codes that are not rounded: what no file can pass."""
    import texture_codec
    import texture_compression as example
    import texture_maps as sources

    def clipped(value: Any, bits: int) -> Any:
        top = 2**bits - 1
        return dr.clip((dr.detach(value) + 1) * (top / 2), 0, top)

    texture_codec.quantized = clipped
    effort, maps = example.THIRD, sources.material(example.THIRD.size)
    layout = texture_codec.Layout(*maps.shape, hidden=effort.hidden, **example.SIZES["third"])
    decoded = texture_codec.decode(example.train(maps, layout, backend, effort.steps, effort.batch), backend)
    (row,) = example.table(maps, sources.MAPS, {"": [example.Result("not rounded", 0.0, decoded)]})
    return [{name: value for name, value in row.items() if name != "bits"} | {"steps": effort.steps}]


def main() -> None:
    description = (__doc__ or "").split("\n")[0]
    quick = {"action": "store_true", "help": "small maps, hardly trained: does it run?"}
    full = {"action": "store_true", "help": "large maps, trained for long; for a GPU"}
    third = {"action": "store_true", "help": "only a third of BC7's size, trained for long"}
    pictures = {"type": Path, "help": "folder to draw into"}
    search = {"type": Path, "help": "a file to improve"}
    exact = {"action": "store_true", "help": "a third of BC7's size, if codes were not rounded"}
    args = arguments(
        description, quick=quick, third=third, full=full, pictures=pictures, search=search, unrounded=exact
    )
    if args.unrounded:
        print(write("texture-unrounded", args.backend, unrounded(args.backend), args.out))
        return
    if args.search:
        print(write("texture-search", args.backend, searched(args.search, args.backend), args.out))
        return
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
