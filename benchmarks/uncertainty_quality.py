"""How good is each uncertainty, and what does it cost? Tasks whose truth is known, also where no sample was.

``picture``, ``texture``, ``surface`` and ``views`` (``uncertainty_tasks.py``) are learned by a hash grid and by a
network behind a sinusoidal encoding, over several seeds, and every method says where they are wrong. ``next`` picks the
next of 20 views by uncertainty, ``levels`` compares dropout of a grid's levels and learned rates with weight decay.

``ause`` is the area of the sparsification curve over that of a random order (0 is perfect), by root mean squares;
``auroc`` how well a deviation tells unseen samples from seen ones; ``nll`` the negative log likelihood after an
isotonic calibration on a fifth of the samples, of the other ones; ``psnr`` that of the method's mean, in dB. ``train``
and ``evaluate`` are CPU seconds over those of one plain field, which has ``seconds`` and ``evaluate_seconds``.

    python benchmarks/uncertainty_quality.py [--quick] [--tasks picture views] [--seeds 3]

What is not run keeps the rows that the file has of it; with ``--tasks`` and no names, what
``docs/uncertainty.md`` says of it is printed.
"""

from __future__ import annotations

import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import common
import numpy as np
from uncertainty_tasks import ENCODINGS, WALL, Picture, Pixels, Surface, Task, Texture, Views

import coopnet as cn
from coopnet.uncertainty.calibrate import NEIGHBOURS, isotonic

NAME = "uncertainty-quality"
MEMBERS = 10
#: Members that are trained for a third of the steps: together for less than a third of the time of the others.
SHORT = 9
SHORT_TRAININGS = f"ensemble of {SHORT}, a third of the steps"
#: Members that are trained for three fifths of the steps, and fields among them that get a posterior.
FEWER, POSTERIORS = 5, 2
FEWER_TRAININGS = f"ensemble of {FEWER}, 3/5 of the steps"
#: A longer training of ``views``: twice the rays, more samples along each, more steps.
LONG = {"rays": 512, "bins": 48}
LONG_STEPS = 8 / 3


def main() -> None:
    args = common.arguments(
        __doc__ or "",
        tasks=dict(nargs="*", default=list(TASKS), choices=list(TASKS)),
        encodings=dict(nargs="+", default=list(ENCODINGS), choices=list(ENCODINGS)),
        seeds=dict(type=int, default=3),
        draws=dict(type=int, default=16),
        quick=dict(action="store_true", help="few steps, one seed, small ensembles: does it run?"),
    )
    args.members, args.steps = MEMBERS, None
    if args.quick:
        args.seeds, args.draws, args.members, args.steps = 1, 3, 3, 3
    warnings.filterwarnings("ignore", ".*unseen regions", RuntimeWarning)  # that is what we show
    path = args.out / f"{NAME}-{args.backend}.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    for name in args.tasks:
        for part, rows in TASKS[name](args):  # each part is written when it is done
            old = [row for row in results.get(name, ()) if any(row.get(k) != v for k, v in part.items())]
            results[name] = old + rows
            results["goals"] = goals(results)
            common.write(NAME, args.backend, results, args.out)
            print(f"{name}, {part}: written to {path}", flush=True)
    print("\n".join([*table(results), *goal_rows(results), *sentences(results)]))


# ---- every method on a task ---------------------------------------------------


Part = tuple[dict[str, Any], list[dict[str, Any]]]


def compare(kind: type[Task]) -> Callable[[Any], Iterator[Part]]:
    """All methods, encodings and seeds of a task."""

    def run(args: Any) -> Iterator[Part]:
        for encoding in args.encodings:
            for seed in range(args.seeds):
                task: Any = kind(args.backend, seed)
                part, rows = {"encoding": encoding, "seed": seed}, []
                for row in Methods(task, encoding, seed, args).rows():
                    rows.append(part | row)
                    print(f"{task.name}, {encoding}, {seed}: {brief(row)}", flush=True)
                yield part, rows

    return run


class Methods:
    """Every method on one task, with one encoding and one seed."""

    def __init__(self, task: Any, encoding: str, seed: int, args: Any):
        self.task, self.encoding, self.args = task, encoding, args
        self.steps, self.draws, self.seed = args.steps or task.steps, args.draws, 100 * seed
        self.pick = np.random.default_rng(seed).permutation(task.truth.shape[1])

    def rows(self) -> Any:
        task, draws, seed = self.task, self.draws, self.seed
        task.train_many(self.encoding, 2, 999, 3)  # compiles
        fields, seconds = cpu(lambda: task.train_many(self.encoding, self.args.members, seed, self.steps))
        self.plain = seconds / len(fields)
        task.value(fields[0])
        self.once = statistics.median(cpu(lambda: task.value(fields[0]))[1] for _ in range(5))
        value = task.value(fields[0])
        row = self.row("random order", value, rand(value, seed), 0, 0)
        yield row | {"seconds": round(self.plain, 4), "evaluate_seconds": round(self.once, 6)}
        yield self.timed("gradient length", 0, lambda: (value, np.broadcast_to(task.gradient(fields[0]), value.shape)))

        for kind in ("dropout", "concrete", "levels"):
            if kind == "levels" and self.encoding != "hash grid":
                continue
            task.train(self.encoding, kind, 999, 3)
            field, trained = cpu(lambda kind=kind: task.train(self.encoding, kind, seed, self.steps))
            name = {"dropout": "MC dropout 0.1", "concrete": "ConcreteDropout", "levels": "DropLevels 0.1"}[kind]
            yield self.timed(name, trained - self.plain, lambda field=field: task.moments(field, draws, seed))
        dropped, more = cpu(lambda: task.posthoc(fields[0], seed))
        yield self.timed("posthoc_dropout", more, lambda: task.moments(dropped, draws, seed))

        # a second one, when all is compiled, says what it costs
        posterior, _ = cpu(lambda: task.laplace(fields[0], seed))
        posterior, more = cpu(lambda: task.laplace(fields[0], seed))
        yield self.timed("laplace", more, lambda: task.std(posterior, draws, seed))
        if task.name == "views":
            yield self.timed("laplace, draws", more, lambda: task.moments(posterior, draws, seed))
            known = task.laplace(fields[0], seed, truth=True)
            yield self.timed("laplace, true geometry", more, lambda: task.std(known, draws, seed))
            yield self.row("distance, true geometry", value, np.broadcast_to(task.gap, value.shape), 0, 0)
            yield from self.visited(fields[0], value, [posterior], more)
        several = [posterior]
        for count, field in zip((2, 3), fields[1:], strict=False):
            several = [*several, task.laplace(field, seed + count)]
            cost = (count - 1) * self.plain + count * more
            yield self.timed(f"laplace of {count}", cost, lambda f=several: task.mixture(f, draws, seed))
            if task.name == "views":
                yield self.timed(f"laplace of {count} and visits", cost + self.counting, lambda f=several: self.both(f))
        if task.name != "views":  # in a radiance field, colours do not follow a place alone
            places, _ = cpu(lambda: task.displaced(fields[0], seed))
            places, more = cpu(lambda: task.displaced(fields[0], seed))
            yield self.timed("displacements", more, lambda: task.moved([fields[0]], [places]))
            moved = [places]
            for count, field in zip((2, 3), fields[1:], strict=False):
                moved = [*moved, task.displaced(field, seed + count - 1)]
                cost = (count - 1) * self.plain + count * more
                yield self.timed(f"displacements of {count}", cost, lambda m=moved, n=count: task.moved(fields[:n], m))
        for count in dict.fromkeys(n for n in (3, 5, self.args.members) if n <= self.args.members):
            together = cn.ensemble(fields[:count])
            yield self.timed(
                f"ensemble of {count}", (count - 1) * self.plain, lambda f=together: task.std(f, draws, seed)
            )
        short = min(SHORT, self.args.members)
        members, seconds = cpu(lambda: task.train_many(self.encoding, short, seed + 50, max(1, self.steps // 3)))
        short_ones = cn.ensemble(members)
        yield self.timed(SHORT_TRAININGS, seconds - self.plain, lambda: task.std(short_ones, draws, seed))
        yield from self.fewer(more)
        if task.name == "views":
            yield self.timed(
                f"ensemble of {self.args.members}, density-aware",
                (self.args.members - 1) * self.plain,
                lambda f=together: task.aware(f, draws, seed),
            )
        if hasattr(task, "process") and self.encoding == ENCODINGS[0]:
            (mean, deviation), seconds = cpu(task.process)
            row = self.row("Gaussian process", mean, deviation, 0, 0)
            yield row | {"train": seconds / self.plain, "evaluate": None}  # both in one

    def fewer(self, more: float) -> Any:
        """A few members, trained for a little shorter; with what rays have visited, or the geometric mean of their
        deviation and that of posteriors."""
        task, draws, seed = self.task, self.draws, self.seed
        fewer = min(FEWER, self.args.members)
        members, seconds = cpu(
            lambda: task.train_many(self.encoding, fewer, seed + 50, max(1, round(self.steps * 3 / 5)))
        )
        together = cn.ensemble(members)
        yield self.timed(FEWER_TRAININGS, seconds - self.plain, lambda: task.std(together, draws, seed))
        if task.name == "views":
            visits = task.visits(members[0])

            def known() -> tuple[np.ndarray, np.ndarray]:
                value, apart = task.std(together, draws, seed)
                return value, apart * np.sqrt(task.unknown(visits, members[0]))

            cost = seconds - self.plain + self.counting
            yield self.timed(f"{FEWER_TRAININGS}, and visits", cost, known)
            return
        posteriors = [task.laplace(field, seed) for field in members[:POSTERIORS]]

        def mean() -> tuple[np.ndarray, np.ndarray]:
            value, apart = task.std(together, draws, seed)
            spread = np.mean([np.square(task.std(p, draws, seed)[1]) for p in posteriors], axis=0)
            return value, np.sqrt(apart) * spread**0.25

        cost = seconds - self.plain + len(posteriors) * more
        yield self.timed(f"{FEWER_TRAININGS}, and laplace", cost, mean)

    def visited(self, field: Any, value: Any, posteriors: list, more: float) -> Any:
        """What rays have visited, alone and with a posterior; with the true surfaces; and after a longer training."""
        task, shape = self.task, value.shape
        task.visits(field)
        self.visits, self.counting = cpu(lambda: task.visits(field))
        self.counted = field
        unknown = self.task.unknown
        yield self.timed("visits", self.counting, lambda: (value, np.broadcast_to(unknown(self.visits, field), shape)))
        yield self.timed("laplace and visits", more + self.counting, lambda: self.both(posteriors))
        known = task.visits(None, task.reached)
        true = np.broadcast_to(unknown(known, None, task.true), shape)
        yield self.row("visits, true geometry", value, true, 0, 0)
        seen = np.broadcast_to(unknown(known, field), shape)
        yield self.row("visits, true geometry of the training", value, seen, 0, 0)

        vars(task).update(LONG)
        steps = max(1, round(LONG_STEPS * self.steps))
        longer, seconds = cpu(lambda: task.train(self.encoding, "plain", self.seed, steps))
        long_value = task.value(longer)
        row = (long_value, np.broadcast_to(unknown(task.visits(longer), longer), shape))
        yield self.row("visits, longer training", *row, seconds - self.plain, 0)
        for name in LONG:
            delattr(task, name)

    def both(self, posteriors: list) -> tuple[np.ndarray, np.ndarray]:
        """Variances of posteriors times how little is known of what a ray sees."""
        mean, deviation = self.task.mixture(posteriors, self.draws, self.seed)
        return mean, deviation * np.sqrt(self.task.unknown(self.visits, self.counted))

    def timed(self, name: str, more: float, moments: Callable[[], Any]) -> dict[str, Any]:
        """A method that takes ``more`` seconds than training a plain field, and what it says."""
        moments()  # compiles
        (mean, deviation), seconds = cpu(moments)
        return self.row(name, mean, deviation, more, seconds)

    def row(self, name: str, mean: Any, deviation: Any, more: float, seconds: float) -> dict[str, Any]:
        found: dict[str, Any] = {"method": name}
        for part, outputs in self.task.parts().items():
            use, truth = self.task.judged(part), self.task.truth[outputs]
            found |= {
                (f"{key} {part}".strip()): value
                for key, value in figures(
                    mean[outputs][:, use],
                    deviation[outputs][:, use],
                    truth[:, use],
                    self.task.unseen[use],
                    self.task.matter[use],
                    self.seed,
                ).items()
            }
        costs = {"train": 1 + more / self.plain, "evaluate": seconds / self.once}
        return {k: v if isinstance(v, str) else round(float(v), 4) for k, v in (found | costs).items()}


def figures(mean: Any, deviation: Any, truth: Any, unseen: Any, matter: Any, seed: int) -> dict[str, float]:
    """Of outputs ``(outputs, samples)``; what was seen is known of the samples where ``matter`` is true."""
    error, spread = (np.sqrt(np.mean(np.square(v), axis=0)) for v in (mean - truth, deviation))
    curve = cn.sparsification(error, spread, norm="rms")
    order = np.random.default_rng(seed).permutation(len(error))
    fifth, others = np.split(order, [len(order) // 5])
    knots, values = isotonic(deviation[:, fifth].ravel(), np.square(mean - truth)[:, fifth].ravel(), NEIGHBOURS)
    # the sky may be right to the last bit
    calibrated = np.maximum(np.sqrt(np.interp(deviation[:, others], knots, values)), 1e-4)
    found = {
        "ause": curve.ause / curve.random,
        "nll": cn.negative_log_likelihood(mean[:, others], calibrated, truth[:, others]),
        "psnr": -10 * np.log10(np.mean(np.square(mean - truth))),
    }
    return found | {"auroc": cn.auroc(spread[matter], unseen[matter])}


def rand(value: np.ndarray, seed: int) -> np.ndarray:
    return np.broadcast_to(np.random.default_rng(seed + 7).random(value.shape[1]), value.shape)


def cpu(run: Callable[[], Any]) -> tuple[Any, float]:
    """What ``run`` returns, and CPU seconds of all threads: other programs on the machine matter little to them."""
    start = time.process_time()
    result = run()
    return result, time.process_time() - start


def brief(row: dict[str, Any]) -> str:
    return ", ".join(v if isinstance(v, str) else f"{k} {v:.3g}" for k, v in row.items() if v is not None)


# ---- the next view ------------------------------------------------------------

#: Azimuths and heights of the cameras to choose from, and of those that are judged by.
CHOICE = tuple((18.0 * i, (10.0, 30.0, 50.0)[i % 3]) for i in range(20))
JUDGES = tuple((45.0 * i + 9, (20.0, 40.0)[i % 2]) for i in range(8))
FIRST, MORE, ORDERS = (0, 1), 6, 5


def next_views(args: Any) -> Iterator[Part]:
    """A hash grid that has seen two neighbouring views chooses six more, one at a time."""
    for seed in range(args.seeds):
        task = Views(args.backend, seed, CHOICE, JUDGES)
        steps, more = args.steps or task.steps, 1 if args.quick else MORE
        rng = np.random.default_rng(seed)
        orders = [[*FIRST, *rng.permutation(np.arange(2, 20))[:more].tolist()] for _ in range(ORDERS)]
        row: dict[str, Any] = {"seed": seed, "random": [learned(task, v, seed, steps)[1] for v in orders]}
        rules = {"laplace": least_certain, "visits": least_seen, "farthest": farthest}
        for name, choose in rules.items():
            taken, curve = list(FIRST), []
            for _ in range(more):
                field, psnr = (None, None) if name == "farthest" else learned(task, taken, seed, steps)
                taken.append(choose(task, field, taken, seed))
                curve += [] if psnr is None else [psnr]
            row[name] = {"views": taken, "psnr": [*curve, learned(task, taken, seed, steps)[1]]}
        print(f"next, {seed}: {row}", flush=True)
        yield {"seed": seed}, [row]


def learned(task: Any, taken: list[int], seed: int, steps: int) -> tuple[Any, float]:
    """A field of these views, and its PSNR in dB on the judges'."""
    task.take(taken)
    field = task.train("hash grid", "plain", seed, steps)
    error = task.value(field)[:3] - task.truth[:3]
    return field, round(float(-10 * np.log10(np.mean(np.square(error)))), 3)


def least_certain(task: Any, field: Any, taken: list[int], seed: int) -> int:
    """The view with the largest sum of variances over its pixels."""
    posterior = task.laplace(field, seed)

    def doubt(view: int) -> float:
        spread, _ = task.spread([posterior], *map(task.arrays, task.shots[view][:2]))
        return float(np.square(spread).sum())

    return max(set(range(len(CHOICE))) - set(taken), key=doubt)


def least_seen(task: Any, field: Any, taken: list[int], seed: int) -> int:
    """The view whose rays come to the most places that no ray of the training has come to."""
    visits = task.visits(field)

    def doubt(view: int) -> float:
        rays = task.to_count(field, *map(task.arrays, task.shots[view][:2]), None)
        return float(visits.along(*rays, density="exp").numpy().sum())

    return max(set(range(len(CHOICE))) - set(taken), key=doubt)


def farthest(task: Any, field: Any, taken: list[int], seed: int) -> int:
    """The view at the largest angle from all that were taken: needs no field."""
    a, h = np.radians(np.array(CHOICE)).T
    way = np.stack([np.cos(a) * np.cos(h), np.sin(a) * np.cos(h), np.sin(h)], axis=1)
    return int(np.argmin((way @ way[taken].T).max(axis=1)))


# ---- dropout of levels, and learned rates -------------------------------------

#: Name -> share of the pixels that is known, and noise.
CONDITIONS = {"half": (0.5, 0.0), "few": (0.1, 0.0), "noisy": (0.5, 0.2)}
DECAYS = (0.0, 0.3, 1.0, 3.0, 10.0, 30.0)
BOTH = "DropLevels 0.1 and decay"


def regularized(args: Any) -> Iterator[Part]:
    """PSNR in dB on the pixels that are not known, after the last step, of a hash grid."""
    for condition, (share, noise) in CONDITIONS.items():
        ways: dict[str, list[float]] = {}
        for seed in range(args.seeds):
            task = Pixels(args.backend, seed, share, noise)
            steps = args.steps or task.steps

            def score(kind: str, task: Any = task, steps: int = steps, seed: int = seed, **others: Any) -> float:
                field = task.train("hash grid", kind, 100 * seed, steps, **others)
                error = (task.value(field) - task.truth)[:, task.unseen]
                return round(float(-10 * np.log10(np.mean(np.square(error)))), 3)

            found = {f"decay {decay:g}": score("plain", weight_decay=decay) for decay in DECAYS}
            found["ConcreteDropout"] = score("concrete")
            for task.levels in (0.1, 0.3):
                found[f"DropLevels {task.levels:g}"] = score("levels")
            task.levels = 0.1
            for decay in DECAYS[2:5]:
                found[f"{BOTH}, {decay:g}"] = score("levels", weight_decay=decay)
            for name, psnr in found.items():
                ways.setdefault(name, []).append(psnr)
        row = {"condition": condition, "share": share, "noise": noise, "psnr": ways}
        print(f"levels, {condition}: { {name: summary(v) for name, v in ways.items()} }", flush=True)
        yield {"condition": condition}, [row]


# ---- what came of it ----------------------------------------------------------

#: Methods in the table of the page.
SHOWN = (
    "gradient length", "MC dropout 0.1", "ConcreteDropout", "DropLevels 0.1", "posthoc_dropout", "laplace",
    "laplace of 2", "laplace of 3", "visits", "laplace and visits", "laplace of 2 and visits",
    "laplace of 3 and visits", "displacements", "displacements of 2", "displacements of 3", "ensemble of 3",
    "ensemble of 5", "ensemble of 10", SHORT_TRAININGS, FEWER_TRAININGS, f"{FEWER_TRAININGS}, and laplace",
    f"{FEWER_TRAININGS}, and visits",
)  # fmt: skip
OURS = (
    "MC dropout 0.1",
    "ConcreteDropout",
    "DropLevels 0.1",
    "posthoc_dropout",
    "laplace",
    "laplace of 2",
    "laplace of 3",
    "visits",
    "laplace and visits",
    "laplace of 2 and visits",
    "laplace of 3 and visits",
    "displacements",
    "displacements of 2",
    "displacements of 3",
    SHORT_TRAININGS,
    FEWER_TRAININGS,
    f"{FEWER_TRAININGS}, and laplace",
    f"{FEWER_TRAININGS}, and visits",
)


def goals(results: dict[str, Any]) -> dict[str, Any]:
    """What was to be reached, and what was: means over seeds, or over differences seed by seed."""
    found: dict[str, Any] = {}
    for task in ("picture", "texture", "surface", "views"):
        for encoding in ENCODINGS if task in results else ():
            if not (rows := [row for row in results[task] if row["encoding"] == encoding]):
                continue
            for part in ("ause",) if task != "views" else ("ause colour", "ause depth"):
                found.setdefault("area at most that of 10", {})[f"{task}, {encoding}, {part}"] = cheapest(rows, part)
            for part in {"surface": ("auroc",), "views": ("auroc colour", "auroc depth")}.get(task, ()):
                able = [name for name in OURS if values(rows, name, part)]
                best = max(able, key=lambda name: statistics.mean(values(rows, name, part)))
                found.setdefault("auroc at least 0.9", {})[f"{task}, {encoding}, {part}"] = {
                    "method": best, "auroc": summary(values(rows, best, part)),
                    "reached": bool(statistics.mean(values(rows, best, part)) >= 0.9),
                }  # fmt: skip
    for row in [results["next"]] if "next" in results else []:
        gains = [v["laplace"]["psnr"][-1] - statistics.mean(v["random"]) for v in row]
        free, seen = (
            [v[name]["psnr"][-1] - statistics.mean(v["random"]) for v in row if name in v]
            for name in ("farthest", "visits")
        )
        found["next view"] = {
            "gain over random order": summary(gains), "gain of the farthest": summary(free),
            "gain of visits": summary(seen or [0.0]),
            "reached": bool(statistics.mean(gains) >= 0.5),
        }  # fmt: skip
    for row in results.get("levels", ()):
        psnr = {name: np.array(v) for name, v in row["psnr"].items()}
        best = max((name for name in psnr if name.startswith("decay")), key=lambda name: psnr[name].mean())
        both = [name for name in psnr if name.startswith(BOTH)]
        if both:
            psnr[BOTH] = psnr[max(both, key=lambda name: psnr[name].mean())]
        gains = {
            name: summary(v - psnr[best])
            for name, v in psnr.items()
            if name not in both and not name.startswith("decay")
        }
        found.setdefault("against the best decay", {})[row["condition"]] = {"decay": best, **gains}
    return found


def cheapest(rows: list[dict[str, Any]], part: str) -> dict[str, Any]:
    """Of our methods that take at most a third of the largest ensemble's training, the one of the smallest area."""
    many = max(
        (v for row in rows if (v := row["method"]).startswith("ensemble") and v.split()[-1].isdigit()),
        key=lambda name: int(name.split()[-1]),
    )
    wanted, limit = (statistics.mean(values(rows, many, key)) for key in (part, "train"))
    able = [v for v in OURS if (cost := values(rows, v, "train")) and 3 * statistics.mean(cost) <= limit]
    if not able:
        return {"reached": False}
    best = min(able, key=lambda name: statistics.mean(values(rows, name, part)))
    return {
        "method": best, "ause": summary(values(rows, best, part)), f"of {many}": summary(values(rows, many, part)),
        "train": round(statistics.mean(values(rows, best, "train")), 2),
        "reached": bool(statistics.mean(values(rows, best, part)) <= wanted),
    }  # fmt: skip


def table(results: dict[str, Any]) -> list[str]:
    """Rows of the tables in ``docs/uncertainty.md``, one for each encoding: areas by task, and costs."""
    rows, tasks = [], ("picture", "texture", "surface", "views")
    for encoding in ENCODINGS:
        measured = [t for t in tasks if any(row["encoding"] == encoding for row in results.get(t, ()))]
        for method in SHOWN:
            cells, costs = [], []
            for task in measured:
                found = [row for row in results[task] if (row["encoding"], row["method"]) == (encoding, method)]
                costs += found
                areas = [row["ause colour" if task == "views" else "ause"] for row in found]
                spread = f" ± {summary(areas)[1]:.2f}" if len(areas) > 1 else ""
                cells.append(f"{statistics.mean(areas):.2f}{spread}" if areas else "")
            if costs:
                factors = [statistics.median(row[key] or 0 for row in costs) for key in ("train", "evaluate")]
                rows.append(f"| {method} | {' | '.join(cells)} | {factors[0]:.1f} | {factors[1]:.0f} |")
    return rows


def goal_rows(results: dict[str, Any]) -> list[str]:
    """Rows of the tables of what was to be reached, in ``docs/uncertainty.md``."""
    reached, rows = {True: "yes", False: "no"}, []
    for name, found in results["goals"].get("area at most that of 10", {}).items():
        if "method" in found:
            *_, (_, ten) = (item for item in found.items() if item[0].startswith("of "))
            cells = [name, f"`{found['method']}`", shown(found["ause"]), shown(ten), f"{found['train']:.1f}"]
            rows.append(f"| {' | '.join(cells)} | {reached[found['reached']]} |")
    for name, found in results["goals"].get("auroc at least 0.9", {}).items():
        rows.append(f"| {name} | `{found['method']}` | {shown(found['auroc'])} | {reached[found['reached']]} |")
    conditions = results["goals"].get("against the best decay", {})
    for way in ("DropLevels 0.1", "DropLevels 0.3", BOTH, "ConcreteDropout") if conditions else ():
        if not all(way in found for found in conditions.values()):
            continue
        cells = (shown(conditions[name][way], signed=True) for name in conditions)
        rows.append(f"| `{way}` | {' | '.join(cells)} |")
    return rows


def sentences(results: dict[str, Any]) -> list[str]:
    """What ``docs/uncertainty.md`` says in words."""
    found = [
        f"The wall is {100 * WALL:.0f} cm thick in a scene of a metre, about {WALL / Views.pixel():.1f} pixels of a "
        "view",
        f"a radiance field from {len(Views.seen)} views of half a circle",
        f"The share of densities ({Views.denser}) and the limit of {100 * Views.lit:.0f} %",
    ]
    if "next" in results:
        goal = results["goals"]["next view"]
        apart = max(max(row["random"]) - min(row["random"]) for row in results["next"])
        found += [
            f"Which of {len(CHOICE)} views should be taken next?",
            f"{ORDERS} random orders of one seed differ by up to {apart:.1f} dB",
        ]
        found.append(
            f"its gain over the mean of five random orders is {shown(goal['gain over random order'], signed=True)} dB, "
            f"and that of always taking the farthest view {shown(goal['gain of the farthest'], signed=True)} dB"
        )
        found.append(
            f"The gain by visits alone (sums of `Visits.along`) is {shown(goal['gain of visits'], signed=True)} dB"
        )
    waves = [row for row in results.get("texture", ()) if row["encoding"] == ENCODINGS[1]]
    if short_ones := values(waves, SHORT_TRAININGS, "psnr"):
        whole = values(waves, f"ensemble of {MEMBERS}", "psnr")
        found.append(
            f"on the texture their mean has {statistics.mean(short_ones):.1f} dB, that of the ensemble of {MEMBERS} "
            f"{statistics.mean(whole or [0]):.1f} dB"
        )
    views = [row for row in results.get("views", ()) if row["encoding"] == ENCODINGS[0]]
    if views:
        own, true = (summary(values(views, name, "auroc colour")) for name in ("laplace", "laplace, true geometry"))
        found.append(f"`laplace` has an AUROC of {shown(own)}, and {shown(true)} if it is given the true surfaces")
        if known := values(views, "distance, true geometry", "auroc colour"):
            found.append(
                f"the distance from the closest point that a ray of the training hits has {shown(summary(known))}"
            )
        found += counted(results["views"])
    return found


def counted(rows: list[dict[str, Any]]) -> list[str]:
    """What the page says of visits of rays, with a grid and without."""

    def both(method: str) -> str:
        each = (values([v for v in rows if v["encoding"] == e], method, "auroc colour") for e in ENCODINGS)
        with_grid, without = (shown(summary(v)) if v else "" for v in each)
        return f"{with_grid} with a grid and {without} without"

    true = summary(values(rows, "visits, true geometry", "auroc colour") or [0])
    times = values(rows, "visits, longer training", "train") or [0]
    steps = round(Views.steps * LONG_STEPS)
    return [
        f"all end at the true surfaces, it is {true[0]:.2f}",
        f"If only those of the training do, it is {both('visits, true geometry of the training')}",
        f"A longer training ({LONG['rays']} rays in each of {steps} steps, {LONG['bins']} samples on each, for "
        f"{statistics.mean(times):.0f} times the CPU time) has {both('visits, longer training')}",
    ]


def shown(pair: list[float], signed: bool = False) -> str:
    """Mean and deviation, the latter only of several seeds."""
    text = f"{pair[0]:+.2f}" if signed else f"{pair[0]:.2f}"
    return (text + (f" ± {pair[1]:.2f}" if pair[1] else "")).replace("-", "−")


def values(rows: list[dict[str, Any]], method: str, key: str) -> list[float]:
    return [row[key] for row in rows if row["method"] == method]


def summary(values: Any) -> list[float]:
    """Mean and standard deviation over seeds."""
    return [round(float(np.mean(values)), 6), round(float(np.std(values, ddof=1)), 6) if len(values) > 1 else 0.0]


TASKS: dict[str, Callable[[Any], Iterator[Part]]] = {
    "picture": compare(Picture), "texture": compare(Texture), "surface": compare(Surface), "views": compare(Views),
    "next": next_views, "levels": regularized,
}  # fmt: skip


if __name__ == "__main__":
    main()
