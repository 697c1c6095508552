"""Marching along rays: against the float64 reference, finite differences and closed forms, in every mode."""

import contextlib
import sys
import warnings

import drjit as dr
import numpy as np
import pytest
from support.arrays import all_close, arrays, close, differences, evaluated
from support.kernels import launched
from support.networks import gradients, in_order, matrices

import coopnet as cn
from coopnet import reference as ref
from coopnet.nn.parameters import parameters
from coopnet.reference.networks import MLPDropout, mlp_vjp

MODES = ["loop", "replay", "wide"]
STEPS = 6
module = sys.modules["coopnet.render.ray_march"]


def softplus(x):
    return np.logaddexp(0, x)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rays(n, seed=0):
    """Origins, directions and ranges in float64 that are single-precision numbers."""
    rng = np.random.default_rng(seed)
    d = rng.normal(size=(3, n))
    near = rng.uniform(0.1, 0.3, n)
    parts = rng.uniform(-0.5, 0.5, (3, n)), d / np.linalg.norm(d, axis=0), near, near + rng.uniform(0.5, 2, n)
    return [v.astype(np.float32).astype(np.float64) for v in parts]


class Case:
    """A field on rays, and the same in float64."""

    def __init__(self, ns, backend, inputs=3, n=40, key=None, masks="sample", dropout=0.25, width=4, **options):
        self.ns, self.key, self.masks, self.n = ns, key, masks, n
        self.jitter = options.get("jitter", True)
        self.options = {"key": self._key(), "dropout": masks, **options}
        network = cn.MLP(inputs, 4, width=width, depth=1, bias=True, dropout=dropout, activation="tanh")
        self.field = cn.NeuralField(None, network).build(backend, seed=3)
        for name in [p.name for p in parameters(self.field) if p.name.endswith("bias")]:
            self.field.set_matrix(name, np.linspace(-0.5, 0.7, len(self.field.matrix(name))))
        self.inputs, self.p = inputs, dropout
        self.numbers = rays(n)
        self.cotangents = np.random.default_rng(7).normal(size=(5, n)).astype(np.float32).astype(np.float64)
        self.tolerance = 3e-2 if backend == "cuda" else 2e-5

    def _key(self):
        return None if self.key is None else cn.Key(self.key[0], step=self.key[1])

    # ---- here ---------------------------------------------------------------

    def arrays(self):
        o, d, near, far = self.numbers
        found = arrays(self.ns, [*o, *d, near, far])
        return [self.ns.Array3f(found[:3]), self.ns.Array3f(found[3:6]), *found[6:]]

    def march(self, mode, geometry, **options):
        seen = cn.render.ray_march(self.field, *geometry, STEPS, mode=mode, **(self.options | options))
        return [*seen.color, seen.transmittance, seen.depth]

    def attach(self):
        for v in self.field.values():
            dr.disable_grad(v)
            dr.enable_grad(v)

    def run(self, mode, **options):
        """(sums, gradients by the parameters, gradients by origins, directions, near and far)."""
        geometry = self.arrays()
        self.attach()
        dr.enable_grad(geometry)
        sums = self.march(mode, geometry, **options)
        dr.backward(sum(y * c for y, c in zip(sums, arrays(self.ns, self.cotangents), strict=True)))
        dr.eval(sums, dr.grad([*geometry, *self.field.values()]))
        by_parameters = in_order(*gradients(self.field.network))
        return np.array([v.numpy() for v in sums]), by_parameters, [dr.grad(v).numpy() for v in geometry]

    # ---- in float64 ---------------------------------------------------------

    def samples(self, o, d, near, far):
        """Inputs of the network ``(inputs, steps * rays)``, distances, bin lengths and its dropout."""
        offsets = np.full((STEPS, self.n), 0.5)
        dropout = None
        if self.key is not None:
            seed, step = self.key
            if self.jitter:
                offsets = ref.march_offsets(STEPS, self.n, seed, step=step)
            i, lane = np.divmod(np.arange(STEPS * self.n), self.n)
            if self.masks != "off":
                steps = step * STEPS + i if self.masks == "sample" else np.full(len(i), step)
                dropout = MLPDropout(self.p, 16, seed, lane.astype(np.uint32), steps.astype(np.uint32))
        t, length = ref.march_distances(near, far, offsets)
        p = o[:, None] + t * d[:, None]
        x = p if self.inputs == 3 else np.concatenate([p, np.broadcast_to(d[:, None], p.shape)])
        return x.reshape(self.inputs, -1), t, length, dropout

    def expected(self, *geometry, termination=0.0, background=0.0):
        """The sums in float64."""
        x, t, length, dropout = self.samples(*(geometry or self.numbers))
        weights, biases = matrices(self.field.network)
        y = ref.mlp(weights, x, "tanh", biases=biases, dropout=dropout, dtype=np.float32).reshape(4, STEPS, self.n)
        sums = ref.ray_march(softplus(y[0]), sigmoid(y[1:]), t, length, background, termination)
        return np.concatenate([sums[0], sums[1][None], sums[2][None]])

    def expected_gradients(self, termination=0.0, background=0.0):
        """Gradients by the parameters, and by origins, directions, near and far."""
        x, t, length, dropout = self.samples(*self.numbers)
        weights, biases = matrices(self.field.network)
        options = {"biases": biases, "dropout": dropout, "dtype": np.float32}
        y = ref.mlp(weights, x, "tanh", **options).reshape(4, STEPS, self.n)
        c = sigmoid(y[1:])
        dy = self.cotangents
        dsigma, dcolor = ref.ray_march_vjp(softplus(y[0]), c, t, length, dy[:3], dy[3], dy[4], background, termination)
        dy = np.concatenate([(dsigma * sigmoid(y[0]))[None], dcolor * c * (1 - c)]).reshape(4, -1)
        _, _, dW, db = mlp_vjp(weights, x, dy, "tanh", **options)
        by_geometry = []
        h = 1e-5
        for k in range(4):
            value = self.numbers[k]
            rows = []
            for row in range(3) if value.ndim == 2 else (slice(None),):
                ends = []
                for sign in (1, -1):
                    moved = [v.copy() for v in self.numbers]
                    moved[k][row] += sign * h
                    found = self.expected(*moved, termination=termination, background=background)
                    ends.append((found * self.cotangents).sum(axis=0))
                rows.append((ends[0] - ends[1]) / (2 * h))
            by_geometry.append(np.array(rows) if value.ndim == 2 else rows[0])
        return in_order(dW, db), by_geometry


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("inputs", "key", "masks", "termination"),
    [(3, None, "sample", 0.0), (6, (5, 3), "sample", 0.0), (3, (2**40, 9), "ray", 0.0), (3, (1, 2), "off", 0.6)],
)
def test_agrees_with_float64(ns, backend, mode, inputs, key, masks, termination):
    case = Case(ns, backend, inputs, key=key, masks=masks)
    background = [0.3, 0.9, 0.1]
    sums, by_parameters, by_geometry = case.run(mode, termination=termination, background=background)
    close(sums, case.expected(termination=termination, background=background), case.tolerance)
    weights, geometry = case.expected_gradients(termination, background)
    all_close(by_parameters, weights, case.tolerance * 3)
    all_close(by_geometry, geometry, case.tolerance * 10)


def test_the_reference_gradient_is_that_of_its_values():
    rng = np.random.default_rng(0)
    sigma, color, t = rng.random((5, 3)) * 2, rng.random((3, 5, 3)), np.sort(rng.random((5, 3)), axis=0)
    length, background, dy = rng.random(3), rng.random(3), rng.normal(size=(5, 3))

    def loss(sigma, color):
        c, left, depth = ref.ray_march(sigma, color, t, length, background, 0.2)
        return (c * dy[:3]).sum() + (left * dy[3]).sum() + (depth * dy[4]).sum()

    dsigma, dcolor = ref.ray_march_vjp(sigma, color, t, length, dy[:3], dy[3], dy[4], background, 0.2)
    close(dsigma.ravel(), differences(lambda s: loss(s, color), sigma, range(15), 1e-6), 1e-6)
    close(dcolor.ravel(), differences(lambda c: loss(sigma, c), color, range(45), 1e-6), 1e-6)


@pytest.mark.parametrize("masks", ["sample", "ray", "off"])
@pytest.mark.parametrize("backend_only", ["llvm"])
def test_modes_give_one_answer_to_the_bit(ns, backend, masks, backend_only):
    if backend != backend_only:
        pytest.skip("kernels of other shapes round differently on GPUs")
    case = Case(ns, backend, key=(3, 1), masks=masks)
    found = [case.run(mode, background=0.5) for mode in MODES]
    for sums, _, _ in found[1:]:
        assert np.array_equal(sums, found[0][0])
    assert not np.array_equal(found[0][0], Case(ns, backend, key=(3, 2), masks=masks).run("loop", background=0.5)[0])


@pytest.mark.parametrize("mode", MODES)
def test_forward_mode_is_the_transpose(ns, backend, mode):
    """<dy, J v> = <J^T dy, v> for parameters and geometry together."""
    case = Case(ns, backend, 6, key=(4, 0))
    geometry = case.arrays()
    case.attach()
    dr.enable_grad(geometry)
    rng = np.random.default_rng(1)
    arrays = [*case.field.values(), *geometry]
    tangents = []
    for v in arrays:
        tangent = type(dr.detach(v))(rng.normal(size=dr.shape(v)).astype(dr.detach(v).numpy().dtype) * 0.25)
        dr.set_grad(v, tangent)
        tangents.append(tangent.numpy().astype(np.float64))
    sums = case.march(mode, geometry)
    moved = dr.forward_to(*sums)
    forward = sum(
        (v.numpy().astype(np.float64) * c).sum() for v, c in zip(evaluated(moved), case.cotangents, strict=True)
    )
    geometry = case.arrays()
    case.attach()
    dr.enable_grad(geometry)
    sums = case.march(mode, geometry)
    dr.backward(sum(y * ns.Float(c) for y, c in zip(sums, case.cotangents, strict=True)))
    found = [v.numpy().astype(np.float64) for v in evaluated(dr.grad([*case.field.values(), *geometry]))]
    backward = sum((g * t).sum() for g, t in zip(found, tangents, strict=True))
    scale = sum(np.abs(g * t).sum() for g, t in zip(found, tangents, strict=True))
    assert abs(forward - backward) < (1e-2 if backend == "cuda" else 1e-5) * scale


@pytest.mark.parametrize("mode", MODES)
def test_constant_density_has_a_closed_form(ns, mode):
    sigma, length, near = 1.7, 1.5, 0.25

    def fog(p, d, key, active):
        return sigma + 0 * p.x, ns.Array3f(0.2, 0.5, 1.0)

    seen = cn.render.ray_march(
        fog, ns.Array3f([0, 1], 0, 0), ns.Array3f(0, 0, 1), near, near + length, 512, mode=mode, background=2,
        parameters=[],
    )  # fmt: skip
    left = np.exp(-sigma * length)
    depth = near * (1 - left) + (1 - (1 + sigma * length) * left) / sigma
    close(seen.transmittance, [left] * 2, 1e-4)  # a product of 512 factors
    close(seen.depth, [depth] * 2, 1e-4)
    close(seen.color, np.array([[0.2, 0.5, 1.0]] * 2).T * (1 - left) + 2 * left, 1e-4)


RAW = np.array([-20.0, -3, -0.5, 0, 0.25, 2, 14, 20])
CURVES = {
    "softplus": softplus(RAW),
    "exp": np.exp(np.minimum(RAW, 15)),
    "relu": np.maximum(RAW, 0),
    "none": RAW,
    "sigmoid": sigmoid(RAW),
}


@pytest.mark.parametrize("name", CURVES)
def test_activations(ns, name):
    functions = sys.modules["coopnet.render.radiance"].FUNCTIONS
    assert set(functions) == set(CURVES)
    x = ns.Float(RAW)
    dr.enable_grad(x)
    y = functions[name](x)
    dr.backward(y)
    np.testing.assert_allclose(y.numpy(), CURVES[name], 1e-5, 1e-7)
    assert np.isfinite(dr.grad(x).numpy()).all()


@pytest.mark.parametrize("mode", MODES)
def test_names_of_activations_are_obeyed(ns, backend, mode):
    case = Case(ns, backend, dropout=0.0)
    sums = case.march(mode, case.arrays(), density="exp", color="none")
    x, t, length, _ = case.samples(*case.numbers)
    weights, biases = matrices(case.field.network)
    y = ref.mlp(weights, x, "tanh", biases=biases).reshape(4, STEPS, case.n)
    expected = ref.ray_march(np.exp(y[0]), y[1:], t, length)
    close(np.array([v.numpy() for v in evaluated(sums[:3])]), expected[0], case.tolerance)


@pytest.mark.parametrize("mode", MODES)
def test_rays_that_are_none(ns, backend, mode):
    """Inactive ones and those with numbers that are not finite return zeros and leave no gradient, not even NaN."""
    case = Case(ns, backend, 6)
    good = np.ones(case.n, bool)
    for place, (k, bad) in enumerate([(0, np.nan), (1, np.inf), (2, np.nan), (3, -np.inf)]):
        case.numbers[k][..., place] = bad
        good[place] = False
    active = np.ones(case.n, bool)
    active[20:30] = False
    case.numbers[0][0, 25] = np.nan
    good &= active
    sums, by_parameters, by_geometry = case.run(mode, active=ns.Bool(active), background=1)
    assert (sums[:, ~good] == 0).all()
    assert all((g[..., ~good] == 0).all() for g in by_geometry)
    other = Case(ns, backend, 6)
    other.n = good.sum()
    other.numbers = [v[..., good] for v in case.numbers]
    other.cotangents = case.cotangents[:, good]
    expected, weights, geometry = other.run(mode, background=1)
    close(sums[:, good], expected, case.tolerance)
    all_close(by_parameters, weights, case.tolerance * 3)
    all_close([g[..., good] for g in by_geometry], geometry, case.tolerance * 3)


def test_traced_code_sees_numbers_only(ns, backend):
    """Also where it does not look at ``active``: rays that are none lie at zero."""
    seen = []

    def volume(p, d, key, active):
        seen.append([v.numpy() for v in (*p, *d)])
        return p.x, p

    o = ns.Array3f([0, np.nan, 1, 2, 3], 0, 0)
    d = ns.Array3f([1, 1, np.inf, 1, 1], 0, 1)
    options = {"mode": "wide", "active": ns.Bool([True, True, True, True, False])}
    cn.render.ray_march(volume, o, d, ns.Float([0, 0, 0, np.nan, 0]), 1, 3, **options)
    assert np.isfinite(seen[0]).all()


@pytest.mark.parametrize("mode", MODES)
def test_a_range_of_no_length_shows_the_background(ns, backend, mode):
    case = Case(ns, backend)
    case.numbers[3][:10] = case.numbers[2][:10] - np.linspace(0, 1, 10)
    sums, by_parameters, _ = case.run(mode, background=0.75)
    assert (sums[:3, :10] == 0.75).all() and (sums[3, :10] == 1).all() and (sums[4, :10] == 0).all()
    assert all(np.isfinite(g).all() for g in by_parameters)
    assert not cn.render.ray_march(case.field, *case.arrays()[:2], 0, 1, 3, active=False).color.numpy().any()


@pytest.mark.parametrize("mode", MODES)
def test_opaque_matter(ns, mode):
    """Densities beyond all bounds end a ray and leave finite gradients."""
    sigma = ns.Float([1e30, 1e5, 1])
    dr.enable_grad(sigma)

    def wall(p, d, key, active):
        return sigma if mode != "wide" else dr.tile(sigma, 4), ns.Array3f(1, 0, 0)

    o = ns.Array3f([0, 1, 2], 0, 0)
    seen = cn.render.ray_march(wall, o, ns.Array3f(0, 0, 1), 0, 1, 4, mode=mode, parameters=[])
    assert np.allclose(seen.color.x.numpy(), 1 - seen.transmittance.numpy())
    if mode != "replay":  # traced code's own arrays are none of its modules' parameters
        dr.backward(seen.color.x)
        assert np.isfinite(dr.grad(sigma).numpy()).all() and dr.grad(sigma).numpy()[2] > 0


@pytest.mark.parametrize("mode, grid", [*((mode, True) for mode in MODES), ("replay", False)])
def test_frozen(ns, backend, mode, grid):
    """Other keys and numbers of rays, as plain calls."""
    case = Case(ns, backend)
    occupancy = cn.render.OccupancyGrid(4, -2, 2, backend) if grid else None
    if grid:
        occupancy.set_density(np.random.default_rng(0).random(64), 0.4)

    def step(field, occupancy, o, d, near, far, number):
        case.field = field
        options = {"key": cn.Key(1, step=number), "occupancy": occupancy, "termination": 0.1}
        sums = case.march(mode, (o, d, near, far), **options)
        dr.backward(sum(y * (i + 1) for i, y in enumerate(sums)))
        return [dr.detach(v) for v in sums], [dr.grad(v) for v in field.values()]

    frozen = dr.freeze(step)
    for number, n in enumerate((40, 40, 40, 17, 60)):
        case.numbers, found = rays(n, number), []
        for function in (frozen, step):
            case.attach()
            arrays = function(case.field, occupancy, *case.arrays(), dr.opaque(ns.UInt32, number))
            dr.eval(arrays)
            found.append([v.numpy().astype(np.float64) for part in arrays for v in part])
        all_close(found[0], found[1], case.tolerance)


@pytest.mark.parametrize("mode", MODES)
def test_recordings(ns, backend, mode):
    """One for all keys; a new number of rays may need another, which is then kept to. Results are those of calls."""
    case = Case(ns, backend)

    def step(field, o, d, number):
        seen = cn.render.ray_march(field, o, d, 0, 1, STEPS, key=cn.Key(1, step=number), mode=mode)
        dr.backward(seen.color.x + seen.depth)
        return [dr.detach(seen.color.x), *(dr.grad(v) for v in field.values())]

    frozen, counts = dr.freeze(step), []
    for number, n in enumerate((640, 640, 640, 640, 64, 64, 64)):
        # made by a kernel: of NumPy's memory, every alignment would be recorded by itself
        u = cn.uniform(6, cn.Key(3, step=number), ns.Float, n)
        dr.make_opaque(u)
        found = []
        for function in (frozen, step):
            case.attach()
            arrays = function(case.field, u[:3], u[3:], dr.opaque(ns.UInt32, number))
            dr.eval(arrays)
            found.append([v.numpy().astype(np.float64) for v in arrays])
        assert found[0][0].shape == (n,)
        all_close(found[0], found[1], case.tolerance)
        counts.append(frozen.n_recordings)
    assert counts[3] == 1 and counts[6] == counts[4] <= 2, counts


@pytest.mark.parametrize("mode", MODES)
def test_more_rays_than_were_recorded(ns, backend, mode):
    """Buffers of the recording would be too small; without gradients, as with them the process would end."""
    field = cn.NeuralField(None, cn.MLP(3, 4, width=8, depth=1)).build(backend)
    dr.disable_grad(field["network.weights"])
    frozen = dr.freeze(lambda field, o, d: cn.render.ray_march(field, o, d, 0, 1, STEPS, mode=mode).color)
    for number, n in enumerate((64, 64, 640)):
        u = cn.uniform(6, cn.Key(3, step=number), ns.Float, n)
        dr.make_opaque(u)
        expected = cn.render.ray_march(field, u[:3], u[3:], 0, 1, STEPS, mode=mode).color
        close(frozen(field, u[:3], u[3:]).numpy(), expected.numpy(), 3e-2 if backend == "cuda" else 1e-5)


def test_the_result_is_a_tree(ns, backend):
    case = Case(ns, backend)
    frozen = dr.freeze(lambda field, *geometry: cn.render.ray_march(field, *geometry, STEPS))
    for _ in range(2):
        seen = frozen(case.field, *case.arrays())
    assert isinstance(seen, cn.render.March) and isinstance(seen.color, ns.Array3f)
    close(seen.depth.numpy(), case.expected()[4], case.tolerance)


def test_one_kernel(ns, backend):
    case = Case(ns, backend, key=(1, 0))
    grid = cn.render.OccupancyGrid(4, -2, 2, backend)
    for options in ({"mode": "loop"}, {"mode": "replay"}, {}, {"occupancy": grid, "background": 1}):
        geometry = case.arrays()
        dr.eval(grid.bits)
        case.options["key"] = cn.Key(dr.opaque(ns.UInt64, 1), step=dr.opaque(ns.UInt32, 0))
        with launched() as kernels:
            dr.eval(cn.render.ray_march(case.field, *geometry, STEPS, **(case.options | options)))
        assert len(kernels) == 1, options


def test_inside_a_loop(ns, backend):
    """Two marches per turn of a loop, differentiated as a whole, against the same without it."""
    case = Case(ns, backend, key=(2, 0))

    def march(i, o, d, near, far):
        seen = cn.render.ray_march(
            case.field, [v + 0.125 * ns.Float(i) for v in o], d, near, far, STEPS, key=cn.Key(2, step=i)
        )
        return seen.color.x * seen.depth

    def gradient(run):
        case.attach()
        y = run(*case.arrays())
        dr.backward(y)
        dr.eval(y, dr.grad(list(case.field.values())))
        return [y.numpy(), *in_order(*gradients(case.field.network))]

    def loop(o, d, near, far):
        start = (ns.UInt32(0), dr.zeros(ns.Float, case.n))
        return dr.while_loop(
            start, lambda i, y: i < 2, lambda i, y: (i + 1, y + march(i, o, d, near, far)), mode="symbolic",
            max_iterations=2,
        )[1]  # fmt: skip

    plain = gradient(lambda *geometry: march(ns.UInt32(0), *geometry) + march(ns.UInt32(1), *geometry))
    all_close(gradient(loop), plain, case.tolerance)


@pytest.mark.parametrize("mode", ["wide", "replay"])
def test_modes_that_a_loop_cannot_hold(ns, backend, mode):
    case = Case(ns, backend)
    case.attach()
    geometry = case.arrays()

    def turn(i, y):
        return i + 1, y + case.march(mode, geometry)[0]

    start = (ns.UInt32(0), dr.zeros(ns.Float, case.n))
    with pytest.raises(RuntimeError) as caught:
        dr.while_loop(start, lambda i, y: i < 2, turn, mode="symbolic")
    assert "ray_march: mode is" in str(caught.value.__cause__)


@pytest.mark.parametrize("mode", MODES)
def test_traced_code(ns, backend, mode):
    """Two fields, evaluated by a function that says what it depends on."""
    case = Case(ns, backend, key=(6, 3))
    shape = cn.NeuralField(None, cn.MLP(3, 1, width=4, depth=1)).build(backend, seed=1)

    def volume(p, d, key, active):
        raw = case.field(p, key, active)
        return dr.exp(shape(p, None, active)), [1 / (1 + dr.exp(-v)) for v in list(raw)[1:]]

    def run(mode):
        for v in shape.values():
            dr.disable_grad(v)
            dr.enable_grad(v)
        case.attach()
        parts = [case.field, shape, case.field]
        seen = cn.render.ray_march(volume, *case.arrays(), STEPS, mode=mode, parameters=parts, **case.options)
        dr.backward(seen.color.x + seen.depth)
        dr.eval(seen, dr.grad([*shape.values(), *case.field.values()]))
        found = [*gradients(case.field.network)[0], *gradients(shape.network)[0]]
        return [seen.color.numpy(), *found]

    found = run(mode)
    assert all(np.abs(v).max() > 0 for v in found)
    all_close(found, run("loop"), case.tolerance)


@pytest.mark.parametrize("mode", MODES)
def test_hash_grids(ns, backend, mode):
    """Gradients of a table and a network, modes against each other."""
    network = cn.MLP(out_features=4, width=4, depth=1)
    field = cn.NeuralField(cn.HashGrid(3, n_levels=2, hashmap_size=2**7), network).build(backend, seed=2)
    case = Case(ns, backend)
    case.field = field

    def run(mode, path="auto"):
        case.attach()
        with cn.gradient_path(path):
            sums = case.march(mode, case.arrays())
            dr.backward(sum(sums))
        dr.eval(sums, dr.grad(list(field.values())))
        return [*(v.numpy() for v in sums), *gradients(field.network)[0], field.gradient("encoding.data")]

    expected = run("wide" if mode == "loop" else "loop")
    all_close(run(mode), expected, case.tolerance * 3)
    if mode == "replay":  # accumulators as on CUDA
        all_close(run(mode, "banks"), expected, case.tolerance * 3)


@pytest.mark.parametrize("mode", MODES)
def test_weights_that_are_computed(ns, backend, mode):
    """The gradient goes on to what they were computed from, and the field's own arrays come back."""
    case = Case(ns, backend, dropout=0.0)
    name = next(iter(case.field))
    case.attach()
    dr.backward(sum(case.march("loop", case.arrays())))
    expected = dr.grad(case.field[name]).numpy()
    base = dr.detach(case.field[name]) * 0.5
    dr.enable_grad(base)
    case.field[name] = base * 2
    index = case.field[name].index_ad
    dr.backward(sum(case.march(mode, case.arrays())))
    assert case.field[name].index_ad == index
    close(dr.grad(base).numpy(), 2 * expected, case.tolerance * 3)


def test_background_gradient(ns, backend):
    case = Case(ns, backend)
    behind = ns.Array3f(0.1, 0.2, 0.3)
    dr.enable_grad(behind)
    sums = case.march("auto", case.arrays(), background=behind)
    dr.backward(sums[1])
    close(dr.grad(behind).numpy().ravel(), [0, case.expected()[3].sum(), 0], case.tolerance)


def test_what_auto_means(ns, backend, monkeypatch):
    case, taken = Case(ns, backend), []
    for name in ("wide", "replay"):
        monkeypatch.setattr(module, f"march_{name}", lambda marcher, rays, *_, name=name: (
            taken.append(name), [rays.dt] * 5)[1])  # fmt: skip
    geometry = case.arrays()
    for v in case.field.values():
        dr.disable_grad(v)
    case.march("auto", geometry)
    case.march("replay", geometry)  # without gradients, the loop
    assert taken == []
    case.attach()
    case.march("auto", geometry)
    monkeypatch.setattr(module, "WIDE", case.n * STEPS - 1)
    case.march("auto", geometry)
    cn.render.ray_march(lambda p, d, key, active: case.field(p), *geometry, STEPS)
    with dr.suspend_grad():
        cn.render.ray_march(lambda p, d, key, active: (p.x, p), *geometry, STEPS)
    assert taken == ["wide", "replay", "wide"]


def test_memory(ns, backend):
    """What a gradient takes does not grow with the steps of a replay; of a batch of all samples, it does."""
    field = cn.NeuralField(None, cn.MLP(3, 4, width=8, depth=1)).build(backend)
    which = dr.JitBackend.CUDA if backend == "cuda" else dr.JitBackend.LLVM

    def peak(mode, steps):
        o = dr.linspace(ns.Float, 0, 1, 4096)
        for v in field.values():
            dr.disable_grad(v)
            dr.enable_grad(v)

        def gradient():
            seen = cn.render.ray_march(field, [o, o * 2, o * 3], [o, o - 1, o], 0, 1, steps, mode=mode)
            dr.backward(seen.color.x)
            dr.eval([dr.grad(v) for v in field.values()])
            dr.sync_thread()

        gradient()
        dr.flush_malloc_cache()
        dr.detail.malloc_clear_statistics()
        before = dr.detail.malloc_watermark(which)
        gradient()
        return dr.detail.malloc_watermark(which) - before

    assert peak("replay", 64) <= 1.1 * peak("replay", 4)
    assert peak("wide", 64) > 4 * peak("wide", 4)


def test_any_widths(ns, backend):
    """Numbers, single entries and arrays side by side; all modes alike."""
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies
    field = cn.NeuralField(None, cn.MLP(3, 4, width=4, depth=1)).build(backend)

    @hypothesis.settings(max_examples=4)
    @hypothesis.given(st.data(), st.integers(1, 9), st.sampled_from([1, 5]))
    def run(data, n, steps):
        wide = [data.draw(st.booleans()) for _ in range(6)]
        values = np.random.default_rng(n).random((8, n)).astype(np.float32)

        def scalar(k, wide):
            return arrays(ns, [values[k] if wide else values[k, :1]])[0]

        o = [scalar(k, wide[0]) for k in range(3)]
        d = ns.Array3f(scalar(3, wide[1]), scalar(4, wide[2]), scalar(5, False))
        near = scalar(6, True) if wide[3] else 0.25
        far = scalar(7, wide[4]) + 1
        active = ns.Bool(values[0] > 0.25) if wide[5] else True
        found = []
        for mode in MODES:
            for v in field.values():
                dr.disable_grad(v)
                dr.enable_grad(v)
            seen = cn.render.ray_march(field, o, d, near, far, steps, mode=mode, active=active, background=1)
            dr.backward(seen.color.x + seen.depth)
            found.append([v.numpy() for v in evaluated([seen.color, seen.depth, dr.grad(field["network.weights"])])])
        any_wide = wide[0] or wide[1] or wide[2] or wide[3] or wide[4] or wide[5]
        assert found[0][0].shape == (3, n if any_wide else 1)
        for other in found[1:]:
            all_close(other, found[0], 3e-2 if backend == "cuda" else 1e-5)

    run()


def test_results_are_compared_by_identity(ns, backend):
    """As arrays have no truth value, ``==`` of two results could have none."""
    one, other = (
        cn.render.ray_march(lambda p, *_: (1.0, p), ns.Array3f(0), ns.Array3f(0, 0, 1), 0, 1, 2) for _ in range(2)
    )
    assert one == one and one != other and len({one, other}) == 2


ERRORS = [
    ({"steps": 0}, ValueError, "steps is 0"),
    ({"steps": 2.5}, ValueError, "steps is 2.5"),
    ({"mode": "fast"}, ValueError, "mode is 'fast'"),
    ({"dropout": "all"}, ValueError, "dropout is 'all'"),
    ({"density": "tanh"}, ValueError, "density is 'tanh'"),
    ({"color": 3}, ValueError, "color is 3"),
    ({"key": 3}, TypeError, "key is a int"),
    ({"jitter": 1}, ValueError, "jitter is 1"),
    ({"occupancy": 3}, TypeError, "occupancy is a int"),
    ({"termination": 1.0}, ValueError, "termination is 1.0"),
    ({"termination": -0.5}, ValueError, "termination is -0.5"),
    ({"near": "0"}, ValueError, "near is '0'"),
    ({"far": float("nan")}, ValueError, "far is nan"),
    ({"active": 1}, TypeError, "active is a int"),
    ({"background": [1, 2]}, ValueError, "background has 2 components"),
    ({"o": 3}, TypeError, "o: got"),
    ({"d": np.zeros((2, 3))}, ValueError, "d is a NumPy array of shape (2, 3)"),
    ({"field": 3}, TypeError, "field is a int"),
    ({"parameters": 3}, ValueError, "parameters is 3"),
]


@pytest.mark.parametrize(("changed", "kind", "message"), ERRORS, ids=[str(next(iter(e[0]))) + e[2] for e in ERRORS])
def test_errors(ns, backend, changed, kind, message):
    field = cn.NeuralField(None, cn.MLP(3, 4, width=8, depth=1)).build(backend)
    valid = {"field": field, "o": ns.Array3f(0), "d": ns.Array3f(0, 0, 1), "near": 0, "far": 1, "steps": 4}
    with pytest.raises(kind, match=r"^ray_march") as caught:
        cn.render.ray_march(**(valid | changed))
    assert message in str(caught.value)


@pytest.mark.parametrize("last", ["softplus", "sigmoid", "exp", cn.ReLU()])
def test_activations_that_would_be_applied_twice(ns, backend, last):
    field = cn.NeuralField(None, cn.MLP(3, 4, width=8, depth=1, output_activation=last)).build(backend)
    rays = ns.Array3f(0), ns.Array3f(0, 0, 1), 0, 1, 4
    with pytest.warns(RuntimeWarning, match=r"^ray_march: the network ends in .* pass 'none'"):
        cn.render.ray_march(field, *rays)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cn.render.ray_march(field, *rays, density="none", color="none")


@pytest.mark.parametrize("mode", ["auto", *MODES])
def test_errors_of_fields_and_sizes(ns, backend, mode):
    o, d = ns.Array3f(0), ns.Array3f(0, 0, 1)
    unbuilt = cn.NeuralField(None, cn.MLP(3, 4, width=8, depth=1))
    five, two = (cn.NeuralField(None, cn.MLP(i, j, width=8, depth=1)).build(backend) for i, j in ((3, 5), (2, 4)))
    code = {"bad tuple": lambda *_: 3, "two colors": lambda p, *_: (p.x, [p.x, p.x])}
    for field, message in (
        (unbuilt, "not built"),
        (five, "5 outputs"),
        (two, "2 inputs"),
        (code["two colors"], "2 color components"),
    ):
        with pytest.raises(ValueError, match=r"^ray_march") as caught:
            found = None if isinstance(field, cn.NeuralField) else []
            cn.render.ray_march(field, o, d, 0, 1, 4, mode=mode, parameters=found)
        assert message in str(caught.value)
    with pytest.raises(TypeError, match="tuple \\(density, color\\)"):
        cn.render.ray_march(code["bad tuple"], o, d, 0, 1, 4, mode=mode, parameters=[])
    good = cn.NeuralField(None, cn.MLP(3, 4, width=8, depth=1)).build(backend)
    with pytest.raises(ValueError, match="ray_march: d has 3 entries for 2 rays; both must agree"):
        cn.render.ray_march(good, ns.Array3f([1, 2], 0, 0), ns.Array3f([1, 2, 3], 0, 0), 0, 1, 4)
    with pytest.raises(ValueError, match="parameters is None"):
        cn.render.ray_march(code["two colors"], o, d, 0, 1, 4, mode="replay")
    with pytest.raises(TypeError, match=r"parameters\[0\]"):
        cn.render.ray_march(code["two colors"], o, d, 0, 1, 4, parameters=[3])
    with pytest.raises(ValueError, match=r"^ray_march: o has 2 components"):
        cn.render.ray_march(good, ns.Array2f(0), d, 0, 1, 4)
    dr.enable_grad(good["network.weights"])
    for steps, fits in ((1 << 16, True), ((1 << 16) + 1, False)):
        expected = contextlib.nullcontext() if fits else pytest.raises(ValueError, match="take at most 65536")
        with expected:
            cn.render.ray_march(good, o, d, 0, 1, steps, mode="loop")


@pytest.mark.parametrize("mode", ["loop", "replay", "wide"])
@pytest.mark.parametrize("sparse", [False, True])
def test_other_numbers_of_steps_compile_nothing_new(ns, backend, mode, sparse):
    volume = cn.NeuralField(None, cn.MLP(3, 4, width=16, depth=1, dropout=0.1)).build(backend, seed=0)
    grid = cn.render.OccupancyGrid(4, backend=backend) if sparse else None
    o, d = ns.Array3f(dr.linspace(ns.Float, 0.1, 0.9, 50), 0.5, -1), ns.Array3f(0, 0.1, 1)
    dr.eval(o, d)
    kernels = []
    for steps in (5, 6, 11, 19):
        with launched() as history:
            weights = list(volume.values())
            if mode == "replay":
                dr.enable_grad(weights)
            seen = cn.render.ray_march(volume, o, d, 1.0, 2.0, steps, mode=mode, key=cn.Key(1), occupancy=grid)
            if mode == "replay":
                dr.backward(dr.mean(seen.color.x))
            dr.eval(seen, [dr.grad(v) for v in weights])
        kernels.append([k["hash"] for k in history])
    assert kernels[1] == kernels[2] == kernels[3]  # in the first one, gradients are constants
