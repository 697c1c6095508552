"""Two runs of one benchmark, such as of two versions of the library, side by side.

    python benchmarks/side_by_side.py before/networks-cuda.json after/networks-cuda.json --out side-by-side-cuda.json

Entries of the two files that agree in everything but what was measured are paired, and the ratios of their times and
sizes, after to before, summed up. Several files may be given, first all of before, then all of after; of entries that
stand in several, the lowest figure counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: What is compared, and the file's word for it.
MEASURES = {
    "wall_ms": "wall time", "kernel_ms": "kernel time", "peak_bytes": "peak memory", "extra_bytes": "extra memory",
    "milliseconds": "time", "microseconds": "tracing", "call": "call", "value_and_grad": "value and gradient",
    "best_ms": "best time", "jvp": "jvp", "value step": "value step", "eikonal step": "eikonal step",
}  # fmt: skip
PEERS = ("coopnet",)


def entries(path: Path) -> Iterator[tuple[str, dict]]:
    """What was measured in a file, by its settings; entries of peers are left out."""
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    for entry in results if isinstance(results, list) else results.get("entries", []):
        if entry.get("peer", PEERS[0]).split(" ")[0].split("-")[0] in PEERS:
            measured = (*MEASURES, "calls")
            fixed = {
                k: v for k, v in entry.items() if k == "dropout" or (isinstance(v, (str, int)) and k not in measured)
            }
            yield json.dumps({"benchmark": path.stem, **fixed}, sort_keys=True), entry


def pairs(before: list[Path], after: list[Path]) -> Iterator[dict[str, Any]]:
    """One row for every entry and measure that both runs have."""
    old, new = lowest(before), lowest(after)
    for key, name in old.keys() & new.keys():
        a, b = old[key, name], new[key, name]
        yield {**json.loads(key), "measure": name, "before": a, "after": b, "ratio": b / a}


def lowest(paths: list[Path]) -> dict[tuple[str, str], float]:
    """The lowest figure of every entry and measure."""
    found: dict[tuple[str, str], float] = {}
    for path in paths:
        for key, entry in entries(path):
            for name in MEASURES:
                if entry.get(name):
                    found[key, name] = min(entry[name], found.get((key, name), entry[name]))
    return found


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Median and spread of the ratios, by benchmark and measure."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        groups.setdefault((row["benchmark"], row["measure"]), []).append(row["ratio"])
    return [
        {
            "benchmark": benchmark,
            "measure": measure,
            "entries": len(ratios),
            "median": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
        }
        for (benchmark, measure), ratios in groups.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    half = len(options.files) // 2
    rows = sorted(pairs(options.files[:half], options.files[half:]), key=lambda row: json.dumps(row, sort_keys=True))
    found = summary(rows)
    for line in found:
        what = f"{line['benchmark']}: {MEASURES[line['measure']]}"
        spread = f"{line['lowest']:.2f} to {line['highest']:.2f}"
        print(f"{what:45} after / before {line['median']:.3f} ({spread}, {line['entries']} entries)")
    machine = json.loads(options.files[-1].read_text(encoding="utf-8"))["machine"]  # where it was measured
    data = {"machine": machine, "results": {"summary": found, "rows": rows}}
    options.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
