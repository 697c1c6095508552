"""Signed distances: learn a solid and draw it, then recover another from images of it alone.

*Learn*: a ball carved by a gyroid, from samples of its distance, by a hash grid and a small network. Sphere tracing
draws it with the normals that come with its hits.

*Recover*: views of a smooth solid, masks and shading under three coloured lights, are all that is known. A network that
starts as a ball is traced, and what its pixels lack goes back through the hits (implicit differentiation), the normals
(second derivatives) and soft silhouettes into its weights; an eikonal loss keeps it a distance.

    python examples/sdf.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import drjit as dr
import numpy as np

import coopnet as cn
from coopnet import image

VIEWS, SMOOTH = 16, 0.15
LIGHTS = [[-0.67, -0.67, 0.2], [0.67, -0.4, 0.33], [-0.13, 0.67, 0.53]]  # where they are, and how bright


def carved(ns: Any, p: Any) -> Any:
    """A ball with the channels of a gyroid cut out, divided by its steepness: no distance, but a bound of one."""
    q = 9 * p
    gyroid = dr.sin(q.x) * dr.cos(q.y) + dr.sin(q.y) * dr.cos(q.z) + dr.sin(q.z) * dr.cos(q.x)
    return dr.maximum(dr.norm(p) - 0.8, (abs(gyroid) - 0.5) / 16)


def blended(ns: Any, p: Any) -> Any:
    """A ring around a ball, melted together (the smooth minimum of Quilez)."""
    ring = dr.norm(ns.Array2f(dr.norm(ns.Array2f(p.x, p.y)) - 0.6, p.z)) - 0.15
    ball = dr.norm(p - ns.Array3f(0.05, -0.1, 0.1)) - 0.38
    h = dr.maximum(SMOOTH - abs(ring - ball), 0) / SMOOTH
    return dr.minimum(ring, ball) - 0.25 * SMOOTH * h * h


def camera(ns: Any, angle: float, height: float, size: int) -> tuple[Any, Any]:
    """Rays through the pixels of a view onto the origin, from a distance of 3."""
    eye = np.array([np.cos(angle) * np.cos(height), np.sin(angle) * np.cos(height), np.sin(height)])
    right = np.cross(-eye, [0, 0, 1]) / np.cos(height)
    down = np.cross(-eye, right)
    centres = (np.arange(size) + 0.5) / size * 2 - 1
    u, v = np.meshgrid(centres, centres)
    d = -eye[:, None] + 0.33 * (right[:, None] * u.ravel() + down[:, None] * v.ravel())
    return ns.Array3f(np.broadcast_to(3 * eye[:, None], d.shape)), ns.Array3f(d)


def trace(ns: Any, sdf: Any, o: Any, d: Any, **options: Any) -> cn.render.SurfaceHit:
    """Hits within the unit ball, beyond which nobody knows the distance."""
    a, b, c = dr.squared_norm(d), dr.dot(o, d), dr.squared_norm(o) - 1
    root = dr.sqrt(dr.maximum(b * b - a * c, 0))
    return cn.render.sphere_trace(sdf, o, d, (-b + root) / a, 100, 1e-3, t_min=(-b - root) / a, **options)


def shade(ns: Any, found: cn.render.SurfaceHit) -> Any:
    """Colours under three lights; a bit of light from everywhere shows what they don't reach."""
    lit = [dr.maximum(dr.dot(found.normal, ns.Array3f(*light)), 0) + 0.1 for light in LIGHTS]
    return dr.select(found.hit, ns.Array3f(*lit), 0)


def picture(ns: Any, sdf: Any, view: tuple[float, float], size: int) -> np.ndarray:
    """A view, antialiased from four times as many rays."""
    found = trace(ns, sdf, *camera(ns, *view, 2 * size))
    colour = dr.select(found.hit, shade(ns, found), 1).numpy().reshape(3, size, 2, size, 2)
    return np.clip(colour.mean(axis=(2, 4)).transpose(1, 2, 0), 0, 1) ** (1 / 2.2)


def points(ns: Any, sdf: Any, count: int) -> np.ndarray:
    """Points of a surface, seen from everywhere, ``(count, 3)`` and fewer."""
    side = int(np.sqrt(count / 8))
    views = [camera(ns, a, h, side) for a in (0.3, 1.9, 3.4, 5) for h in (-0.7, 0.6)]
    found = [trace(ns, sdf, o, d) for o, d in views]
    return np.concatenate([f.position.numpy()[:, f.hit.numpy()] for f in found], axis=1).T


def chamfer(a: np.ndarray, b: np.ndarray) -> float:
    """Mean distance of a point of one set to the nearest of the other, both ways; infinite for an empty set."""
    if not len(a) or not len(b):
        return float("inf")
    squares = np.maximum((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T, 0)
    return float(np.sqrt(squares.min(axis=1)).mean() + np.sqrt(squares.min(axis=0)).mean()) / 2


class Learned:
    """The distance that ``field`` has learned, on [-1, 1]^3. Normals are differences over ``eps``, about a cell of the
    grid: the derivative of linear interpolation jumps from cell to cell, which makes a surface look lumpy.
    """

    def __init__(self, field: cn.NeuralField, eps: float):
        self.field, self.eps = field, eps

    def __call__(self, p: Any) -> Any:
        return self.field(0.5 * p + 0.5)[0] * 0.01

    def value_and_grad(self, p: Any) -> tuple:
        return self(p), cn.numerical_gradient(self, p, self.eps)


def learn(backend: str, steps: int, samples: int = 1 << 14, levels: int = 8) -> cn.NeuralField:
    """From values of the distance: a hash grid on the unit cube, so the space around the ball is moved there."""
    ns = cn.backend.namespace(backend)
    grid = cn.HashGrid(3, n_levels=levels, hashmap_size=2**17, base_resolution=8, per_level_scale=1.5)
    field = cn.NeuralField(grid, cn.MLP(out_features=1, width=32, depth=2)).build(backend, seed=1)

    def batch(key: cn.Key) -> tuple:
        u = cn.uniform(3, key, ns.Float, samples)
        return u, [100 * carved(ns, 2 * ns.Array3f(u) - 1)]  # half precision has few digits below 1

    cn.fit(field, batch, steps, lr=cn.training.cosine(1e-2, steps), loss="l1", progress=sys.stderr.isatty())
    return field


def ball(backend: str, steps: int = 300, width: int = 32, depth: int = 2) -> cn.NeuralField:
    """A smooth network that starts as the distance of a ball."""
    ns = cn.backend.namespace(backend)
    field = cn.NeuralField(None, cn.SIREN(3, 1, width, depth, omega_0=8, omega=8)).build(backend, seed=2)

    def batch(key: cn.Key) -> tuple:
        p = [2 * v - 1 for v in cn.uniform(3, key, ns.Float, 1 << 12)]
        return p, [dr.norm(ns.Array3f(*p)) - 0.5]

    cn.fit(field, batch, steps, lr=cn.training.cosine(5e-3, steps), progress=False)
    return field


def recover(field: cn.NeuralField, backend: str, steps: int, size: int, rays: int, rate: float = 2e-3) -> None:
    """Train ``field`` with the pixels of ``VIEWS`` images; nothing else of the solid gets here."""
    ns = cn.backend.namespace(backend)
    views = [camera(ns, 2.4 * i, np.arcsin(1.8 * (i + 0.5) / VIEWS - 0.9), size) for i in range(VIEWS)]
    images = [trace(ns, lambda p: blended(ns, p), *view) for view in views]
    o, d = (ns.Array3f(np.concatenate([v[i].numpy() for v in views], axis=1)) for i in range(2))
    masks = ns.Float(np.concatenate([m.hit.numpy() for m in images]).astype(np.float32))
    colours = ns.Array3f(np.concatenate([shade(ns, m).numpy() for m in images], axis=1))
    dr.make_opaque(o, d, masks, colours)

    def batch(key: cn.Key) -> list:
        u, *p = cn.uniform(4, key, ns.Float, rays)
        pixel = dr.minimum(ns.UInt32(u * len(masks)), len(masks) - 1)
        pixels = [dr.gather(type(v), v, pixel) for v in (o, d, masks, colours)]
        return [*pixels, 2 * ns.Array3f(p) - 1]

    def objective(field: cn.NeuralField, drawn: list, key: cn.Key) -> Any:
        o, d, mask, colour, p = drawn
        # silhouettes are wide at first, so that many rays see them, and sharpen
        width = dr.maximum(0.1 * dr.exp(-4 / steps * ns.Float(key.step)), 0.01)
        found = trace(ns, field, o, d, silhouette=width)
        seen = dr.clip(cn.render.soft_visibility(field, o, d, found, width), 1e-4, 1 - 1e-4)
        silhouette = -mask * dr.log(seen) - (1 - mask) * dr.log(1 - seen)
        both = found.hit & (mask > 0.5)
        shading = dr.select(both, dr.squared_norm(shade(ns, found) - colour), 0)
        gradient = field.value_and_grad(p)[1]
        return silhouette + 2 * shading + 0.1 * dr.square(dr.norm(gradient) - 1)

    lr = cn.training.cosine(rate, steps)
    cn.fit(field, batch, steps, objective=objective, lr=lr, clip_norm=1, progress=sys.stderr.isatty())


def compare(ns: Any, sdf: Any, truth: Any, size: int) -> str:
    """On views that nobody trained with: overlap of masks, error of depth where both hit; and distance of points."""
    inside = both = depth = 0.0
    for view in ((0.9, 0.2), (4.0, -0.4)):
        a, b = (trace(ns, f, *camera(ns, *view, size)) for f in (sdf, truth))
        hit = a.hit.numpy() & b.hit.numpy()
        both, inside = both + hit.sum(), inside + (a.hit.numpy() | b.hit.numpy()).sum()
        depth += np.abs(a.t.numpy()[hit] - b.t.numpy()[hit]).sum()
    distance = chamfer(points(ns, sdf, 6000), points(ns, truth, 6000))
    return f"masks overlap {both / inside:.3f}, depth off by {depth / max(both, 1):.4f}, points {distance:.4f} apart"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small and rough, for a look at it")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the pictures")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    backend = cn.backend.require("auto")
    ns, large = cn.backend.namespace(backend), backend == "cuda"
    size, view = 96 if args.quick else 384, (0.6, 0.5)
    # a short training gets further in many small steps than in a few large ones, and does not reach fine levels
    learned = (
        Learned(learn(backend, 400, 1 << 12, levels=5), 0.04) if args.quick else Learned(learn(backend, 2000), 0.01)
    )

    def carving(p: Any) -> Any:
        return carved(ns, p)

    def target(p: Any) -> Any:
        return blended(ns, p)

    print("learned from samples:", compare(ns, learned, carving, size))
    pictures = [picture(ns, f, view, size) for f in (carving, learned)]
    image.save(args.out / "sdf-learned.png", np.concatenate(pictures, axis=1))

    field = ball(backend)
    print("before:", compare(ns, field, target, size))
    pictures = [picture(ns, f, view, size) for f in (target, field)]
    start = time.monotonic()
    if args.quick:
        recover(field, backend, 400, 64, 256, rate=3e-3)
    else:
        recover(field, backend, 1500, 128, 1 << (15 if large else 10))
    print(f"after {time.monotonic() - start:.0f} seconds:", compare(ns, field, target, size))
    image.save(args.out / "sdf-from-images.png", np.concatenate([*pictures, picture(ns, field, view, size)], axis=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
