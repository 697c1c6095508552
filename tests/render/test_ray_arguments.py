"""Rays are given to tracing, marching and grids in one way, and refused in the same words."""

import importlib

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import evaluated
from support.kernels import launched

import coopnet as cn
from coopnet import reference as ref

ORIGINS, DIRECTIONS = np.array([[0.0, 0.5], [0.0, 0.25], [-2.0, -2.0]]), np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]])

#: Containers of three components, from a NumPy array of shape (3, rays).
KINDS = {
    "nested": lambda ns, x: ns.Array3f(x),
    "ArrayXf": lambda ns, x: ns.ArrayXf(x.astype(np.float32)),
    "list": lambda ns, x: [ns.Float(v) for v in x],
    "tuple": lambda ns, x: tuple(ns.Float(v) for v in x),
    "CoopVec": lambda ns, x: drnn.CoopVec([ns.Float(v) for v in x]),
    "tensor": lambda ns, x: ns.TensorXf(x.astype(np.float32)),
    "half": lambda ns, x: ns.Array3f16(x),
    "NumPy": lambda ns, x: x.astype(np.float32),
    "NumPy, double": lambda ns, x: x,
    "numbers": lambda ns, x: x.tolist(),
    "mixed": lambda ns, x: [ns.Float(x[0]), x[1], x[2].tolist()],
    "without gradients": lambda ns, x: importlib.import_module(ns.__name__.removesuffix(".ad")).Array3f(x),
}


def sphere(p):
    return dr.norm(p) - 1


def fog(p, d, key, active):
    return dr.exp(-dr.squared_norm(p)), [p.x, p.y, p.z + 1]


def calls(backend):
    grid = cn.render.OccupancyGrid(8, -1, 1, backend)
    return {
        "sphere_trace": lambda o, d, **more: cn.render.sphere_trace(sphere, o, d, 4, **more).position,
        "ray_march": lambda o, d, **more: cn.render.ray_march(fog, o, d, 1, 3, 4, mode="loop", **more).color,
        "OccupancyGrid.interval": lambda o, d: grid.interval(o, d)[0],
        "render.box_interval": lambda o, d: cn.render.box_interval(o, d)[1],
        "OccupancyGrid.occupied": lambda o, d: dr.select(grid.occupied(o), 1, 0),
    }


NAMES = ["sphere_trace", "ray_march", "OccupancyGrid.interval", "OccupancyGrid.occupied", "render.box_interval"]


@pytest.mark.parametrize("kind", KINDS)
def test_rays_of_every_kind(ns, backend, kind):
    for name, call in calls(backend).items():
        expected = call(ns.Array3f(ORIGINS), ns.Array3f(DIRECTIONS)).numpy()
        assert np.array_equal(call(KINDS[kind](ns, ORIGINS), KINDS[kind](ns, DIRECTIONS)).numpy(), expected), name
        assert np.isfinite(expected).all()


class Ray:
    """Has an origin and a direction, as Mitsuba's ``Ray3f``."""

    def __init__(self, o, d):
        self.o, self.d = o, d


def test_rays_of_one_object(ns, backend):
    numbers = ORIGINS, DIRECTIONS
    for name, call in list(calls(backend).items())[:3]:
        expected = call(*map(ns.Array3f, numbers)).numpy()
        for ray in (Ray(*map(ns.Array3f, numbers)), Ray(*numbers), Ray(ns.Array3f(ORIGINS), DIRECTIONS.tolist())):
            assert np.array_equal(call(ray, None).numpy(), expected), name
        words = f"^{name}: o is a Ray, which has a direction; leave d out"
        with launched() as kernels, pytest.raises(ValueError, match=words):
            call(Ray(*numbers), ns.Array3f(0, 0, 1))
        assert not kernels


def test_a_ray_knows_where_it_ends(ns):
    ray = Ray(ns.Array3f(0, 0, -2), ns.Array3f(0, 0, 1))
    with pytest.raises(ValueError, match=r"^sphere_trace: t_max is None; a finite number"):
        cn.render.sphere_trace(sphere, ray)
    ray.maxt = ns.Float(0.5, 4)
    assert cn.render.sphere_trace(sphere, ray).hit.numpy().tolist() == [False, True]
    assert cn.render.sphere_trace(sphere, ray, t_max=0.75).hit.numpy().tolist() == [False]


@pytest.mark.parametrize("row", [list, tuple, np.array])
def test_rows_of_ends(ns, row):
    """One for each ray, as numbers; each end must be above its start."""
    o, d = ns.Array3f(0, 0, [-2, -2]), ns.Array3f(0, 0, 1)
    found = cn.render.sphere_trace(sphere, o, d, row([0.5, 4.0]), t_min=row([0.25, 0]))
    assert found.hit.numpy().tolist() == [False, True]
    words = r"^sphere_trace: t_max is .*; a number above t_min"
    for t_min, t_max in ((0, row([4.0, 0.0])), (row([0, 5]), 4), (row([0.0, 5.0]), row([4, 4.0]))):
        with launched() as kernels, pytest.raises(ValueError, match=words):
            cn.render.sphere_trace(sphere, o, d, t_max, t_min=t_min)
        assert not kernels


@pytest.mark.parametrize("number", [np.float32, np.float64, np.float16, np.int32, np.array])
def test_numbers_of_numpy(ns, number):
    def traced(end):
        return cn.render.sphere_trace(sphere, ns.Array3f(0, 0, -3), [0, 0, 1], end, active=ns.Bool(True)).t

    assert np.array_equal(traced(number(4)).numpy(), traced(4.0).numpy())


def test_numbers_against_the_reference(ns, backend):
    """Rays of NumPy's, of which the reference is given the same."""
    o, d = np.array([[0.0, 0.3, 0.2], [0.1, -0.2, 2], [-2, -2.5, -2]]), np.array([[0.1, 0, 0], [0, 0.2, 0], [1, 2, 1]])
    true = ref.sphere_trace(lambda p: np.linalg.norm(p, axis=0) - 1, o, d, 4.0)
    field = cn.NeuralField(None, cn.MLP(3, 4, width=8, depth=1)).build(backend)
    on_backend = [ns.Array3f(v) for v in (o, d)]
    expected = cn.render.ray_march(field, *on_backend, 1, 3, 5)
    t, length = ref.march_distances(np.full(3, 1.0), np.full(3, 3.0), np.full((5, 3), 0.5))
    p = o[:, None] + t * d[:, None]
    density, color = np.exp(-(p**2).sum(axis=0)), p + np.reshape([0, 0, 1], (3, 1, 1))
    light, left, depth = ref.ray_march(density, color, t, length)
    for given in ((o, d), (o.tolist(), d.tolist()), (Ray(o, d), None)):
        found = cn.render.sphere_trace(sphere, *given, 4)
        assert found.hit.numpy().tolist() == true.hit.tolist() == [True, True, False]
        for name in ("t", "position", "normal"):
            np.testing.assert_allclose(getattr(found, name).numpy(), getattr(true, name), atol=2e-5)
        seen = cn.render.ray_march(fog, *given, 1, 3, 5, mode="loop")
        for found, wanted in ((seen.color, light), (seen.transmittance, left), (seen.depth, depth)):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)
        ranges = np.full(3, 1.0), [3.0, 3.0, 3.0]
        assert np.array_equal(cn.render.ray_march(fog, *given, *ranges, 5, mode="loop").color, seen.color)
        # on the backend of the field, if there is one
        seen = cn.render.ray_march(field, *given, 1, 3, 5)
        assert type(seen.color) is ns.Array3f
        np.testing.assert_allclose(seen.color.numpy(), expected.color.numpy(), rtol=1e-5)


def test_one_ray_of_numbers(ns, backend):
    found = cn.render.sphere_trace(sphere, [0, 0, -3], (0, 0, np.float64(2)), 4)
    assert found.t.numpy().tolist() == [1.0] and found.normal.numpy().ravel().tolist() == [0, 0, -1]
    far = cn.render.sphere_trace(sphere, [0, 0, float("nan")], [0, 0, 1e300], 4)  # not finite: it misses
    assert not far.hit[0]


def test_rows_of_numbers_and_recording(ns):
    """One ray is part of a recording; rows are memory, of which Dr.Jit could make no array there."""
    sloping = ns.Float(0, 0.25)
    traced = dr.freeze(lambda x: cn.render.sphere_trace(sphere, [0, 0, -2], [x, 0, 1], 4).t)
    expected = cn.render.sphere_trace(sphere, [0, 0, -2], [sloping, 0, 1], 4).t.numpy()
    for _ in range(2):
        np.testing.assert_allclose(traced(sloping).numpy(), expected, rtol=1e-6)
    rows = dr.freeze(lambda x: cn.render.sphere_trace(sphere, [0, [0, 0.5], -2], [x, 0, 1], 4).t)
    with pytest.raises(RuntimeError) as info:
        rows(sloping)
    cause = info.value.__cause__
    assert isinstance(cause, TypeError) and "sphere_trace: o[1] has 2 numbers, of which Dr.Jit makes no" in str(cause)


#: The same of components, with their gradients.
PACKED = {
    "nested": lambda ns, parts: ns.Array3f(parts),
    "CoopVec": lambda ns, parts: drnn.CoopVec(parts),
    "tensor": lambda ns, parts: ns.TensorXf(ns.ArrayXf(parts)),
}


@pytest.mark.parametrize("name", NAMES[:2])
def test_gradients_of_rays_of_every_kind(ns, backend, name):
    found = []
    for pack in PACKED.values():
        o = [ns.Float(v) for v in ORIGINS]
        dr.enable_grad(o)
        out = calls(backend)[name](pack(ns, o), ns.Array3f(DIRECTIONS))
        dr.backward(out.x + 2 * out.y + 3 * out.z)
        found.append(np.stack([v.numpy() for v in evaluated(dr.grad(o))]))
    assert (found[0] != 0).any()
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-6, atol=1e-6)  # tangents of a sphere are rounding errors


class Unreadable(list):
    def __iter__(self):
        raise KeyError("this method raises")


WRONG = {
    "o: got builtins.int": (TypeError, lambda ns: {"o": 1}),
    "o is a NumPy array of shape \\(2, 3\\); \\(3,\\) or \\(3, samples\\) is": (
        ValueError,
        lambda ns: {"o": np.zeros((2, 3))},
    ),
    "o is a NumPy array of shape \\(3, 1, 2\\);": (ValueError, lambda ns: {"o": np.zeros((3, 1, 2))}),
    "o is a NumPy array of shape \\(\\);": (ValueError, lambda ns: {"o": np.array(1.0)}),
    "o: entry 0 of the list is empty": (ValueError, lambda ns: {"o": np.zeros((3, 0))}),
    "o: got arrays of different sizes, \\[2, 3\\]": (ValueError, lambda ns: {"o": [[0, 1], [0, 1, 2], 0]}),
    "o\\[1\\] is 'y'; a number, a list of numbers or a Dr": (TypeError, lambda ns: {"o": [0, "y", 0]}),
    "o\\[0\\] is True; a number": (TypeError, lambda ns: {"o": [True, 0, 0]}),
    "o\\[2\\] is \\[\\[0\\]\\]; a number": (TypeError, lambda ns: {"o": [0, 0, [[0]]]}),
    "o\\[2\\] is \\[\\[\\[0\\]\\]\\]; a number": (TypeError, lambda ns: {"o": [0, 0, [[[0]]]]}),
    "o\\[2\\] is \\[0, \\[1\\]\\]; a number": (TypeError, lambda ns: {"o": [0, 0, [0, [1]]]}),
    "o is a Unreadable that cannot be read": (TypeError, lambda ns: {"o": Unreadable([0, 0, 0])}),
    "o\\[1\\] is .*; a number, a list": (TypeError, lambda ns: {"o": [0, Unreadable([0]), 0]}),
    "o\\[0\\] is \\[a Float\\]; a number": (TypeError, lambda ns: {"o": [[ns.Float(0)], 0, 0]}),
    "o\\[0\\] is .*; a number": (TypeError, lambda ns: {"o": np.ma.masked_equal([[0], [1], [2]], 1)}),
    "o has 2 components; 3 are": (ValueError, lambda ns: {"o": [0, 0]}),
    "o: got values of type .*Float64": (TypeError, lambda ns: {"o": ns.Array3f64(ORIGINS)}),
    "o has 2 components; 3 are needed": (ValueError, lambda ns: {"o": ns.Array2f(0)}),
    "d has 3 entries for 2 rays; both must agree": (ValueError, lambda ns: {"d": ns.Array3f([0, 0, 0], 0, 1)}),
    "active is a int; a bool or a Dr.Jit Bool": (TypeError, lambda ns: {"active": 1}),
    "active is a .*TensorXb; a bool or a Dr.Jit Bool": (TypeError, lambda ns: {"active": ns.TensorXb([True])}),
    "active is a Array3b; a bool or a Dr.Jit Bool": (TypeError, lambda ns: {"active": ns.Array3b(True)}),
    "active has 3 entries for 2 rays; both must": (ValueError, lambda ns: {"active": ns.Bool([True, True, False])}),
    "active has 0 entries for 2 rays; both must": (ValueError, lambda ns: {"active": ns.Bool()}),
}


def takes(name, words):
    """Has the function the argument with which ``words`` begin?"""
    if words.startswith("active"):
        return name in ("sphere_trace", "ray_march")
    return not (words.startswith("d") and name == "OccupancyGrid.occupied")  # which has points only


@pytest.mark.parametrize("name, words", [(n, w) for n in NAMES for w in WRONG if takes(n, w)])
def test_refused_in_the_same_words(ns, backend, name, words):
    error, wrong = WRONG[words]
    given = {"o": ns.Array3f(ORIGINS), "d": ns.Array3f(DIRECTIONS)} | wrong(ns)
    if name == "OccupancyGrid.occupied":
        words = "p" + words[1:]
    with launched() as kernels, pytest.raises(error, match=f"^{name}: {words}"):
        calls(backend)[name](**given)
    assert not kernels


NUMBERS = {
    "is '1'; a finite number or a Dr.Jit Float": (ValueError, lambda ns: "1"),
    "is nan; a finite number or a Dr.Jit Float": (ValueError, lambda ns: float("nan")),
    "is True; a finite number or a Dr.Jit Float": (ValueError, lambda ns: True),
    "is a Array2f; a number or a Dr.Jit Float": (TypeError, lambda ns: ns.Array2f(1)),
    "is a .*TensorXf; a number or a Dr.Jit Float": (TypeError, lambda ns: ns.TensorXf([1.0])),
    "is a UInt; a number or a Dr.Jit Float": (TypeError, lambda ns: ns.UInt(1)),
    ": got values of type .*Float64": (TypeError, lambda ns: ns.Float64(1)),
    ": got an empty array": (ValueError, lambda ns: ns.Float()),
    "has 3 entries for 2 rays; both must agree, or be 1": (ValueError, lambda ns: ns.Float(1, 2, 3)),
}


@pytest.mark.parametrize("words", NUMBERS)
def test_numbers_are_refused_in_the_same_words(ns, backend, words):
    error, wrong = NUMBERS[words]
    o, d = ns.Array3f(ORIGINS), ns.Array3f(DIRECTIONS)
    value = wrong(ns)
    separator = "" if words[0] == ":" else " "
    for function, name, call in (
        ("sphere_trace", "t_max", lambda: cn.render.sphere_trace(sphere, o, d, value)),
        ("ray_march", "near", lambda: cn.render.ray_march(fog, o, d, value, 3, 4)),
        ("ray_march", r"background\[1\]", lambda: cn.render.ray_march(fog, o, d, 1, 3, 4, background=[0, value, 1])),
    ):
        with launched() as kernels, pytest.raises(error, match=f"^{function}: {name}{separator}{words}"):
            call()
        assert not kernels


@pytest.mark.parametrize("kind", KINDS)
def test_backgrounds_of_every_kind(ns, backend, kind):
    light = np.array([[0.25, 0.5], [1, 0.75], [0.125, 0]])
    march = calls(backend)["ray_march"]
    o, d = ns.Array3f(ORIGINS), ns.Array3f(DIRECTIONS)
    expected = march(o, d).numpy() + light * cn.render.ray_march(fog, o, d, 1, 3, 4).transmittance.numpy()
    np.testing.assert_allclose(march(o, d, background=KINDS[kind](ns, light)).numpy(), expected, rtol=1e-5)


def test_backgrounds_of_one_number(ns, backend):
    march = calls(backend)["ray_march"]
    o, d = ns.Array3f(ORIGINS), ns.Array3f(DIRECTIONS)
    for grey in (0.5, ns.Float(0.5), ns.Float(0.5, 0.25)):
        expected = march(o, d, background=[grey] * 3).numpy()
        assert np.array_equal(march(o, d, background=grey).numpy(), expected)
    assert not np.array_equal(expected, march(o, d).numpy())


def test_what_traced_code_returns(ns):
    o, d = ns.Array3f(ORIGINS), ns.Array3f(DIRECTIONS)
    for field, words in (
        (lambda p, *_: (ns.Float64(p.x), p), "the density that field returned: got values of type .*Float64"),
        (lambda p, *_: (p.x, [p.x, "red", p.z]), "color 1 that field returned is 'red'; a finite number or"),
        (lambda p, *_: (p.x, 3), "the color that field returned is a int that cannot be read"),
    ):
        for mode in ("loop", "wide"):
            with pytest.raises((TypeError, ValueError), match=f"^ray_march: {words}"):
                cn.render.ray_march(field, o, d, 1, 3, 4, mode=mode)


@pytest.mark.parametrize("room", ["surface", "occupancy"])
def test_backends_of_what_is_called_are_asked_about(ns, backend, monkeypatch, room):
    """Also where there is only one: distances that a function returns, and a grid of occupied cells."""

    def refuse(what, a, other, b):
        raise TypeError(f"{what} elsewhere")

    monkeypatch.setattr(f"coopnet.render.{room}.check_same_backend", refuse)
    rays, grid = (ns.Array3f(ORIGINS), ns.Array3f(DIRECTIONS)), cn.render.OccupancyGrid(8, -1, 1, backend)
    with pytest.raises(TypeError, match=r"^(sphere_trace: what sdf returned|ray_march: occupancy) lives elsewhere"):
        cn.render.ray_march(fog, *rays, 1, 3, 4, occupancy=grid)
        cn.render.sphere_trace(sphere, *rays, 4)


def test_other_backends(ns, backend):
    if len(cn.backend.available()) > 1:
        other = cn.backend.namespace("llvm" if backend == "cuda" else "cuda")
        for name, call in list(calls(backend).items())[:3]:
            with pytest.raises(TypeError, match=f"^{name}: d is a .*Array3f, but o lives on the"):
                call(ns.Array3f(0, 0, 1), other.Array3f(0, 0, 1))
