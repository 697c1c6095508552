"""Mutation testing: a seeded sample of single-line mutants of coopnet, each run on the tests that cover it.

First every file of tests runs once under coverage (kept in out/mutants until the library or that file changes); then
each mutant runs in a copy of the tree, on the tests that run its statement, until one fails. Written are
benchmarks/results/mutants.json and, as diffs, the survivors in benchmarks/results/mutants.diff.

Besides drjit, numpy, pytest and what the tests need, it takes coverage, cosmic-ray, parso and attrs: where there is no
internet, `pip download --no-deps coverage cosmic-ray parso attrs`, unpacked on PYTHONPATH.

Left out are annotations, texts and other places that cannot matter, and coopnet/backend/llvm.py's branches for Windows
and macOS (see mutation/exclude.py). Survivors that are equivalent to the original are in mutation/equivalent.json.
Tests run on LLVM alone: what only a GPU would notice counts as unnoticed.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import queue
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from mutation.measure import Coverage, fingerprint, measure, sources  # noqa: E402
from mutation.runs import LITTER, copy_tree, replace, run  # noqa: E402
from mutation.sample import Mutant, sample  # noqa: E402

WORK = ROOT / "out" / "mutants"
#: Copies of the tree, gone at the end.
SCRATCH = WORK / f"process-{os.getpid()}"
RESULTS = ROOT / "benchmarks" / "results"
#: Runs of the unchanged library among the mutants: a failure there would be a false alarm.
CONTROLS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=300, metavar="N", help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at the same time")
    parser.add_argument("--files", default="coopnet/*", metavar="GLOB", help="what to mutate")
    parser.add_argument("--tests", default="tests/*", metavar="GLOB", help="files of tests to measure and run")
    parser.add_argument("--tests-budget", type=float, default=60, metavar="SECONDS", help="of tests for each mutant")
    parser.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    parser.add_argument("--measure", action="store_true", help="measure which tests cover what, and stop")
    parser.add_argument("--list", action="store_true", help="print the mutants, and stop")
    parser.add_argument("--out", type=Path, help="result file (of a run on all files: benchmarks/results/mutants.json)")
    args = parser.parse_args()
    files = [f for f in sources(ROOT) if fnmatch.fnmatch(f, args.files)]
    if not files:
        parser.error(f"no file of the library matches {args.files!r}")
    if args.list:
        for m in sample(ROOT, files, args.sample, args.seed):
            print(m.diff((ROOT / m.file).read_text(encoding="utf-8")), end="\n\n")
        return 0
    SCRATCH.mkdir(parents=True)
    try:
        coverage = _measured(args.tests, args.jobs)
        if args.measure:
            return 0
        results = _run_all(sample(ROOT, files, args.sample, args.seed), coverage, args)
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)
    whole = args.files == "coopnet/*" and args.tests == "tests/*"
    out = args.out or (RESULTS if whole else WORK) / "mutants.json"
    _report(results, args, coverage, out)
    return 0


def _in_parallel(jobs: int, function: Callable[[Any, int], Any], items: Iterable[Any]) -> Iterable[Any]:
    """``function(item, slot)`` for each item, where no two that run at once have the same slot; as they are done."""
    slots: queue.Queue[int] = queue.Queue()
    for i in range(jobs):
        slots.put(2 * i)
    done: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()

    def work(item: Any) -> None:
        slot = slots.get()
        try:
            done.put((function(item, slot), None))
        except BaseException as e:
            done.put((None, e))
        finally:
            slots.put(slot)

    items = list(items)
    pool = ThreadPoolExecutor(jobs)
    for item in items:
        pool.submit(work, item)
    try:
        for _ in items:
            result, error = done.get()
            if error is not None:
                raise error
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _measured(glob: str, jobs: int) -> Coverage:
    """Measure the files of tests that have no valid measurement yet."""
    folder = WORK / "measured"
    folder.mkdir(exist_ok=True)
    found = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").rglob("test_*.py"))
    wanted = [f for f in found if fnmatch.fnmatch(f, glob)]

    def path(test_file: str) -> Path:
        return folder / f"{Path(test_file).stem}.json"

    def valid(test_file: str) -> bool:
        if not path(test_file).exists():
            return False
        return json.loads(path(test_file).read_text())["fingerprint"] == fingerprint(ROOT, test_file)

    # the largest first, for they end last
    stale = sorted((f for f in wanted if not valid(f)), key=lambda f: -(ROOT / f).stat().st_size)
    start = time.monotonic()

    def one(test_file: str, slot: int) -> str:
        result = measure(ROOT, test_file, SCRATCH, slot)
        path(test_file).write_text(json.dumps(result))
        bad = [n for n, (outcome, _) in result["tests"].items() if outcome == "failed"] + result["ended"]
        text = f"{len(result['tests'])} tests" + (f", not usable: {', '.join(bad)}" if bad else "")
        return f"{test_file}: {text}" + result.get("output", "")

    for line in _in_parallel(jobs, one, stale):
        print(f"[{time.monotonic() - start:5.0f} s] measured {line}", flush=True)
    return Coverage([path(f) for f in wanted])


def _run_all(mutants: list[Mutant], coverage: Coverage, args: argparse.Namespace) -> list[dict]:
    """Outcomes of all mutants and controls; each is written down at once, so that a stopped run can go on."""
    head = {"sample": args.sample, "seed": args.seed, "files": args.files, "budget": args.tests_budget}
    log = WORK / f"runs-{hashlib.sha256(repr(head).encode()).hexdigest()[:8]}.jsonl"
    results: list[dict] = []
    if args.resume and log.exists():
        rest = [json.loads(line) for line in log.read_text().splitlines()[1:]]
        wanted = {m.id for m in mutants} | {f"control-{i}" for i in range(CONTROLS)}
        results = [r for r in rest if r["id"] in wanted]
    else:
        log.write_text(json.dumps(head) + "\n")
    known = {r["id"] for r in results}
    base = SCRATCH / "tree"
    shutil.copytree(ROOT, base, ignore=LITTER)
    controls = [f"control-{i}" for i in range(CONTROLS)] if len(mutants) >= 50 else []
    # by expected time, the longest first, or the last ones would run alone
    texts = {f: (ROOT / f).read_text(encoding="utf-8") for f in sources(ROOT)}
    todo: list[tuple[float, Any, list[str]]] = []
    for m in mutants:
        tests = coverage.choose(coverage.tests(m.file, m.line, texts), args.tests_budget)
        todo.append((sum(coverage.seconds[t] for t in tests), m, tests))
    everything = sorted(coverage.seconds)
    todo += [
        (args.tests_budget, c, coverage.choose(everything[i::CONTROLS], args.tests_budget))
        for i, c in enumerate(controls)
    ]
    todo = [t for t in todo if (t[1] if isinstance(t[1], str) else t[1].id) not in known]
    todo.sort(key=lambda t: -t[0])
    start = time.monotonic()

    def one(item: tuple[float, Any, list[str]], slot: int) -> dict:
        _, m, tests = item
        return _run_one(m, tests, coverage, base, slot)

    for i, result in enumerate(_in_parallel(args.jobs, one, todo), 1):
        results.append(result)
        with open(log, "a") as file:
            file.write(json.dumps(result) + "\n")
        place = f"{result['file']}:{result['line']}" if "file" in result else result["id"]
        note = f"{result['outcome']} in {result['seconds']:.0f} s" + (f" by {result['test']}" if result["test"] else "")
        print(f"[{time.monotonic() - start:5.0f} s] {i}/{len(todo)} {place} {note}", flush=True)
        if "diff" in result and result["outcome"] in ("survived", "uncovered"):
            print(result["diff"], flush=True)
    return results


def _run_one(m: Mutant | str, tests: list[str], coverage: Coverage, base: Path, slot: int) -> dict:
    name = m if isinstance(m, str) else m.id
    facts: dict[str, Any] = {"id": name}
    if isinstance(m, Mutant):
        source = (base / m.file).read_text(encoding="utf-8")
        facts |= {k: v for k, v in asdict(m).items() if k != "source"} | {"diff": m.diff(source)}
    facts["tests"] = len(tests)
    if not tests:
        return facts | {"outcome": "uncovered", "test": "", "seconds": 0.0}
    tree = SCRATCH / f"mutant-{name}"
    try:
        copy_tree(base, tree)
        if isinstance(m, Mutant):
            replace(tree, m.file, m.source)
        files = list(dict.fromkeys(t.split("::")[0] for t in tests))
        found = run(tree, files, slot, tests=tests, seconds=coverage.seconds)
    finally:
        shutil.rmtree(tree, ignore_errors=True)
    outcome = {"passed": "survived", "failed": "killed", "crashed": "killed"}.get(found.outcome, found.outcome)
    if outcome == "survived" and len(found.tests) < len(tests):
        outcome = "killed"  # tests that are not even collected
    result = facts | {"outcome": outcome, "test": found.test, "seconds": found.seconds}
    if outcome != "survived" and isinstance(m, str):
        result["output"] = found.output
    return result


def _report(results: list[dict], args: argparse.Namespace, coverage: Coverage, out: Path) -> None:
    from benchmarks.common import machine

    equivalents = json.loads((Path(__file__).parent / "mutation" / "equivalent.json").read_text())
    reasons = {(e["file"], e["before"], e["after"]): e["why"] for e in equivalents}
    mutants = sorted((r for r in results if "file" in r), key=lambda r: (r["file"], r["line"]))
    for r in mutants:
        why = reasons.get((r["file"], r["before"], r["after"]))
        if why is not None and r["outcome"] in ("survived", "uncovered"):
            r["outcome"], r["why"] = "equivalent", why
    groups: dict[str, Counter] = {}
    for r in mutants:
        parts = Path(r["file"]).parts
        for group in ("total", parts[1] if len(parts) > 2 else "coopnet/*.py"):
            groups.setdefault(group, Counter())[r["outcome"]] += 1
    summary = {g: _score(c) for g, c in sorted(groups.items(), key=lambda g: (g[0] != "total", g[0]))}
    controls = [r for r in results if "file" not in r]
    options = {"sample": args.sample, "seed": args.seed, "files": args.files, "tests_budget": args.tests_budget}
    where = machine("llvm")
    where["versions"] |= _versions("cosmic-ray", "coverage", "pytest")
    found = {
        "options": options | {"jobs": args.jobs, "core_seconds": round(sum(r["seconds"] for r in results))},
        "summary": summary,
        "controls": {"runs": len(controls), "alarms": [r for r in controls if r["outcome"] != "survived"]},
        "unusable_tests": coverage.unusable,
        "mutants": [{k: v for k, v in r.items() if k != "diff"} for r in mutants],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"machine": where, "results": found}, indent=1) + "\n")
    survivors = [r for r in mutants if r["outcome"] in ("survived", "uncovered", "equivalent")]
    diffs = [f"# {r['outcome']}" + (f": {r['why']}" if "why" in r else "") + f"\n{r['diff']}\n" for r in survivors]
    out.with_suffix(".diff").write_text("\n".join(diffs))
    for group, counts in summary.items():
        print(f"{group:14}", ", ".join(f"{k} {v}" for k, v in counts.items()))
    alarms = found["controls"]["alarms"]
    print(f"controls: {len(controls)} runs, {len(alarms)} false alarms")
    print(f"written to {out}, the survivors to {out.with_suffix('.diff').name}")


def _score(counts: Counter) -> dict[str, Any]:
    """Counts, and of those that are not equivalent the share that was noticed."""
    noticed = counts["killed"] + counts["timeout"]
    real = sum(counts.values()) - counts["equivalent"]
    return {
        "mutants": sum(counts.values()),
        **dict(sorted(counts.items())),
        "percent": round(100 * noticed / max(1, real), 1),
    }


def _versions(*packages: str) -> dict[str, str]:
    from importlib import metadata

    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    raise SystemExit(main())
