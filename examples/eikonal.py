"""Learn the signed distance function of a circle or a box from points of its boundary and an eikonal loss.

A distance has a gradient of length 1 everywhere (Gropp et al. 2020, *Implicit Geometric Regularization for Learning
Shapes*). The loss asks for that at random points, and at boundary points for value 0 and the normal as gradient;
nothing else is known of the shape. Its weight gradients are second derivatives of the network.

    python examples/eikonal.py [circle|box] [steps]
"""

from __future__ import annotations

import math
import sys
import time

import drjit as dr
from drjit.opt import Adam

import coopnet as cn

RADIUS, HALF = 0.6, (0.6, 0.4)
POINTS = 2048


def circle(ns, u):
    """Boundary points and normals of the circle from numbers in [0, 1)."""
    s, c = dr.sincos(2 * math.pi * u[0])
    return ns.Array2f(RADIUS * c, RADIUS * s), ns.Array2f(c, s)


def box(ns, u):
    """Boundary points and normals of the box, each side drawn equally often."""
    side, along, sign = ns.UInt32(4 * u[0]), 2 * u[1] - 1, ns.Float(1)
    sign = dr.select(side < 2, sign, -sign)
    upright = (side & 1) == 0
    normal = ns.Array2f(dr.select(upright, sign, 0), dr.select(upright, 0, sign))
    point = ns.Array2f(dr.select(upright, sign, along) * HALF[0], dr.select(upright, along, sign) * HALF[1])
    return point, normal


def exact(shape, p):
    """The true distance, for the report."""
    if shape == "circle":
        return dr.norm(p) - RADIUS
    d = abs(p) - type(p)(*HALF)
    return dr.norm(dr.maximum(d, 0)) + dr.minimum(dr.maximum(d[0], d[1]), 0)


def main() -> int:
    shape = sys.argv[1] if len(sys.argv) > 1 else "circle"
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 400
    if shape not in ("circle", "box"):
        print(f"{shape}: accepted are circle and box", file=sys.stderr)
        return 2
    backend = cn.backend.require("auto")
    ns = cn.backend.namespace(backend)
    boundary = {"circle": circle, "box": box}[shape]
    network = cn.MLP(2, 1, width=32, depth=3, activation="tanh", bias=True)
    field = cn.NeuralField(None, network).build(backend, seed=1)
    opt = Adam(lr=1e-2, params=field)
    # half precision: gradients of means are too small for it
    scale = 1024.0 if field.precision == "half" else 1.0

    def step(field, opt, t):
        field.update(opt)
        u = cn.uniform(4, cn.Key(0, step=t), ns.Float, POINTS)
        point, normal = boundary(ns, u)
        value, gradient = field.value_and_grad(point)
        on = 10 * dr.square(value[0]) + dr.squared_norm(gradient - normal)
        _, gradient = field.value_and_grad(ns.Array2f(2 * u[2] - 1, 2 * u[3] - 1))
        off = dr.square(dr.norm(gradient) - 1)
        loss = dr.mean(on + off)
        dr.backward(loss * scale)
        opt.step()
        return dr.detach(loss)

    frozen = dr.freeze(step)
    start = time.monotonic()
    print(f"{shape}, {steps} steps of {2 * POINTS} points on {backend.upper()}")
    for i in range(steps):
        rate = 1e-2 * (1 + math.cos(math.pi * i / steps)) / 2
        opt.set_learning_rate({name: dr.opaque(ns.Float, rate) for name in opt})
        loss = frozen(field, opt, dr.opaque(ns.UInt32, i))
        if i % 100 == 0 or i + 1 == steps:
            print(f"  step {i:4d}: loss {loss[0]:.5f}")
    field.update(opt)

    u = cn.uniform(2, cn.Key(1), ns.Float, 1 << 14)
    p = ns.Array2f(2 * u[0] - 1, 2 * u[1] - 1)
    value, gradient = field.value_and_grad(p)
    length = dr.norm(gradient)
    print(f"mean |grad| {dr.mean(length)[0]:.4f}, mean ||grad| - 1| {dr.mean(abs(length - 1))[0]:.4f}")
    print(f"mean error of the distance {dr.mean(abs(value[0] - exact(shape, p)))[0]:.4f}")
    print(f"{time.monotonic() - start:.1f} seconds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
