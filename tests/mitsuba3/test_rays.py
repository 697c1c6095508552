"""Mitsuba's rays are rays of ``cn.render`` as they are."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest

import coopnet as cn

mi = pytest.importorskip("mitsuba")


pytestmark = pytest.mark.usefixtures("variant")


def camera():
    """Rays of a sensor, differentials and all, through the middle of every pixel."""
    to_world = mi.ScalarTransform4f().look_at([0, 0.5, -3], [0, 0, 0], [0, 1, 0])
    film = {"type": "hdrfilm", "width": 16, "height": 16}
    sensor = mi.load_dict({"type": "perspective", "fov": 50, "to_world": to_world, "film": film})
    at = (mi.Point2f(*dr.meshgrid(*[dr.arange(mi.Float, 16)] * 2)) + 0.5) / 16
    ray, _ = sensor.sample_ray_differential(0, 0.5, at, mi.Point2f(0.5))
    return ray


def ball(p):
    return dr.norm(p) - 1


def fog(p, d, key, active):
    return dr.exp(-dr.squared_norm(p)), [p.x, p.y, d.z]


def same(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("kind", ["RayDifferential3f", "Ray3f"])
def test_rays_of_a_sensor(ns, backend, kind):
    ray = getattr(mi, kind)(camera())
    o, d = ns.Array3f(ray.o), ns.Array3f(ray.d)
    traced, expected = cn.render.sphere_trace(ball, ray), cn.render.sphere_trace(ball, o, d, ray.maxt)
    same(traced, expected)
    assert 0.2 < traced.hit.numpy().mean() < 0.8
    same([cn.render.sphere_trace(ball, ray, t_max=1).hit], [cn.render.sphere_trace(ball, o, d, 1).hit])
    seen = [cn.render.soft_visibility(ball, *r, traced=traced, width=0.1) for r in ((ray,), (o, d))]
    same(seen[:1], seen[1:])
    grid = cn.render.OccupancyGrid(8, -1, 1, backend)
    same(grid.interval(ray), grid.interval(o, d))
    near, far = grid.interval(ray)
    seen = [cn.render.ray_march(fog, *r, near=near, far=far, steps=8, occupancy=grid) for r in ((ray,), (o, d))]
    same([seen[0].color, seen[0].depth], [seen[1].color, seen[1].depth])
    same([grid.occupied(ray.o)], [grid.occupied(o)])


def test_rays_inside_a_scene():
    """Shadow rays that end at the light, as ``spawn_ray_to`` makes them."""
    floor = mi.load_dict({"type": "scene", "floor": {"type": "rectangle", "to_world": mi.ScalarTransform4f().scale(5)}})
    x = dr.linspace(mi.Float, -4, 4, 33)
    si = floor.ray_intersect(mi.Ray3f(mi.Point3f(x, 0, 3), mi.Vector3f(0, 0, -1)))
    shadowed = cn.render.sphere_trace(lambda p: dr.norm(p - mi.Point3f(0, 0, 1)) - 0.5, si.spawn_ray_to([0, 0, 3])).hit
    # the cone of lines through (0, 0, 3) that meets the ball
    np.testing.assert_array_equal(shadowed.numpy(), np.abs(x.numpy()) < 3 * 0.5 / np.sqrt(2**2 - 0.5**2))


def test_gradients_of_rays(ns):
    ray = mi.Ray3f(mi.Point3f(0, 0, -3), mi.Vector3f(0, [0, 0.1], 1))
    dr.enable_grad(ray.o)
    dr.backward(cn.render.sphere_trace(ball, ray).t)
    assert dr.grad(ray.o).z.numpy()[0] == pytest.approx(-2, abs=0.1)
