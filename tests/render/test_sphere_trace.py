"""Sphere tracing against analytic surfaces and the float64 reference, with its gradients."""

from __future__ import annotations

import doctest

import drjit as dr
import numpy as np
import pytest
from support.arrays import arrays, close, differences, evaluated
from support.kernels import launched
from support.machines import ROOT, run
from support.networks import gradients, linears, matrices, ramp_biases
from support.properties import given, settings, st

import coopnet as cn
from coopnet import reference as ref

few = settings(max_examples=6 if "cuda" in cn.backend.available() else 8)  # every shape of arguments is a kernel
RAYS = 300


def sphere(p):
    return dr.norm(p) - 0.8


def box(p):
    q = abs(p) - type(p)(0.7, 0.5, 0.3)
    return dr.norm(dr.maximum(q, 0)) + dr.minimum(dr.maximum(dr.maximum(q[0], q[1]), q[2]), 0)


def torus(p):
    x = dr.sqrt(p[0] * p[0] + p[1] * p[1]) - 0.7
    return dr.sqrt(x * x + p[2] * p[2]) - 0.25


def sphere_64(p):
    return np.sqrt((p**2).sum(axis=0)) - 0.8


def box_64(p):
    q = abs(p) - [[0.7], [0.5], [0.3]]
    return np.sqrt((np.maximum(q, 0) ** 2).sum(axis=0)) + np.minimum(q.max(axis=0), 0)


def torus_64(p):
    return np.sqrt((np.sqrt(p[0] ** 2 + p[1] ** 2) - 0.7) ** 2 + p[2] ** 2) - 0.25


SHAPES = {"sphere": (sphere, sphere_64), "box": (box, box_64), "torus": (torus, torus_64)}


def rays(ns, count=RAYS, seed=0, radius=2.0):
    """Rays from around the origin through its neighbourhood; float64 and Dr.Jit's."""
    rng = np.random.default_rng(seed)
    o = rng.normal(size=(3, count))
    o *= radius / np.sqrt((o**2).sum(axis=0))
    d = rng.uniform(-0.9, 0.9, size=(3, count)) - o
    d *= rng.uniform(0.5, 2, count) / np.sqrt((d**2).sum(axis=0))
    o, d = o.astype(np.float32), d.astype(np.float32)
    wide = ns.Array3f(o), ns.Array3f(d)
    dr.make_opaque(*wide)
    return o.astype(np.float64), d.astype(np.float64), *wide


def clear(f, o, d, t_max, margin=2e-3, least=0.1, **options):
    """Hits, and the rays that neither graze the surface nor pass close to it."""
    expected = ref.sphere_trace(f, o, d, t_max, **options)
    at = o + np.where(expected.hit, expected.t, 0) * d
    slope = (ref.numerical_gradient(lambda p: f(p)[None], at, 1e-5) * d).sum(axis=0)
    _, smallest = ref.closest_approach(lambda p: abs(f(p)), o, d, t_max, 256)
    return expected, np.where(expected.hit, abs(slope) > least * np.sqrt((d**2).sum(axis=0)), smallest > margin)


def agree(got, expected, keep, tolerance):
    dr.eval(got)
    assert keep.mean() > 0.6 and expected.hit[keep].any() and not expected.hit[keep].all()
    np.testing.assert_array_equal(got.hit.numpy()[keep], expected.hit[keep])
    found = keep & expected.hit
    np.testing.assert_allclose(got.t.numpy()[found], expected.t[found], atol=tolerance)
    np.testing.assert_allclose(got.position.numpy()[:, found], expected.position[:, found], atol=tolerance)
    return found


class Twin:
    """A small network whose zero set many rays meet, and its reference."""

    def __init__(self, ns, backend, activation="tanh", precision="auto", **options):
        self.half = backend == "cuda" or precision == "half"
        network = cn.MLP(3, 1, width=4, depth=1, activation=activation, bias=True, **options)
        field = cn.NeuralField(None, network).allocate(
            ns.TensorXf16 if self.half else ns.TensorXf, "half" if self.half else "single", seed=4
        )
        self.weights, self.biases = matrices(ramp_biases(field))
        self.activation = activation
        p = np.random.default_rng(2).uniform(-1, 1, size=(3, 999))
        last = linears(field)[-1]  # half of the neighbourhood of the origin is inside
        last.bias = type(last.bias)((self.biases[-1] - np.median(self(p))).astype(last.bias.numpy().dtype))
        self.weights, self.biases = matrices(field)
        self.field = field.pack()
        # how steep it is, so that neither it nor the reference misses anything
        slopes = ref.numerical_gradient(lambda q: self(q)[None], 2 * p, 1e-5)
        self.lipschitz = 1.2 * float(np.sqrt((slopes**2).sum(axis=0)).max())
        self.tolerance = 3e-2 if self.half else 1e-4

    def __call__(self, p, weights=None):
        weights = self.weights if weights is None else weights
        return ref.mlp(weights, p, self.activation, None, self.biases)[0]

    def changed(self, number, matrix):
        weights = [matrix if i == number else w for i, w in enumerate(self.weights)]
        return lambda p: self(p, weights)


# ---- Hits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("options", [{}, {"relaxation": 1.9}, {"relaxation": 1, "bisections": 9}, {"silhouette": 0.05}])
def test_shapes(ns, name, options):
    f, f_64 = SHAPES[name]
    o, d, o_, d_ = rays(ns)
    expected, keep = clear(f_64, o, d, 6)
    got = cn.render.sphere_trace(f, o_, d_, 6, eps=1e-4, **options)
    found = agree(got, expected, keep, 2e-5)
    if name == "box":  # at edges normals jump
        q = np.sort(abs(f_64(expected.position) + abs(expected.position) - [[0.7], [0.5], [0.3]]), axis=0)
        found &= q[1] > 1e-3
    np.testing.assert_allclose(got.normal.numpy()[:, found], expected.normal[:, found], atol=2e-4)
    miss = ~got.hit.numpy()
    assert (got.t.numpy()[miss] == np.inf).all()
    assert not got.position.numpy()[:, miss].any() and not got.normal.numpy()[:, miss].any()
    t, hit, position, normal = got
    assert t is got.t and hit is got.hit and position is got.position and normal is got.normal
    assert type(t) is ns.Float and type(hit) is ns.Bool and type(position) is type(normal) is ns.Array3f


@pytest.mark.parametrize("precision", ["auto", "half"])
@pytest.mark.parametrize("activation", ["tanh", "sine"])
def test_network(ns, backend, activation, precision):
    twin = Twin(ns, backend, activation, precision)
    o, d, o_, d_ = rays(ns)
    expected, keep = clear(twin, o, d, 4, 5e-2, lipschitz=twin.lipschitz)
    # half precision is as noisy as its weights are large; eps below the noise does no harm
    got = cn.render.sphere_trace(twin.field, o_, d_, 4, 400, lipschitz=twin.lipschitz)
    found = agree(got, expected, keep, 10 * twin.tolerance if twin.half else twin.tolerance)
    np.testing.assert_allclose(got.normal.numpy()[:, found], expected.normal[:, found], atol=3 * twin.tolerance)


def test_from_inside(ns):
    """Rays that start inside find the way out, and normals still point outwards."""
    o = ns.Array3f(ns.Float([0, 0.1, 0.2]), 0, 0)
    got = cn.render.sphere_trace(sphere, o, ns.Array3f(0, 1, 0), 4)
    np.testing.assert_allclose(got.t.numpy(), np.sqrt(0.64 - np.array([0, 0.01, 0.04])), atol=1e-5)
    np.testing.assert_allclose(got.normal.numpy(), got.position.numpy() / 0.8, atol=1e-5)


def test_both_ends_of_rays(ns):
    """Hits are looked for between ``t_min`` and ``t_max`` only, each its own."""
    o, d = ns.Array3f(0, 0, -2), ns.Array3f(0, 0, 2)
    t_max = ns.Float([0.5, 0.599, 0.601, 2, 0.3, np.nan])
    got = cn.render.sphere_trace(sphere, o, d, t_max, t_min=ns.Float([0, 0, 0, 0.7, 0.4, 0]))
    np.testing.assert_array_equal(got.hit.numpy(), [False, False, True, True, False, False])
    np.testing.assert_allclose(got.t.numpy()[2:4], [0.6, 1.4], atol=1e-5)
    assert list(got.evaluations.numpy()[-2:]) == [0, 0]
    assert dr.width(cn.render.sphere_trace(sphere, o, d, 1).hit) == 1


def test_steps_cross_the_end_of_a_ray(ns):
    """A long step over ``t_max`` does not hide what lies before it."""
    for t_max in (1.21, 1.25, 1.3, 1.6):
        got = cn.render.sphere_trace(sphere, ns.Array3f(0, 0, -2), ns.Array3f(0, 0, 1), t_max, relaxation=1.9)
        assert got.hit.numpy().all() and abs(got.t.numpy()[0] - 1.2) < 1e-5


def test_rays_that_are_nowhere(ns, backend):
    """NaN, infinity, directions of length 0 and inactive lanes: misses, and gradients of exactly zero."""
    twin = Twin(ns, backend)
    bad = [np.nan, np.inf, 0, 0, 0, 0, 0]
    o = ns.Array3f(ns.Float(bad) + 0, 0, ns.Float([0, 0, np.nan, 0, 0, 0, -1.0]))
    d = ns.Array3f(ns.Float([0, 0, 0, np.nan, 0, 0, 0]) + 0, 0, ns.Float([1, 1, 1, 1, np.inf, 0, 1]))
    active = dr.arange(ns.UInt32, 7) < 6
    for f in (twin.field, sphere):
        dr.enable_grad(o, d, twin.field["network.weights"])
        got = cn.render.sphere_trace(f, o, d, 4, active=active, silhouette=0.1)
        seen = cn.render.soft_visibility(f, o, d, got, 0.1, active=active)
        dr.eval(got, seen)  # one by one, each would be a kernel
        assert not got.hit.numpy().any() and not got.evaluations.numpy().any() and not seen.numpy().any()
        dr.backward(dr.select(got.hit, got.t, 0) + got.position[0] + got.normal[1] + seen)
        dr.eval(dr.grad([o, d, twin.field["network.weights"]]))
        for v in (o, d, twin.field["network.weights"]):
            assert not dr.grad(v).numpy().any()  # not NaN either
            dr.clear_grad(v)
    # beside others, they change nothing
    weights = []
    for lanes in (slice(None), slice(6, None)):
        dr.clear_grad(twin.field["network.weights"])
        here = [ns.Array3f(v.numpy()[:, lanes]) for v in (dr.detach(o), dr.detach(d))]
        got = cn.render.sphere_trace(twin.field, *here, 40, 1000)
        seen = cn.render.soft_visibility(twin.field, *here, got, 0.5)
        dr.backward(dr.select(got.hit, got.t, 0) + got.normal[0] + seen)
        weights.append(dr.grad(twin.field["network.weights"]).numpy())
    np.testing.assert_allclose(*weights, rtol=1e-2 if twin.half else 1e-5, atol=1e-6)
    assert np.isfinite(weights[0]).all() and weights[0].any()


def test_kinds_of_arrays(ns):
    _, _, o_, d_ = rays(ns, 40)
    plain = cn.render.sphere_trace(sphere, o_, d_, 6).t.numpy()
    for one, two in [
        (list(o_), tuple(d_)),
        (ns.ArrayXf(o_), ns.TensorXf(ns.ArrayXf(d_))),
        ([ns.Float16(v) for v in o_], d_),
    ]:
        got = cn.render.sphere_trace(sphere, one, two, 6).t.numpy()
        np.testing.assert_allclose(got, plain, rtol=2e-2 if isinstance(one, list) and one[0] is not o_[0] else 1e-6)
        assert (got == plain).mean() > 0.9 or isinstance(one, list)
    got = cn.render.sphere_trace(lambda p: [sphere(p)], o_, d_, 6).t.numpy()
    np.testing.assert_array_equal(got, plain)


# ---- How hits are found ------------------------------------------------------------------------------------


def test_longer_steps_need_fewer_evaluations(ns):
    """Along a plane, where plain sphere tracing is slow; and nothing is passed over."""
    y = dr.linspace(ns.Float, 0.02, 0.3, 200)
    o, d = ns.Array3f(0, y, 0), ns.Array3f(1, -0.03, 0)
    counts = []
    for relaxation in (1, 1.5, 1.9):
        got = cn.render.sphere_trace(lambda p: p[1], o, d, 20, 1000, relaxation=relaxation)
        assert got.hit.numpy().all()
        np.testing.assert_allclose(got.t.numpy(), y.numpy() / 0.03, rtol=2e-3)
        counts.append(got.evaluations.numpy().mean())
    assert counts[1] < 0.8 * counts[0] and counts[2] < 0.8 * counts[1]


def test_long_steps_pass_over_nothing(ns):
    """Thin plates one behind the other: the first is hit."""

    def plates(p):
        q = p[2] - 0.75 * dr.round(p[2] / 0.75)
        return abs(q) - 0.01

    o = ns.Array3f(0, 0, dr.linspace(ns.Float, 0.02, 0.73, 500))
    got = cn.render.sphere_trace(plates, o, ns.Array3f(0, 0, 1), 2, 1000, relaxation=1.99)
    np.testing.assert_allclose(got.position.numpy()[2], 0.74, atol=1e-5)


def test_steep_functions(ns):
    """``lipschitz`` divides what grows faster than distances; crossings are found without, thin things are not."""
    o, d, o_, d_ = rays(ns)
    expected, keep = clear(sphere_64, o, d, 6)
    for lipschitz in (1.0, 1.5, ns.Float(1.5)):
        got = cn.render.sphere_trace(lambda p: 1.5 * sphere(p), o_, d_, 6, 1000, lipschitz=lipschitz)
        if lipschitz == 1.0:
            found = got.hit.numpy() & expected.hit & keep
            assert found.sum() > 0.5 * expected.hit.sum()
            np.testing.assert_allclose(np.abs(sphere_64(got.position.numpy()[:, found])), 0, atol=1e-4)
        else:
            agree(got, expected, keep, 2e-5)

    def shell(p):
        return 4 * (abs(sphere(p)) - 0.01)

    hits = [cn.render.sphere_trace(shell, o_, d_, 6, 1000, lipschitz=v).hit.numpy() for v in (4, 1)]
    np.testing.assert_array_equal(hits[0][keep], expected.hit[keep])
    assert hits[1].sum() < hits[0].sum()


def outline(ns, count=257, radius=0.5):
    """Parallel rays at a ball, many of which pass by its outline; which of them meet it, and where."""
    x, y = np.meshgrid(*[np.linspace(-0.52, 0.52, count)] * 2)
    x, y = (v.ravel().astype(np.float32) for v in (x, y))
    inside = radius**2 - x.astype(np.float64) ** 2 - y.astype(np.float64) ** 2
    return ns.Array3f(x, y, -2), ns.Array3f(0, 0, 1), inside >= 0, 2 - np.sqrt(np.maximum(inside, 0))


@pytest.mark.parametrize("eps", [1e-2, 1e-3, 1e-4])
def test_rays_that_pass_close_by_are_no_hits(ns, eps):
    """All rays that meet the ball hit it, and hardly any others, however coarse ``eps`` is."""
    o, d, meets, t = outline(ns)
    got = cn.render.sphere_trace(lambda p: dr.norm(p) - 0.5, o, d, 4, eps=eps)
    hit = got.hit.numpy()
    assert hit[meets].all() and hit[~meets].sum() <= 32
    assert np.abs(got.t.numpy() - t)[meets].max() < 10 * eps
    coarse = cn.render.sphere_trace(lambda p: dr.norm(p) - 0.5, o, d, 4, eps=eps, bisections=0).hit.numpy()
    assert (hit <= coarse).all() and (eps < 1e-3 or coarse.sum() > hit.sum() + 100)


def test_what_lies_behind_an_outline_is_hit(ns):
    o, d, meets, _ = outline(ns, 129)
    behind = ns.Bool(~meets & (np.hypot(*o.numpy()[:2]) < 0.505))
    scene = lambda p: dr.minimum(dr.norm(p) - 0.5, 1 - p.z)  # noqa: E731 - a ball in front of a wall
    got = cn.render.sphere_trace(scene, o, d, 4, 400, 1e-2, active=behind)
    wall = abs(got.t.numpy() - 3) < 1e-3
    assert behind.numpy().sum() > 200 and wall[behind.numpy()].mean() > 0.95


def test_other_numbers_find_the_old_kernel(ns):
    """Of a call, as far as it is given numbers; an array for one of them takes another kernel."""

    def kernels(o=(0, 0, -2), t_max=4.0, **options):
        with launched() as found:
            dr.eval(cn.render.sphere_trace(sphere, o, [0, 0.1, ns.Float(1, 2)], t_max, **options))
        return [kernel["hash"] for kernel in found]

    first = kernels()
    assert len(first) == 1
    numbers = dict(steps=64, eps=1e-3, t_min=0.25, relaxation=1.5, bisections=3, lipschitz=1.5, min_cosine=0.1)
    for name, value in numbers.items():
        assert kernels(**{name: value}) == first, name
    assert kernels([0, 0.5, -3], 5) == first
    rows = [kernels(t_max=np.full(2, 4.0), t_min=[0.0, 0.1]) for _ in range(4)]
    assert all(row == rows[0] for row in rows)
    assert kernels(silhouette=0.1) == kernels(silhouette=0.2) != first
    assert kernels(t_max=ns.Float(4, 5)) != first


def test_refinement(ns):
    """A few steps of regula falsi are worth a much smaller eps."""
    o, d, o_, d_ = rays(ns)
    expected, keep = clear(sphere_64, o, d, 6, least=0.4)
    keep &= expected.hit
    errors = []
    for bisections in (0, 2, 6):
        got = cn.render.sphere_trace(sphere, o_, d_, 6, eps=0.02, bisections=bisections, relaxation=1.0)
        errors.append(np.abs(got.t.numpy()[keep] - expected.t[keep]).max())
        assert got.hit.numpy()[keep].all()
    assert errors[0] > 1e-2 and errors[1] < 0.1 * errors[0] and errors[2] < 0.01 * errors[0]


def test_half_precision_is_not_refined_below_its_rounding(ns, backend):
    """Hits of a field come after fewer evaluations than those of a function, which nobody knows to be half."""
    field = Twin(ns, backend, precision="half").field
    _, _, o, d = rays(ns)
    got, long = (cn.render.sphere_trace(f, o, d, 4, 400, lipschitz=4) for f in (field, lambda p: field(p)[0]))
    both = got.hit.numpy() & long.hit.numpy()
    assert (got.hit.numpy() == long.hit.numpy()).mean() > 0.95 and both.mean() > 0.2
    assert got.evaluations.numpy()[both].mean() < 0.9 * long.evaluations.numpy()[both].mean()
    # in units of the bound
    value = abs(dr.select(got.hit, field(got.position)[0], 0).numpy()) / 4
    assert (value <= 2.0**-12 * abs(got.position.numpy()).max(axis=0) + 1e-6)[both].mean() > 0.9
    # an eps below the rounding counts
    short = cn.render.sphere_trace(field, o, d, 4, 400, 1e-6, lipschitz=4)
    assert short.evaluations.numpy()[both].mean() > 1.2 * got.evaluations.numpy()[both].mean()


@pytest.mark.parametrize("sign", [1, -1])
def test_curved_functions(ns, sign):
    """Regula falsi that keeps one end forever, the one behind or the one in front, would need dozens of steps."""

    def f(p):
        return sign * (1 - dr.exp(8 * sign * p[2]))

    options = {"eps": 1e-6, "lipschitz": 300} if sign < 0 else {}
    o, d = ns.Array3f(0, 0, -0.7), ns.Array3f(0, 0, 1)
    got = cn.render.sphere_trace(f, o, d, 5, relaxation=1, bisections=2, **options)
    assert got.hit.numpy().all() and abs(got.t.numpy()[0] - 0.7) < 1e-4 and got.evaluations.numpy()[0] < 20


def test_jumps_are_bracketed(ns):
    """A function without a small value anywhere: the sign is what counts."""
    got = cn.render.sphere_trace(
        lambda p: dr.select(p[2] < 0.3, 0.25, -0.25), ns.Array3f(0, 0, -1), ns.Array3f(0, 0, 1), 5, bisections=40
    )
    assert got.hit.numpy().all() and abs(got.t.numpy()[0] - 1.3) < 1e-5


def test_steps_are_counted(ns):
    _, _, o, d = rays(ns)
    for steps in (1, 3, 9):
        got = cn.render.sphere_trace(sphere, o, d, 6, steps, bisections=2)
        assert (got.evaluations.numpy() <= steps + 2).all() and (got.evaluations.numpy() >= 1).all()
        assert got.hit.numpy().any() == (steps > 3)
    inside = cn.render.sphere_trace(sphere, ns.Array3f(0, 0, 0.8), d, 6)
    assert inside.hit.numpy().all() and not inside.t.numpy().any() and (inside.evaluations.numpy() == 1).all()


def test_functions_that_are_not_finite(ns):
    """NaN or infinity ends a ray as a miss, also where a sign has changed."""
    for bad in (np.nan, np.inf, -np.inf):
        got = cn.render.sphere_trace(
            lambda p, bad=bad: dr.select(p[2] < 0.3, 0.25, bad), ns.Array3f(0, 0, -1), ns.Array3f(0, 0, 1), 5
        )
        assert not got.hit.numpy().any() and (got.t.numpy() == np.inf).all()


@few
@given(
    steps=st.integers(1, 300), eps=st.floats(1e-5, 0.05), relaxation=st.floats(1, 1.99), bisections=st.integers(0, 12),
    t_min=st.floats(-1, 1), length=st.floats(0.5, 9), silhouette=st.none() | st.floats(1e-3, 1),
    lipschitz=st.floats(1, 20),
)  # fmt: skip
def test_whatever_the_arguments(ns, steps, eps, relaxation, bisections, t_min, length, silhouette, lipschitz):
    """Hits are on the surface and on their ray, misses are empty, and nobody evaluates more than is allowed."""
    o, d, o_, d_ = rays(ns, 50)
    got = cn.render.sphere_trace(
        torus, o_, d_, t_min + length, steps, eps, t_min=t_min, relaxation=relaxation, bisections=bisections,
        silhouette=silhouette, lipschitz=lipschitz,
    )  # fmt: skip
    dr.eval(got)
    hit, t = got.hit.numpy(), got.t.numpy()[got.hit.numpy()]
    assert ((t >= t_min) & (t <= np.float32(t_min + length))).all() and (got.t.numpy()[~hit] == np.inf).all()
    p = (o + np.where(hit, got.t.numpy(), 0) * d)[:, hit]
    assert (abs(torus_64(p)) <= eps * lipschitz + 1e-5).all()
    np.testing.assert_allclose((got.normal.numpy() ** 2).sum(axis=0), hit, atol=1e-4)
    assert (got.evaluations.numpy() <= steps + bisections).all()
    closest = got.closest.numpy()
    assert ((closest >= np.float32(t_min)) & (closest <= np.float32(t_min + length))).all()


def test_keys(ns, backend):
    """One mask for all evaluations of a ray: its hit is on the surface of one network."""
    twin = Twin(ns, backend, dropout=0.2)
    _, _, o, d = rays(ns, 64)
    key = cn.Key(3, step=1)
    got = cn.render.sphere_trace(twin.field, o, d, 4, 400, key=key, lipschitz=2 * twin.lipschitz)
    value = twin.field(got.position, key)[0].numpy()[got.hit.numpy()]
    assert got.hit.numpy().any() and np.abs(value).max() < (2e-2 if twin.half else 3e-4 * twin.lipschitz)
    other = cn.render.sphere_trace(twin.field, o, d, 4, 400, key=key.fold_in(2), lipschitz=2 * twin.lipschitz)
    assert (other.t.numpy() != got.t.numpy()).any()
    seen = cn.render.sphere_trace(
        lambda p, key: twin.field(p, key)[0], o, d, 4, 400, key=key, lipschitz=2 * twin.lipschitz
    )
    both = seen.hit.numpy() & got.hit.numpy()
    differ = (seen.hit.numpy() != got.hit.numpy()).sum()  # functions are not known to be half, and refined further
    assert both.any() and differ <= (3 if twin.half else 0)
    np.testing.assert_allclose(seen.t.numpy()[both], got.t.numpy()[both], atol=2e-2 if twin.half else 1e-5)


# ---- One kernel --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["function", "field", "trained field", "grid"])
def test_one_kernel(ns, backend, kind):
    """All results together, gradients enabled or not, soft visibility included."""
    _, _, o, d = rays(ns)
    f = sphere
    if kind == "grid":
        grid = cn.HashGrid(3, n_levels=3, base_resolution=4)
        f = cn.NeuralField(grid, cn.MLP(-1, 1, width=16, depth=1)).build(backend)
    elif kind != "function":
        f = Twin(ns, backend).field
    if kind == "trained field":
        dr.enable_grad(f["network.weights"], o, d)
    for silhouette in (None, 0.1):
        with launched() as kernels:
            got = cn.render.sphere_trace(f, o, d, 4, silhouette=silhouette)
            results = [got]
            if silhouette:
                results.append(cn.render.soft_visibility(f, o, d, got, silhouette))
            dr.eval(results)
        assert len(kernels) == 1


# ---- Gradients ---------------------------------------------------------------------------------------------


def test_of_a_function(ns):
    """Depth, position and normal of a sphere by its radius and centre."""
    o, d, o_, d_ = rays(ns)
    _, keep = clear(sphere_64, o, d, 6)
    keep &= ref.sphere_trace(sphere_64, o, d, 6).hit
    rng = np.random.default_rng(1)
    a = rng.normal(size=(7, RAYS)) * keep

    def loss_64(theta):
        def f(p):
            return np.sqrt(((p - theta[:3, None]) ** 2).sum(axis=0)) - theta[3]

        got = ref.sphere_trace(f, o, d, 6)
        return float((a[0] * np.where(keep, got.t, 0)).sum() + (a[1:4] * got.position + a[4:] * got.normal).sum())

    b = arrays(ns, a)

    def loss(method):
        """Of every ray: their sum would be a kernel more."""
        theta = [ns.Float(0), ns.Float(0), ns.Float(0), ns.Float(0.8)]
        dr.enable_grad(theta)

        def f(p):
            return dr.norm(p - ns.Array3f(*theta[:3])) - theta[3]

        if method:

            class Known:
                def __call__(self, p):
                    return f(p)

                def value_and_grad(self, p):
                    q = p - ns.Array3f(*theta[:3])
                    return dr.norm(q) - theta[3], dr.normalize(q)

            got = cn.render.sphere_trace(Known(), o_, d_, 6)
        else:
            got = cn.render.sphere_trace(f, o_, d_, 6)
        return theta, b[0] * dr.select(ns.Bool(keep), got.t, 0) + dr.dot(b[1:4], got.position) + dr.dot(
            b[4:], got.normal
        )

    wanted = differences(loss_64, np.array([0, 0, 0, 0.8]), range(4), 1e-5)
    for method, tolerance in ((False, 2e-3), (True, 1e-4)):
        theta, total = loss(method)
        dr.backward(total)
        close([v.numpy()[0] for v in evaluated(dr.grad(theta))], wanted, tolerance)
        for i in (0, 3):
            theta, total = loss(method)
            dr.set_grad(theta[i], 1)
            dr.forward_to(total)
            close(dr.grad(total).numpy().sum() / abs(wanted).max(), wanted[i] / abs(wanted).max(), tolerance * 100)


def test_of_a_network(ns, backend):
    """Depth, position and normal by weights, origins and directions: differences of the float64 reference."""
    twin = Twin(ns, backend, "sine")
    o, d, o_, d_ = rays(ns, 100)
    expected, keep = clear(twin, o, d, 4, 5e-2, least=0.2, lipschitz=twin.lipschitz)
    keep &= expected.hit
    assert keep.sum() > 20
    a = np.random.default_rng(1).normal(size=(7, 100)) * keep

    def terms(f, o, d):
        got = ref.sphere_trace(f, o, d, 4, lipschitz=1.5 * twin.lipschitz)
        return a[0] * np.where(keep, got.t, 0) + (a[1:4] * got.position + a[4:] * got.normal).sum(axis=0)

    weights = twin.field["network.weights"]
    dr.enable_grad(weights, o_, d_)

    b = arrays(ns, a)

    def total():
        got = cn.render.sphere_trace(twin.field, o_, d_, 4, 600, lipschitz=1.5 * twin.lipschitz)
        return b[0] * dr.select(ns.Bool(keep), got.t, 0) + dr.dot(b[1:4], got.position) + dr.dot(b[4:], got.normal)

    dr.backward(total())
    tolerance = 0.15 if twin.half else 2e-3
    for number, got in enumerate(gradients(twin.field)[0]):
        places = range(0, got.size, 9)
        wanted = differences(
            lambda m, n=number: terms(twin.changed(n, m), o, d).sum(), twin.weights[number], places, 1e-5
        )
        close(got.flat[list(places)], wanted, tolerance)
    for which, rays_ in enumerate((o_, d_)):
        wanted = []
        for axis in np.eye(3)[:, :, None] * 1e-5:
            above, below = ([o + s * axis, d] if which == 0 else [o, d + s * axis] for s in (1, -1))
            wanted.append((terms(twin, *above) - terms(twin, *below)) / 2e-5)
        close(dr.grad(rays_).numpy(), np.array(wanted), tolerance)
    # forward mode gives the same sum
    tangent = dr.linspace(type(weights), 0.5, 1, dr.width(weights))
    backward = float(dr.sum(ns.Float(dr.grad(weights)) * ns.Float(tangent))[0])
    dr.disable_grad(o_, d_)
    y = total()
    dr.clear_grad(weights)
    dr.set_grad(weights, tangent)
    dr.forward_to(y)
    assert dr.grad(y).numpy().sum() == pytest.approx(backward, rel=5e-2 if twin.half else 1e-3)


def test_the_formula_of_the_reference():
    """Against differences, in float64."""
    rng = np.random.default_rng(2)
    o = np.array([[0.1, -0.3], [0.2, 0.1], [-2, -2]])
    d, do, dd = np.array([[0.0], [0.1], [1.0]]), rng.normal(size=(3, 2)), rng.normal(size=(3, 2))

    def at(h):
        return ref.sphere_trace(lambda p: sphere_64(p) - 0.3 * h, o + h * do, d + h * dd, 6, eps=1e-12)

    got = at(0)
    tangent = ref.hit_tangent(got.normal, np.broadcast_to(d, (3, 2)), got.t, np.full(2, -0.3), do, dd)
    np.testing.assert_allclose(tangent, (at(1e-5).t - at(-1e-5).t) / 2e-5, rtol=1e-5)
    t, f = ref.closest_approach(sphere_64, np.array([[1.0], [0], [-2]]), np.array([[0.0], [0], [1]]), 6)
    assert t == pytest.approx(2) and f == pytest.approx(0.2)
    assert ref.soft_visibility(sphere_64, np.array([[1.0], [0], [-2]]), np.array([[0.0], [0], [1]]), 6, 0.1) == (
        pytest.approx(1 / (1 + np.exp(2)))
    )


def test_grazing_rays(ns):
    """Their gradients are those of a ray with the smallest cosine."""
    radius, least = ns.Float(1), 0.2
    dr.enable_grad(radius)
    x = 1 - np.array([0.5, 0.1, 1e-3, 1e-5])
    got = cn.render.sphere_trace(
        lambda p: dr.norm(p) - radius, ns.Array3f(ns.Float(x), 0, -2), ns.Array3f(0, 0, 1), 4, 2000, min_cosine=least
    )
    gradient = []
    for i in range(4):
        dr.clear_grad(radius)
        dr.backward(dr.gather(ns.Float, got.t, dr.opaque(ns.UInt32, i)), flags=dr.ADFlag.ClearInterior)
        gradient.append(dr.grad(radius).numpy()[0])
    np.testing.assert_allclose(gradient, -1 / np.maximum(np.sqrt(1 - x**2), least), rtol=1e-3)


def test_flat_functions(ns):
    """Zero everywhere: a hit at once, without a normal, and without NaN in gradients."""
    theta = ns.Float(0)
    dr.enable_grad(theta)
    got = cn.render.sphere_trace(lambda p: 0 * p[0] + theta, ns.Array3f(0, 0, 0), ns.Array3f(0, 0, 1), 4)
    assert got.hit.numpy().all() and not got.normal.numpy().any()
    dr.backward(got.t)
    assert np.isfinite(dr.grad(theta).numpy()).all()


# ---- Silhouettes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_soft_visibility(ns, name):
    """The smallest distance of the whole ray, behind the first hit as well."""
    f, f_64 = SHAPES[name]
    o, d, o_, d_ = rays(ns)
    got = cn.render.sphere_trace(f, o_, d_, 6, silhouette=0.05)
    got, seen = evaluated(got, cn.render.soft_visibility(f, o_, d_, got, 0.05))
    seen = seen.numpy()
    wanted = ref.soft_visibility(f_64, o, d, 6, 0.05)
    assert (seen[got.hit.numpy()] > 0.49).all() and (seen[~got.hit.numpy()] < 0.5).all()
    error = np.abs(seen - wanted)
    # the distance has kinks inside, where samples are half a width apart
    assert np.median(error) < 2e-4 and np.quantile(error, 0.97) < 2e-2 and error.max() < 0.1
    plain = cn.render.sphere_trace(f, o_, d_, 6)
    plain, less = evaluated(plain, cn.render.soft_visibility(f, o_, d_, plain, 0.05))
    np.testing.assert_array_equal(plain.hit.numpy(), got.hit.numpy())
    np.testing.assert_array_equal(plain.t.numpy(), got.t.numpy())
    less = less.numpy()[got.hit.numpy()]
    assert (less > 0.49).all() and less.mean() < 0.9 * seen[got.hit.numpy()].mean()


def test_visibility_behind_thin_things(ns):
    """A ray that grazes a small sphere in front of a large one is seen in full."""

    def two(p):
        return dr.minimum(dr.norm(p) - 0.8, dr.norm(p - ns.Array3f(0.1, 0, -2)) - 0.099)

    o, d = ns.Array3f(0, 0, -4), ns.Array3f(0, 0, 1)
    traced = cn.render.sphere_trace(two, o, d, 8, 500, silhouette=0.05)
    assert cn.render.soft_visibility(two, o, d, traced, 0.05).numpy()[0] > 0.99
    assert traced.t.numpy()[0] == np.inf or traced.t.numpy()[0] > 1


def test_gradients_of_silhouettes(ns, backend):
    """Of soft visibility by weights and rays: differences of the float64 reference."""
    twin = Twin(ns, backend)
    width = 0.2
    o, d, o_, d_ = rays(ns, 60)
    a = np.random.default_rng(3).normal(size=60)
    weights = twin.field["network.weights"]
    dr.enable_grad(weights, o_)
    traced = cn.render.sphere_trace(twin.field, o_, d_, 3, 400, lipschitz=twin.lipschitz, silhouette=width)
    seen = cn.render.soft_visibility(twin.field, o_, d_, traced, width)
    expected = ref.soft_visibility(twin, o, d, 3, width, 256)
    # rays with two minima of nearly the same depth may take either
    keep = abs(seen.numpy() - expected) < (5e-2 if twin.half else 1e-3)
    assert keep.mean() > 0.9
    a *= keep
    dr.backward(ns.Float(a) * seen)
    tolerance = 0.1 if twin.half else 1e-2
    for number, got in enumerate(gradients(twin.field)[0]):
        places = range(0, got.size, 9)

        def loss(matrix, number=number):
            return float((a * ref.soft_visibility(twin.changed(number, matrix), o, d, 3, width, 256)).sum())

        close(got.flat[list(places)], differences(loss, twin.weights[number], places, 1e-4), tolerance)
    wanted = [
        a
        * (ref.soft_visibility(twin, o + e, d, 3, width, 256) - ref.soft_visibility(twin, o - e, d, 3, width, 256))
        / 2e-4
        for e in np.eye(3)[:, :, None] * 1e-4
    ]
    close(dr.grad(o_).numpy(), np.array(wanted), tolerance, allowed=0.05)


def test_a_mask_moves_a_shape(ns):
    """Descent on a loss of soft masks finds the radius that the mask was made with; hard masks have no gradient."""
    _, _, o, d = rays(ns)
    target = ns.Float(cn.render.sphere_trace(lambda p: dr.norm(p) - 0.6, o, d, 6).hit)
    radius = ns.Float(0.9)
    for _ in range(30):
        dr.enable_grad(radius)

        def f(p, radius=radius):
            return dr.norm(p) - radius

        traced = cn.render.sphere_trace(f, o, d, 6, silhouette=0.05)
        loss = dr.mean(dr.square(cn.render.soft_visibility(f, o, d, traced, 0.05) - target))
        dr.backward(loss)
        radius = dr.detach(radius) - 0.1 * dr.grad(radius)
        dr.eval(radius)
    assert abs(radius.numpy()[0] - 0.6) < 0.03


# ---- In larger programs ------------------------------------------------------------------------------------


def test_inside_a_loop(ns, backend):
    """Two bounces in an outer symbolic loop, with gradients of weights, and unrolled."""
    twin = Twin(ns, backend)
    _, _, o_, d_ = rays(ns, 200)
    weights = twin.field["network.weights"]
    options = {"lipschitz": twin.lipschitz, "t_min": 0.05, "silhouette": 0.2}

    def bounce(o, d, total, lives):
        alive = lives == 1  # Dr.Jit 1.5 cannot differentiate loops of bounded length that carry masks
        got = cn.render.sphere_trace(twin.field, o, d, 4, 300, active=alive, **options)
        seen = cn.render.soft_visibility(twin.field, o, d, got, 0.2, active=alive)
        total = total + dr.select(got.hit, got.t + got.normal[0], 0) + seen
        # the next ray is not differentiated
        n, p = dr.detach(got.normal), dr.detach(got.position)
        d = dr.select(got.hit, d - 2 * dr.dot(n, d) * n, d)
        return dr.select(got.hit, p, o), d, total, dr.select(got.hit, ns.UInt32(1), 0)

    results = []
    for looped in (True, False):
        dr.disable_grad(weights)
        dr.enable_grad(weights)
        state = (ns.Array3f(o_), ns.Array3f(d_), dr.zeros(ns.Float, 200), dr.full(ns.UInt32, 1, 200))
        if looped:
            state = dr.while_loop(
                (ns.UInt32(0), *state), lambda i, *s: (i < 2) & (s[-1] == 1), lambda i, *s: (i + 1, *bounce(*s)),
                mode="symbolic", max_iterations=3,
            )[1:]  # fmt: skip
        else:
            for _ in range(2):
                state = bounce(*state)
        total = state[2]
        dr.backward(total)
        results.append((total.numpy(), dr.grad(weights).numpy().astype(np.float64)))
    (values, got), (expected, wanted) = results
    np.testing.assert_allclose(values, expected, atol=0.3 if twin.half else 1e-3)
    close(got, wanted, 5e-2 if twin.half else 1e-3)
    assert np.abs(wanted).max() > 1


def test_frozen(ns, backend):
    """Recorded once, for other rays, parameters and limits."""
    twin = Twin(ns, backend)
    weights = twin.field["network.weights"]

    def step(field, weights, o, d, t_max):
        dr.enable_grad(weights)
        got = cn.render.sphere_trace(field, o, d, t_max, 300, lipschitz=twin.lipschitz, silhouette=0.1)
        seen = cn.render.soft_visibility(field, o, d, got, 0.1)
        dr.backward(dr.select(got.hit, got.t + got.normal[1], 0) + seen)
        return dr.detach(got.t), dr.grad(field["network.weights"])

    frozen = dr.freeze(step)
    for seed in (0, 1, 2):
        _, _, o, d = rays(ns, 100, seed)
        t_max, results = dr.opaque(ns.Float, 3 + seed), []
        for function in (frozen, step):
            dr.disable_grad(weights)
            t, gradient = function(twin.field, weights, o, d, t_max)
            results.append((t.numpy(), gradient.numpy().astype(np.float64)))
        np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-5)
        close(results[0][1], results[1][1], 2e-2 if twin.half else 1e-4)
    assert frozen.n_recordings == 1


def test_in_conditionals(ns, backend):
    """As a part of an ``if_stmt``, which pushes a mask of its own."""
    twin = Twin(ns, backend)
    _, _, o, d = rays(ns, 64)
    got = cn.render.sphere_trace(twin.field, o, d, 4, 300, lipschitz=twin.lipschitz)
    even = dr.arange(ns.UInt32, 64) % 2 == 0

    def trace(o, d):
        return dr.detach(cn.render.sphere_trace(twin.field, o, d, 4, 300, lipschitz=twin.lipschitz).t)

    t = dr.if_stmt((o, d), even, trace, lambda o, d: ns.Float(-1), mode="symbolic")
    np.testing.assert_allclose(t.numpy(), dr.select(even, got.t, -1).numpy(), atol=1e-2 if twin.half else 1e-5)


def test_docstrings(ns, backend):
    """Every public name has an example, which runs."""
    _, _, o, d = rays(ns, 20)
    sdf = cn.NeuralField(None, cn.MLP(3, 1, width=8, depth=1)).build(backend)
    names = (cn.render.sphere_trace, cn.render.soft_visibility, cn.render.SurfaceHit)
    for value in names:
        examples = doctest.DocTestParser().get_examples(value.__doc__)
        assert examples
        scope = {"cn": cn, "sdf": sdf, "o": o, "d": d}
        for example in examples:
            exec(example.source, scope)
        dr.eval([v for v in scope.values() if isinstance(v, (dr.ArrayBase, cn.render.SurfaceHit))])


RUN = """
import sys
sys.path.insert(0, {tests!r})
import conftest  # sets the target
import drjit as dr
import coopnet as cn
from drjit.llvm.ad import Array3f, Float
net = cn.MLP(3, 1, width=16, depth=2, activation="tanh", bias=True)
field = cn.NeuralField(None, net).build("llvm", seed=5)
x, y = dr.meshgrid(dr.linspace(Float, -1, 1, 20), dr.linspace(Float, -1, 1, 20))
got = cn.render.sphere_trace(lambda p: dr.norm(p) - 0.7 + 0.2 * field(p)[0], Array3f(x, y, -2), Array3f(0, 0, 1), 4)
print([v if v < 9 else 9.0 for v in got.t.numpy().tolist()])
"""


@pytest.mark.slow
def test_another_processor(backend):
    if backend == "cuda":
        pytest.skip("about processors")
    results = []
    for target in ("haswell:8", ""):
        done = run(RUN.format(tests=str(ROOT / "tests")), COOPNET_TARGET=target)
        assert done.returncode == 0, done.stderr
        results.append(np.array(eval(done.stdout)))
    assert (results[0] < 9).mean() > 0.2
    assert np.mean(np.abs(results[0] - results[1]) > 1e-4) < 0.01


def test_the_closest_approach_to_a_point(ns):
    """Where distances fall and rise in straight lines, the slope says nothing of how far the smallest one is."""
    height, ahead = np.repeat([1e-4, 1e-2], 50), np.tile(np.linspace(1, 3, 50), 2)
    rays = ns.Array3f(height, 0, -ahead), ns.Array3f(0, 0, 1)
    traced = cn.render.sphere_trace(lambda p: dr.norm(p) + 0.01, *rays, 5, silhouette=0.02)
    np.testing.assert_allclose(traced.closest.numpy(), ahead, atol=3e-3)


# ---- Arguments ---------------------------------------------------------------------------------------------


def test_errors_come_first(ns, backend):
    o, d = ns.Array3f(0, 0, -2), ns.Array3f(0, 0, 1)
    wide, four = ns.Array3f(dr.zeros(ns.Float, 5), 0, 0), [dr.zeros(ns.Float, 4)] * 3
    double, two = ns.Array3f64(0, 0, 1), ns.Bool([True, False])
    trace, seen = cn.render.sphere_trace, cn.render.soft_visibility
    unbuilt = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1))
    flat = unbuilt.build(backend)
    heads = cn.NeuralField(None, cn.MLP(3, 2, width=8, depth=1)).build(backend)
    traced = trace(sphere, o, d, 4)
    for error, message, call in [
        (TypeError, "sphere_trace: sdf is a int; a NeuralField", lambda: trace(3, o, d, 4)),
        (ValueError, "the field is not built yet", lambda: trace(unbuilt, o, d, 4)),
        (ValueError, "sphere_trace: sdf is a field of 2 coordinates", lambda: trace(flat, o, d, 4)),
        (ValueError, "sphere_trace: what sdf returned has 2 components", lambda: trace(heads, o, d, 4)),
        (ValueError, "sphere_trace: what sdf returned has 3 components", lambda: trace(lambda p: p, o, d, 4)),
        (TypeError, "sphere_trace: what sdf returned: got builtins.float", lambda: trace(lambda p: 1.0, o, d, 4)),
        (TypeError, "sphere_trace: what sdf returned.*Float64", lambda: trace(lambda p: ns.Float64(p[0]), o, d, 4)),
        (TypeError, "sphere_trace: o: got builtins.int", lambda: trace(sphere, 1, d, 4)),
        (ValueError, "sphere_trace: o is a NumPy array of shape", lambda: trace(sphere, np.zeros((4, 3)), d, 4)),
        (TypeError, "sphere_trace: d: got values of type .*Float64", lambda: trace(sphere, o, double, 4)),
        (ValueError, "sphere_trace: d has 2 components; 3", lambda: trace(sphere, o, ns.Array2f(0, 1), 4)),
        (ValueError, "sphere_trace: d has 5 entries for 4 rays", lambda: trace(sphere, four, wide, 4)),
        (ValueError, "sphere_trace: t_max is nan; a finite number", lambda: trace(sphere, o, d, float("nan"))),
        (ValueError, "sphere_trace: t_max is 0; a number above t_min, 0.0", lambda: trace(sphere, o, d, 0)),
        (ValueError, "sphere_trace: t_max has 4 entries for 5", lambda: trace(sphere, o, wide, dr.zeros(ns.Float, 4))),
        (TypeError, "sphere_trace: t_max is a Array2f", lambda: trace(sphere, o, d, ns.Array2f(1))),
        (ValueError, "sphere_trace: steps is 0; a positive int", lambda: trace(sphere, o, d, 4, 0)),
        (ValueError, "sphere_trace: steps is 2.5; a positive int", lambda: trace(sphere, o, d, 4, 2.5)),
        (ValueError, "sphere_trace: eps is 0; a positive number", lambda: trace(sphere, o, d, 4, eps=0)),
        (ValueError, "sphere_trace: t_min is inf; a finite", lambda: trace(sphere, o, d, 4, t_min=float("inf"))),
        (ValueError, "sphere_trace: relaxation is 2; a number of at", lambda: trace(sphere, o, d, 4, relaxation=2)),
        (ValueError, "sphere_trace: relaxation is 0.9; a", lambda: trace(sphere, o, d, 4, relaxation=0.9)),
        (ValueError, "sphere_trace: bisections is -1; an int", lambda: trace(sphere, o, d, 4, bisections=-1)),
        (ValueError, "sphere_trace: lipschitz is -1; a positive", lambda: trace(sphere, o, d, 4, lipschitz=-1)),
        (ValueError, "sphere_trace: silhouette is 0; a positive", lambda: trace(sphere, o, d, 4, silhouette=0)),
        (ValueError, "sphere_trace: min_cosine is 0; a number", lambda: trace(sphere, o, d, 4, min_cosine=0)),
        (ValueError, "sphere_trace: difference is 0; a positive", lambda: trace(sphere, o, d, 4, difference=0)),
        (TypeError, "sphere_trace: key is a int; a coopnet.Key", lambda: trace(sphere, o, d, 4, key=3)),
        (TypeError, "sphere_trace: active is a int; a bool or", lambda: trace(sphere, o, d, 4, active=3)),
        (ValueError, "sphere_trace: active has 2 entries for 5", lambda: trace(sphere, o, wide, 4, active=two)),
        (TypeError, "soft_visibility: traced is a tuple; a Surf", lambda: seen(sphere, o, d, tuple(traced), 0.1)),
        (ValueError, "soft_visibility: width is 0; a positive", lambda: seen(sphere, o, d, traced, 0)),
        (ValueError, "soft_visibility: traced has 5 entries for 4",
         lambda: seen(sphere, o, four, trace(sphere, wide, d, 4), 0.1)),
    ]:  # fmt: skip
        with launched() as kernels, pytest.raises(error, match=message):
            call()
        assert not kernels, message
