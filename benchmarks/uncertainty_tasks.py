"""What ``uncertainty_quality.py`` asks fields about: tasks whose truth is known, also where no sample was.

A task says how a field is built, trained and evaluated, what is true at its samples, and which of them were not seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import drjit as dr
import numpy as np

import coopnet as cn
from coopnet import image
from coopnet.uncertainty.ensemble import members_of

ENCODINGS = ("hash grid", "sinusoidal")
#: Of the cameras of ``views``: how far they stand from the middle, and their angle in degrees.
DISTANCE, FIELD_OF_VIEW = 1.7, 38
#: Thickness of the wall in their scene, a cube of side 1.
WALL = 0.06


class Task:
    """What tasks share. ``truth`` is ``(outputs, samples)``, ``unseen`` says of each sample whether data came near."""

    name: str
    outputs: int
    steps: int
    #: Deviation of the noise in the data, and how many independent measurements there are.
    noise: float
    samples: int
    truth: np.ndarray
    unseen: np.ndarray
    #: Where it is known what was seen.
    matter: np.ndarray
    grid: Callable[[], Any]
    waves: Callable[[], Any]
    width = 32
    activation: str | None = None
    rate = 1e-2
    #: Rate at which levels are dropped.
    levels = 0.1

    def __init__(self, backend: str):
        self.backend, self.ns = backend, cn.backend.namespace(backend)

    def field(self, encoding: str, kind: str, seed: int) -> cn.NeuralField:
        """A built field: ``"plain"``, or with ``"dropout"``, ``"concrete"`` (dropout with learned rates) or
        ``"levels"`` (of the grid are dropped)."""
        hidden: Any = {"dropout": 0.1, "concrete": cn.ConcreteDropout(0.05)}.get(kind, 0.0)
        mlp = cn.MLP(
            out_features=self.outputs, width=self.width, depth=2, dropout=hidden, output_activation=self.activation
        )
        network = cn.Sequential(cn.DropLevels(self.levels, first=1), mlp) if kind == "levels" else mlp
        layer = self.grid() if encoding == "hash grid" else self.waves()
        return cn.NeuralField(layer, network).build(self.backend, seed=seed)

    def options(self, kind: str, steps: int) -> dict[str, Any]:
        """Arguments of ``fit``."""
        options: dict[str, Any] = {"lr": cn.training.cosine(self.rate, steps), "progress": False}
        if kind == "concrete":
            noise = max(self.noise, 0.02) / self.outputs**0.5
            options["penalty"] = lambda field: cn.concrete_penalty(field, samples=self.samples, noise=noise)
        return options

    def train(self, encoding: str, kind: str, seed: int, steps: int, **others: Any) -> cn.NeuralField:
        field = self.field(encoding, kind, seed)
        cn.fit(field, self.batch, steps, seed=seed, **self.options(kind, steps), **others)
        return field

    def train_many(self, encoding: str, count: int, seed: int, steps: int) -> list[cn.NeuralField]:
        fields = [self.field(encoding, "plain", seed + i) for i in range(count)]
        options = self.options("plain", steps)
        cn.fit_many(fields, lambda key, job: self.batch(key), steps, seed=seed, **options)
        return fields

    def batch(self, key: Any) -> Any:
        raise NotImplementedError

    def value(self, field: Any) -> np.ndarray:
        """What ``field`` says at the samples, ``(outputs, samples)``."""
        raise NotImplementedError

    def moments(self, field: Any, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation over draws."""
        raise NotImplementedError

    def std(self, field: Any, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of a posterior or an ensemble, without draws where that is possible."""
        raise NotImplementedError

    def gradient(self, field: Any) -> np.ndarray:
        """Length of the gradient at the samples."""
        raise NotImplementedError

    def parts(self) -> dict[str, slice]:
        """Outputs that are judged by themselves."""
        return {"": slice(None)}

    def judged(self, part: str) -> Any:
        """The samples that a part is judged on."""
        return slice(None)

    def mixture(self, fields: list, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of posteriors of several fields together: those of each, and how far they disagree."""
        means, deviations = (np.stack(v) for v in zip(*(self.std(f, draws, seed) for f in fields), strict=True))
        return means.mean(axis=0), np.sqrt(np.square(deviations).mean(axis=0) + means.var(axis=0))

    def posthoc(self, field: Any, seed: int) -> Any:
        return cn.posthoc_dropout(field, self.batch, seed=seed, batches=4)[0]

    def laplace(self, field: Any, seed: int) -> Any:
        return cn.laplace(field, self.batch, 4, seed=seed, samples=self.samples)


class Points(Task):
    """Tasks with a target for each point: ``inputs`` and ``targets`` to learn, ``points`` to be asked about."""

    #: Step of differences for the gradient.
    cell = 1 / 64
    batch_size = 1 << 11

    def hold(self, points: np.ndarray, inputs: np.ndarray, targets: np.ndarray) -> None:
        self.points = [self.ns.Float(np.ascontiguousarray(v, np.float32)) for v in points]
        self.known, self.targets = (
            [self.ns.Float(np.ascontiguousarray(v, np.float32)) for v in rows] for rows in (inputs, targets)
        )
        self.samples, self.matter = inputs.shape[1], np.ones(points.shape[1], bool)
        dr.eval(self.points, self.known, self.targets)

    def batch(self, key: Any) -> Any:
        number = dr.minimum(
            self.ns.UInt32(cn.uniform(1, key, self.ns.Float, self.batch_size)[0] * self.samples), self.samples - 1
        )
        return tuple([dr.gather(self.ns.Float, v, number) for v in rows] for rows in (self.known, self.targets))

    def value(self, field: Any) -> np.ndarray:
        with dr.suspend_grad():
            return numpy(field(self.points))

    def moments(self, field: Any, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        with dr.suspend_grad():
            mean, deviation = cn.mc_dropout(field, self.points, cn.Key(seed, index=0), draws)
        return numpy(mean), numpy(deviation)

    def std(self, field: Any, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        with dr.suspend_grad():
            return numpy(field(self.points)), numpy(field.std(self.points))

    def displaced(self, field: Any, seed: int) -> Any:
        """A posterior of displacements."""
        return cn.laplace(field, self.batch, 4, seed=seed, samples=self.samples, spatial=16)

    def moved(self, fields: list, places: list) -> tuple[np.ndarray, np.ndarray]:
        """Mean, and how far values follow when places move by their deviation, and how far the fields disagree."""
        with dr.suspend_grad():
            distances = [np.asarray(p.std(self.points)[0].numpy(), np.float64) for p in places]
        values = np.stack([self.value(f) for f in fields])
        steps = [d * self.gradient(f) for d, f in zip(distances, fields, strict=True)]
        return values.mean(axis=0), np.sqrt(np.mean(np.square(steps), axis=0) + values.var(axis=0))

    def gradient(self, field: Any) -> np.ndarray:
        squares: Any = 0
        for axis in range(len(self.points)):
            pair = []
            for side in (-1, 1):
                moved = list(self.points)
                moved[axis] = dr.clip(moved[axis] + side * self.cell / 2, 0, 1)
                with dr.suspend_grad():
                    pair.append(numpy(field(moved)))
            squares = squares + np.sum(np.square((pair[1] - pair[0]) / self.cell), axis=0)
        return np.sqrt(squares)


class Picture(Points):
    """A photograph with noise, of which a disc and a strip were never seen."""

    name, outputs, steps, noise, activation, side = "picture", 3, 400, 0.1, "sigmoid", 64

    @staticmethod
    def grid() -> Any:
        return cn.HashGrid(2, n_levels=7, base_resolution=4, per_level_scale=1.5)

    @staticmethod
    def waves() -> Any:
        return cn.Sinusoidal(5, in_features=2)

    def __init__(self, backend: str, seed: int):
        super().__init__(backend)
        n = self.side
        truth, seen = self.scene(np.random.default_rng(seed))
        row, column = np.mgrid[:n, :n]
        points = np.stack([(column + 0.5) / n, (row + 0.5) / n]).reshape(2, -1)
        self.truth, self.unseen = truth.reshape(-1, 3).T, ~seen.ravel()
        rng = np.random.default_rng(seed + 1000)
        noisy = self.truth + rng.normal(0, self.noise, self.truth.shape) if self.noise else self.truth
        self.hold(points, points[:, ~self.unseen], noisy[:, ~self.unseen])

    def scene(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        n = self.side
        row, column = np.mgrid[:n, :n] / n
        return photograph(n), ~((np.hypot(row - 0.66, column - 0.31) < 0.19) | (column >= 0.83))

    def process(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of a Gaussian process."""
        known, targets, points = (
            np.stack([v.numpy() for v in rows]) for rows in (self.known, self.targets, self.points)
        )
        return gaussian_process(known.T, targets, points.T, self.noise)


class Texture(Picture):
    """Bricks, of which a third of the texels is known, without noise."""

    name, noise = "texture", 0.0

    def scene(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        return bricks(self.side), rng.random((self.side, self.side)) < 1 / 3


class Pixels(Picture):
    """The photograph without holes, of which a ``share`` of the pixels is known, with ``noise``."""

    name = "pixels"

    def __init__(self, backend: str, seed: int, share: float, noise: float):
        self.share, self.noise = share, noise
        super().__init__(backend, seed)

    def scene(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        return photograph(self.side), rng.random((self.side, self.side)) < self.share


class Surface(Points):
    """The signed distance to a mesh, in a shell around it, learned from points of one side."""

    name, outputs, steps, noise, rate, cell = "surface", 1, 400, 0.0, 5e-3, 0.01

    @staticmethod
    def grid() -> Any:
        return cn.HashGrid(3, n_levels=7, base_resolution=4, per_level_scale=1.5, hashmap_size=2**15)

    @staticmethod
    def waves() -> Any:
        return cn.Sinusoidal(4, in_features=3)

    def __init__(self, backend: str, seed: int):
        import igl

        from coopnet import mesh
        from coopnet.mesh.distances import signed_distances

        super().__init__(backend)
        shape = knobs(mesh.Mesh)
        rng = np.random.default_rng(seed)

        def shell(count: int) -> np.ndarray:
            corners = shape.vertices[shape.faces]
            normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
            areas = np.linalg.norm(normals, axis=1)
            chosen = rng.choice(len(areas), count, p=areas / areas.sum())
            points = np.einsum("nc,ncd->nd", rng.dirichlet((1, 1, 1), count), corners[chosen])
            return points + rng.normal(0, 0.02, (count, 1)) * (normals / areas[:, None])[chosen]

        inputs, points = shell(8000), shell(4000)
        inputs = inputs[inputs[:, 0] < 0.5]
        targets, truth = (signed_distances(igl, shape, v)[None] for v in (inputs, points))
        self.truth, self.unseen = truth, points[:, 0] >= 0.5
        self.hold(points.T, inputs.T, targets)


class Views(Task):
    """A radiance field from 10 views of half a circle, asked about views of the other half.

    Outputs are the colour and the expected distance along each ray, to the far side of the cube for what passes
    through. ``unseen`` are points of surfaces that no camera of the training sees; points closer than a pixel's width
    to what a ray of the training hits are left out of that question, which pixels cannot answer.
    """

    #: By how many of their deviations logarithms of densities are raised: what is not known may stop a ray.
    denser = 0.3
    #: Light that is left where the points end that a posterior takes as seen.
    lit = 0.8
    #: Cells along each axis in which visits are counted, about as wide as a pixel.
    cells = 24

    name, outputs, steps, noise = "views", 4, 300, 0.02
    side, rays, bins, points = 32, 1 << 8, 28, 1 << 15
    seen = tuple((a, (10.0, 25.0, 40.0)[i % 3]) for i, a in enumerate(np.linspace(-76, 76, 10)))
    asked = tuple((a, (15.0, 30.0)[i % 2]) for i, a in enumerate(np.linspace(105, 255, 6)))

    @staticmethod
    def grid() -> Any:
        return cn.HashGrid(3, n_levels=6, base_resolution=4, per_level_scale=1.6, hashmap_size=2**15)

    @staticmethod
    def waves() -> Any:
        return cn.Sinusoidal(4, in_features=3)

    def __init__(self, backend: str, seed: int, seen: Any = None, asked: Any = None):
        import mitsuba as mi

        super().__init__(backend)
        mi.set_variant(f"{backend}_ad_rgb")
        self.world = world()
        self.seen, self.asked = seen or self.seen, asked or self.asked
        shots = [self.shot(pose, 100 * seed + i) for i, pose in enumerate(self.seen)]
        #: Origins, directions and colours of all views.
        self.shots = [shot[:3] for shot in shots]
        #: Distances to what the rays of the training hit, infinite for the sky.
        self.reached = np.concatenate([shot[3] for shot in shots])
        self.take(range(len(self.seen)))
        shots = [self.shot(pose, 5000 + i, 256) for i, pose in enumerate(self.asked)]
        o, d, colour, far = (np.concatenate(rows, axis=-1) for rows in zip(*shots, strict=True))
        self.origins, self.directions = self.arrays(o), self.arrays(d)
        self.truth, self.surface = np.concatenate([colour, far[None]]), np.isfinite(far)
        points = o + d * np.where(self.surface, far, 0)
        self.unseen = ~self.visible(points)
        #: Distances to the true surfaces, infinite for the sky.
        self.true = far
        #: How far the true surfaces are from the closest point that a ray of the training hits.
        self.gap = np.where(self.surface, self.distance(points), 0)
        self.matter = self.surface & ~(self.unseen & (self.gap < self.pixel()))
        self.box = cn.render.OccupancyGrid(4, 0, 1, backend)

    @classmethod
    def pixel(cls) -> float:
        """Width of a pixel in the middle of the scene."""
        return 2 * DISTANCE * math.tan(math.radians(FIELD_OF_VIEW / 2)) / cls.side

    def take(self, chosen: Any) -> None:
        """Train on these views alone."""
        views = zip(*(self.shots[i] for i in chosen), strict=True)
        self.known = [self.arrays(np.concatenate(rows, axis=1)) for rows in views]
        self.samples = len(chosen) * self.side**2
        self.last = dr.opaque(self.ns.UInt32, self.samples - 1)  # a parameter of the kernels

    def arrays(self, rows: np.ndarray) -> list:
        made = [self.ns.Float(np.ascontiguousarray(row, np.float32)) for row in rows]
        dr.eval(made)
        return made

    def shot(self, pose: tuple[float, float], seed: int, spp: int = 64) -> tuple[np.ndarray, ...]:
        """Origins, directions and colours of a view, and distances along its rays, infinite for the sky."""
        import mitsuba as mi

        sensor, n = camera(pose, self.side), self.side
        picture = mi.render(self.world, sensor=sensor, spp=spp, seed=seed).numpy()
        i = dr.arange(mi.UInt32, n * n)
        ray, _ = sensor.sample_ray(0, 0.5, mi.Point2f(i % n + 0.5, i // n + 0.5) / n, mi.Point2f(0.5))
        ray.o = ray.o + dr.zeros(mi.Vector3f, n * n)
        distance = self.world.ray_intersect(ray).t
        return ray.o.numpy(), ray.d.numpy(), np.clip(picture.reshape(-1, 3).T, 0, 1), distance.numpy()

    def visible(self, points: np.ndarray) -> np.ndarray:
        """Does a camera of the training see these points?"""
        import mitsuba as mi

        found = np.zeros(points.shape[1], bool)
        for pose in self.seen:
            sensor, p = camera(pose, self.side), mi.Point3f(points.astype(np.float32))
            eye = mi.Point3f(sensor.world_transform().translation())
            away = p - eye
            ray = mi.Ray3f(eye, away, 0.999, 0, [])
            found |= ~self.world.ray_test(ray).numpy()
        return found

    def distance(self, points: np.ndarray) -> np.ndarray:
        """How far points are from the closest one that a ray of the training hits."""
        from scipy.spatial import cKDTree

        hit = np.isfinite(self.reached)
        o, d = (np.stack([v.numpy() for v in rows])[:, hit] for rows in self.known[:2])
        return cKDTree((o + d * self.reached[hit]).T).query(points.T)[0]

    def march(self, field: Any, o: list, d: list, **options: Any) -> Any:
        o, d = (self.ns.Array3f(v) for v in (o, d))
        near, far = self.box.interval(o, d)
        seen = cn.render.ray_march(field, o, d, near, far, self.bins, density="exp", background=1, **options)
        return seen, seen.depth + seen.transmittance * dr.maximum(far, near)

    def batch(self, key: Any) -> Any:
        (u,) = cn.uniform(1, key, self.ns.Float, self.rays)
        number = dr.minimum(self.ns.UInt32(u * self.ns.Float(self.last + 1)), self.last)
        return tuple([dr.gather(self.ns.Float, v, number) for v in rows] for rows in self.known)

    def options(self, kind: str, steps: int) -> dict[str, Any]:
        def objective(field: Any, drawn: Any, key: Any) -> Any:
            o, d, colour = drawn
            return dr.squared_norm(self.march(field, o, d, key=key)[0].color - self.ns.Array3f(colour))

        return super().options(kind, steps) | {"objective": objective}

    def picture(self, field: Any, o: list, d: list, **options: Any) -> np.ndarray:
        with dr.suspend_grad():
            seen, depth = self.march(field, o, d, **options)
            dr.eval(seen, depth)
        return np.concatenate([seen.color.numpy(), depth.numpy()[None]]).astype(np.float64)

    def value(self, field: Any) -> np.ndarray:
        return self.picture(field, self.origins, self.directions)

    def draws(self, field: Any, count: int, seed: int, o: list, d: list) -> np.ndarray:
        """Pictures of ``count`` functions that ``field`` may be."""
        key = cn.Key(seed, self.ns.UInt32(0))
        keys = (key.fold_in(dr.opaque(self.ns.UInt32, i)) for i in range(count))
        return np.stack([self.picture(field, o, d, key=k, jitter=False, dropout="ray") for k in keys])

    def moments(self, field: Any, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        pictures = self.draws(field, draws, seed, self.origins, self.directions)
        return pictures.mean(axis=0), pictures.std(axis=0)

    def std(self, field: Any, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Of an ensemble, a picture of every member; of a posterior, :meth:`mixture` of it alone."""
        members = members_of(field)
        if members is not None:
            return self.moments(field, len(members.networks), seed)
        return self.mixture([field], draws, seed)

    def mixture(self, fields: list, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Of colours, :meth:`spread`, and how far the fields disagree; of depths, that, and how far denser places move
        them."""
        pictures = np.stack([self.value(f) for f in fields])
        mean, found = pictures.mean(axis=0), pictures.var(axis=0)
        spread, depth = self.spread(fields, self.origins, self.directions)
        found[:3] = found[:3].mean(axis=0) + np.square(spread)
        found[3] += np.square(depth - mean[3])
        return mean, np.sqrt(found)

    def spread(self, fields: list, o: list, d: list) -> tuple[np.ndarray, np.ndarray]:
        """The deviation of the outputs of posteriors along each ray, by what a place contributes to the pixel (as in
        Goli et al. 2024), and the depth.

        Densities are the mean of those of the fields, and larger where they are not known: there, a ray may stop.
        """

        def deviation(p: Any, d: Any, key: Any, active: Any) -> tuple:
            values = list(zip(*(f(list(p)) for f in fields), strict=True))
            spreads = list(zip(*(f.std(list(p)) for f in fields), strict=True))
            density: Any = sum(
                dr.exp(dr.minimum(v + self.denser * s, 15)) for v, s in zip(values[0], spreads[0], strict=True)
            )
            squares: Any = sum(dr.square(s) for rows in spreads for s in rows) * 0.25
            for rows in values[1:]:
                mean = sum(rows) / len(fields)
                squares = squares + sum(dr.square(v - mean) for v in rows) / 3
            return density / len(fields), self.ns.Array3f(dr.sqrt(squares / len(fields)))

        rays = [self.ns.Array3f(v) for v in (o, d)]
        with dr.suspend_grad():
            near, far = self.box.interval(*rays)
            seen = cn.render.ray_march(deviation, *rays, near, far, self.bins, density="none", color="none")
            depth = seen.depth + seen.transmittance * dr.maximum(far, near)
        return seen.color.numpy()[0].astype(np.float64), depth.numpy().astype(np.float64)

    def visits(self, field: Any, reached: Any = None) -> Any:
        """Where the rays of the training have been; with ``reached``, up to these distances, through nothing."""
        visits = cn.render.Visits(self.cells, 0, 1, self.backend)
        visits.add(*self.to_count(field, *self.known[:2], reached), density="exp" if reached is None else "none")
        return visits

    def unknown(self, visits: Any, field: Any, reached: Any = None) -> np.ndarray:
        """How little is known of what the rays see that are asked about."""
        rays = self.to_count(field, self.origins, self.directions, reached)
        return visits.along(*rays, density="exp" if reached is None else "none").numpy().astype(np.float64)

    def to_count(self, field: Any, o: list, d: list, reached: Any) -> tuple:
        o, d = (self.ns.Array3f(v) for v in (o, d))
        near, far = self.box.interval(o, d)
        if reached is None:
            return field, o, d, near, far, 2 * self.bins
        far = dr.minimum(far, self.ns.Float(reached.astype(np.float32)))
        return (lambda p, d, key, active: (0 * p.x, [0 * p.x] * 3)), o, d, near, far, 2 * self.bins

    def gradient(self, field: Any) -> np.ndarray:
        shape = (4, len(self.asked), self.side, self.side)
        squares = sum(np.square(v) for v in np.gradient(self.value(field).reshape(shape), axis=(2, 3))).reshape(4, -1)
        return np.sqrt(np.concatenate([np.broadcast_to(squares[:3].sum(axis=0), (3, squares.shape[1])), squares[3:]]))

    def aware(self, field: Any, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """An ensemble's, and what rays pass through in the mean (Suenderhauf et al. 2023)."""
        mean, deviation = self.std(field, draws, seed)
        rays, passed = (self.origins, self.directions), []
        for i in range(len(members_of(field).networks)):
            key = cn.Key(seed, self.ns.UInt32(0), dr.opaque(self.ns.UInt32, i))
            with dr.suspend_grad():
                seen, _ = self.march(field, *rays, key=key, jitter=False, dropout="ray")
            passed.append(seen.transmittance.numpy())
        return mean, np.sqrt(np.square(deviation) + np.square(np.mean(passed, axis=0)))

    def parts(self) -> dict[str, slice]:
        return {"colour": slice(0, 3), "depth": slice(3, 4)}

    def judged(self, part: str) -> np.ndarray:
        """Depth is judged where there is a surface, colour also in front of the sky."""
        return self.surface if part == "depth" else np.ones_like(self.surface)

    def places(self, field: Any, seed: int, truth: bool = False) -> Callable[[Any], tuple]:
        """Batches of points that cameras see, and what the field says there, with noise.

        Points lie along the rays of the training, as far as the field lets more than :attr:`lit` of the light through,
        or, with ``truth``, to the first surface.
        """
        rng = np.random.default_rng(seed)
        chosen = rng.choice(self.samples, min(self.samples, 4096), replace=False)
        o, d = (np.stack([v.numpy()[chosen] for v in rows]) for rows in self.known[:2])
        near, far = (v.numpy() for v in self.box.interval(*(self.ns.Array3f(self.arrays(v)) for v in (o, d))))
        inside = far > near
        o, d, near, far = o[:, inside], d[:, inside], near[inside], far[inside]
        step = (far - near) / (2 * self.bins)
        t = near + step * (np.arange(2 * self.bins)[:, None] + rng.random((2 * self.bins, len(near))))
        p = (o[:, None] + d[:, None] * t).reshape(3, -1)
        with dr.suspend_grad():
            values = numpy(field(self.arrays(p)))
        if truth:
            lit = t.ravel() <= np.broadcast_to(self.reached[chosen][inside], t.shape).ravel()
        else:
            thickness = np.exp(np.minimum(values[0], 15)).reshape(t.shape) * step
            lit = (np.cumsum(thickness, axis=0) - thickness).ravel() < -np.log(self.lit)
        pick = rng.choice(np.flatnonzero(lit), self.points)
        noisy = values[:, pick] + rng.normal(0, 0.3, (4, self.points))
        points, targets = self.arrays(p[:, pick]), self.arrays(noisy)

        def batch(key: Any) -> tuple:
            (u,) = cn.uniform(1, key, self.ns.Float, 1 << 12)
            number = dr.minimum(self.ns.UInt32(u * self.points), self.points - 1)
            return tuple([dr.gather(self.ns.Float, v, number) for v in rows] for rows in (points, targets))

        return batch

    def posthoc(self, field: Any, seed: int) -> Any:
        return cn.posthoc_dropout(field, self.places(field, seed), seed=seed, batches=4)[0]

    def laplace(self, field: Any, seed: int, truth: bool = False) -> Any:
        places = self.places(field, seed, truth)
        return cn.laplace(field, places, 8, seed=seed, samples=self.samples, prior=1.0)


def world() -> Any:
    """A wall on a table in the unit cube, with things before and behind it, below a white sky."""
    import mitsuba as mi

    def squares(count: int, *colours: list) -> dict:
        found: dict[str, Any] = {"type": "checkerboard", "to_uv": t().scale([count, count, 1])}
        return found | {f"color{i}": {"type": "rgb", "value": colour} for i, colour in enumerate(colours)}

    def thing(kind: str, count: int, colours: list, transform: Any) -> dict:
        return {
            "type": kind, "bsdf": {"type": "diffuse", "reflectance": squares(count, *colours)}, "to_world": transform,
        }  # fmt: skip

    t = mi.ScalarTransform4f
    red, blue, green = [[0.85, 0.2, 0.15], [0.9, 0.7, 0.3]], [[0.15, 0.3, 0.8], [0.6, 0.8, 0.9]], [[0.1, 0.5, 0.15]] * 2
    table, wall = [[0.7, 0.65, 0.55], [0.35, 0.35, 0.4]], [[0.9, 0.9, 0.85], [0.5, 0.2, 0.5]]
    return mi.load_dict({
        "type": "scene",
        "integrator": {"type": "path", "max_depth": 4},
        "sky": {"type": "constant", "radiance": 1.0},
        "table": thing("cube", 2, table, t().translate([0.5, 0.5, 0.12]).scale([0.46, 0.46, 0.03])),
        "wall": thing("cube", 2, wall, t().translate([0.47, 0.5, 0.4]).scale([WALL / 2, 0.33, 0.25])),
        "ball": thing("sphere", 3, red, t().translate([0.74, 0.4, 0.31]).scale(0.16)),
        "cube": thing("cube", 1, blue, t().translate([0.25, 0.32, 0.28]).rotate([0, 0, 1], 30).scale(0.12)),
        "can": thing("cylinder", 1, green, t().translate([0.25, 0.68, 0.15]).scale([0.1, 0.1, 0.4])),
    })  # fmt: skip


def camera(pose: tuple[float, float], side: int) -> Any:
    """A camera that looks at the middle, from an azimuth and a height in degrees."""
    import mitsuba as mi

    a, h = np.radians(pose)
    eye = np.array([0.5, 0.5, 0.35]) + DISTANCE * np.array([np.cos(a) * np.cos(h), np.sin(a) * np.cos(h), np.sin(h)])
    film = {"type": "hdrfilm", "width": side, "height": side, "rfilter": {"type": "box"}}
    look = mi.ScalarTransform4f().look_at(origin=[float(v) for v in eye], target=[0.5, 0.5, 0.35], up=[0, 0, 1])
    return mi.load_dict({"type": "perspective", "fov": FIELD_OF_VIEW, "to_world": look, "film": film})


def gaussian_process(x: np.ndarray, y: np.ndarray, points: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation at ``points`` given ``y`` at ``x``, with the Matern kernel 3/2; the largest likelihood of some
    lengths and of some noises, if that is not known, is taken."""

    def kernel(a: np.ndarray, b: np.ndarray, length: float) -> np.ndarray:
        r = np.sqrt(3) / length * np.linalg.norm(a[:, None] - b[None], axis=2)
        return (1 + r) * np.exp(-r)

    mean = y.mean(axis=1, keepdims=True)
    variance = max(y.var() - noise**2, 1e-4)
    best: tuple[float, Any] = (-np.inf, None)
    for length in (0.05, 0.15, 0.5):
        for s in [noise] if noise else [0.03, 0.1]:
            matrix = variance * kernel(x, x, length) + s**2 * np.eye(len(x))
            weights = np.linalg.solve(matrix, (y - mean).T)
            half = np.log(np.diag(np.linalg.cholesky(matrix))).sum()
            likelihood = -0.5 * np.sum((y - mean).T * weights) - len(y) * half
            best = max(best, (likelihood, (length, matrix, weights)), key=lambda found: found[0])
    length, matrix, weights = best[1]
    across = variance * kernel(points, x, length)
    known = np.sum(across * np.linalg.solve(matrix, across.T).T, axis=1)
    left = np.sqrt(np.maximum(variance - known, 1e-12))
    return mean + (across @ weights).T, np.broadcast_to(left, (len(y), len(points)))


def photograph(side: int) -> np.ndarray:
    """The photograph that comes with matplotlib, in the middle of it a face."""
    from matplotlib.cbook import get_sample_data

    photo = image.load(get_sample_data("grace_hopper.jpg", asfileobj=False))[60:316, 130:386]
    return photo.reshape(side, 256 // side, side, 256 // side, 3).mean((1, 3)).astype(np.float64)


def bricks(side: int) -> np.ndarray:
    """Rows of bricks of several colours with mortar between them and stains on them."""
    rng = np.random.default_rng(5)
    y, x = (np.mgrid[:side, :side] + 0.5) / side
    row = np.floor(y * 6).astype(int)
    along = x * 4 + 0.5 * (row % 2)
    colours = np.array([0.55, 0.24, 0.16]) * (0.7 + 0.6 * rng.random((6, 5, 1)))
    picture = colours[row, np.floor(along).astype(int) % 5]
    mortar = (np.abs(along % 1 - 0.5) > 0.46) | (np.abs(y * 6 % 1 - 0.5) > 0.43)
    picture = np.where(mortar[..., None], 0.72, picture)
    stains = sum(np.sin(2 * np.pi * (a * x + b * y) + c) / 4 for a, b, c in rng.normal(0, 5, (8, 3)))
    return np.clip(picture * (1 + 0.12 * stains[..., None]), 0, 1)


def knobs(kind: Any) -> Any:
    """A ball with knobs on it, as a ``kind`` of triangles in the unit cube."""
    import trimesh

    ball = trimesh.creation.icosphere(subdivisions=4)
    x, y, z = ball.vertices.T
    radius = 0.3 + 0.05 * np.sin(5 * x + 1) * np.sin(6 * y) + 0.05 * np.cos(7 * z) * np.sin(4 * x + 2 * y)
    return kind(ball.vertices * radius[:, None] + 0.5, np.asarray(ball.faces, np.int64), True, (0.5, 0.5, 0.5), 1.0)


def numpy(rows: Any) -> np.ndarray:
    return np.stack([np.asarray(v.numpy(), np.float64) for v in rows])
