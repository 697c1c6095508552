"""Grids of occupied cells, and rays that skip the empty ones."""

import drjit as dr
import numpy as np
import pytest
from support.arrays import all_close, close, evaluated

import coopnet as cn
from coopnet import reference as ref
from coopnet.render.rays import SampledRays

MODES = ["loop", "replay", "wide"]


def points(n, seed=0, low=-1.5, high=1.5):
    return np.random.default_rng(seed).uniform(low, high, (3, n)).astype(np.float32)


def random_grid(backend, resolution=(5, 6, 7), seed=0, share=0.4):
    grid = cn.render.OccupancyGrid(resolution, -1, np.array([1, 1.25, 0.75]), backend)
    values = np.random.default_rng(seed).random(grid.cells)
    grid.set_density(values, 1 - share)
    return grid, values > 1 - share


@pytest.mark.parametrize("resolution", [(1, 1, 1), (5, 6, 7), (8, 4, 2), (32, 1, 3)])
def test_bits(ns, backend, resolution):
    grid, full = random_grid(backend, resolution, sum(resolution))
    assert grid.cells == len(full) and grid.share() == full.mean()
    bits = np.array(grid.bits)
    stored = (bits[np.arange(grid.cells) // 32] >> (np.arange(grid.cells) % 32).astype(np.uint32)) & 1
    assert np.array_equal(stored.astype(bool), full)
    p = points(3000)
    p[:, :4] = [[np.nan, np.inf, -1, 1], [0, 0, -1, 1.25], [0, 0, -1, 0.75]]
    found = grid.occupied(ns.Array3f(p)).numpy()
    with np.errstate(invalid="ignore"):
        expected = ref.occupied(bits, p.astype(np.float64), grid.lower, grid.upper, resolution)
    assert (found != expected).mean() < 1e-3  # points on faces
    assert not found[:2].any() and not found[3]
    assert found[2] == full[0]  # the lower corner belongs to its cell, the upper one to none


def test_a_new_grid_is_full(ns, backend):
    grid = cn.render.OccupancyGrid(8, -1, 1, backend)
    assert grid.share() == 1
    assert grid.occupied(ns.Array3f(points(100, low=-0.99, high=0.99))).numpy().all()


def ball(p):
    """A density, in Dr.Jit and in NumPy."""
    x, y, z = p
    return 8 * np.maximum(0, 0.6 - (x * x + y * y + z * z)) if isinstance(p, np.ndarray) else (
        8 * dr.maximum(0, 0.6 - (x * x + y * y + z * z)))  # fmt: skip


def fog(p, d, key, active):
    return ball(p), [p.x * 0 + 0.5, abs(p.y), 0 * p.z + 1]


@pytest.mark.parametrize("share", [1, 4])
def test_update(ns, backend, share):
    """Against float64, three times in a row."""
    shape = np.array([6, 5, 7])
    grid = cn.render.OccupancyGrid(shape.tolist(), -1, 1, backend)
    density = np.full(grid.cells, np.inf)
    asked = -(-grid.cells // share)
    for step in range(3):
        grid.update(fog, cn.Key(9, step=step), decay=0.75, threshold=0.5, share=share)
        stream = 2**32 - 2  # 2^31 for samples, and the last stream but one
        lane = np.arange(asked)
        words = ref.philox4x32((0, lane.astype(np.uint32), step, stream), (9, 0))
        u = [(w >> 8) * 2.0**-24 for w in words]
        cells = lane if share == 1 else np.minimum(lane * share + (u[3] * share).astype(int), grid.cells - 1)
        place = np.array([cells % shape[0], cells // shape[0] % shape[1], cells // (shape[0] * shape[1])])
        p = (place + np.array(u[:3])) / shape[:, None] * 2 - 1
        density, full = ref.occupancy_update(density, cells, ball(p), 0.75, 0.5)
        close(grid.density.numpy()[: grid.cells], density, 1e-5)
        assert abs(grid.share() - full.mean()) < 0.02  # cells at the threshold
    assert 0.05 < grid.share() < 0.9


def test_the_threshold_is_at_most_the_mean(ns, backend):
    """A field that is thin everywhere is not empty."""
    grid = cn.render.OccupancyGrid(4, -1, 1, backend)
    grid.update(lambda p, d, key, active: (1e-6 * (2 + p.x), p), cn.Key(0), threshold=1.0)
    assert 0.25 < grid.share() < 0.75


def test_update_of_fields(ns, backend):
    """A network of 3 or 6 inputs, with dropout off, tracking gradients that the grid wants nothing of."""
    for inputs in (3, 6):
        field = cn.NeuralField(None, cn.MLP(inputs, 4, width=8, depth=1, dropout=0.5)).build(backend)
        dr.enable_grad(field["network.weights"])
        grid = cn.render.OccupancyGrid(4, -1, 1, backend)
        grid.update(field, cn.Key(0), density="exp")
        assert not dr.grad_enabled(grid.density) and np.isfinite(grid.density.numpy()).all()
        again = cn.render.OccupancyGrid(4, -1, 1, backend)
        again.update(field, cn.Key(0), density="exp")
        assert np.array_equal(grid.density.numpy(), again.density.numpy())


def directions(n, seed=1):
    d = np.random.default_rng(seed).normal(size=(3, n)).astype(np.float32)
    d[:, :3] = np.eye(3)  # parallel to the faces
    d[:, 3:6] = -np.eye(3)
    return d / np.linalg.norm(d, axis=0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("resolution", "steps"), [((5, 6, 7), 40), ((24, 24, 24), 9)])
@pytest.mark.parametrize("key", [None, 3])
def test_skipping_leaves_out_what_is_empty_and_nothing_else(ns, backend, mode, resolution, steps, key):
    """Against the same march with densities of 0 in place of skipped samples."""
    grid, _ = random_grid(backend, resolution)
    o, d = ns.Array3f(points(300)), ns.Array3f(directions(300))
    options = {"key": None if key is None else cn.Key(key), "parameters": []}

    def masked(p, d, key, active):
        sigma, rgb = fog(p + 0.1, d, key, active)
        return dr.select(grid.occupied(p), sigma + 1, 0), rgb

    def plain(p, d, key, active):
        sigma, rgb = fog(p + 0.1, d, key, active)
        return sigma + 1, rgb

    seen = cn.render.ray_march(plain, o, d, 0, 3, steps, mode=mode, occupancy=grid, **options)
    wanted = cn.render.ray_march(masked, o, d, 0, 3, steps, mode=mode, **options)
    for name in ("color", "transmittance", "depth"):
        a, b = (getattr(v, name).numpy() for v in (seen, wanted))
        close(a, b, 1e-5, allowed=0.01)  # samples on faces
    assert (wanted.transmittance.numpy() < 0.9).mean() > 0.2  # enough rays meet something for this to say anything


@pytest.mark.parametrize("mode", MODES)
def test_gradients_with_a_grid(ns, backend, mode):
    """Of the parameters, where cells that are left out are really empty: as without the grid."""
    field = cn.NeuralField(None, cn.MLP(3, 4, width=8, depth=1, bias=True)).build(backend, seed=4)

    def volume(p, d, key, active):
        raw = field(p, None, active)
        inside = abs(p.x) < 0.5
        return dr.select(inside, dr.exp(raw[0]), 0), [1 / (1 + dr.exp(-v)) for v in list(raw)[1:]]

    grid = cn.render.OccupancyGrid((4, 1, 1), -1, 1, backend)
    grid.set_density([0, 1, 1, 0])
    o, d = ns.Array3f(points(60)), ns.Array3f(directions(60))

    def run(mode, grid):
        for v in field.values():
            dr.disable_grad(v)
            dr.enable_grad(v)
        seen = cn.render.ray_march(
            volume, o, d, 0, 2, 8, key=cn.Key(0), mode=mode, occupancy=grid, termination=0.2, parameters=field
        )
        dr.backward(seen.color.x + seen.depth)
        return [v.numpy() for v in evaluated([seen.color, seen.depth, *dr.grad(list(field.values()))])]

    # outside the box nothing is: the field is cut there, too
    box = cn.render.OccupancyGrid((1, 1, 1), -1, 1, backend)
    all_close(run(mode, grid), run("loop", box), 2e-2 if backend == "cuda" else 2e-5)


def test_an_empty_cell_is_left_in_one_turn(ns, backend):
    """From each of its samples to the last bin in it, or the first behind it, which may be on either side."""
    grid = cn.render.OccupancyGrid(2, -1, 1, backend)
    i = ns.UInt32([0, 10, 48, 51])
    o, d = ([ns.Float(v) + dr.zeros(ns.Float, 4) for v in place] for place in ((0.5, 0.5, -1), (0, 0, 1)))
    rays = SampledRays(o, d, ns.Float(0), ns.Float(0.02), 100, ns.Bool(True), None, False, "off")
    found = grid._leaves(rays, rays.point(rays.distance(i)), i).numpy()
    assert np.isin(found - [50, 50, 50, 100], [-1, 0]).all()


def test_wide_batches_hold_occupied_samples_only(ns, backend):
    grid, _ = random_grid(backend)
    seen = []

    def counted(p, d, key, active):
        seen.append(dr.width(p))
        return fog(p, d, key, active)

    o, d = ns.Array3f(points(200, low=-1, high=1)), ns.Array3f(directions(200))
    cn.render.ray_march(counted, o, d, 0, 1, 20, mode="wide", occupancy=grid)
    assert 0 < seen[0] < 0.6 * 200 * 20
    grid.set_density(np.zeros(grid.cells))
    empty = cn.render.ray_march(counted, o, d, 0, 1, 20, mode="wide", occupancy=grid, background=0.25)
    assert seen[1:] == [1] and (empty.color.numpy() == 0.25).all() and (empty.transmittance.numpy() == 1).all()


@pytest.mark.parametrize("mode", ["auto", "wide", "loop", "replay"])
def test_gradients_of_rays_that_all_miss_are_zero(ns, backend, mode):
    field = cn.NeuralField(None, cn.MLP(3, 4, width=8, depth=1)).build(backend)
    dr.enable_grad(field["network.weights"])
    grid = cn.render.OccupancyGrid(4, backend=backend)
    grid.set_density(np.zeros((4, 4, 4)), threshold=0.5)
    o, d = ns.Array3f([0.5, 0.2], 0.5, -1), ns.Array3f(0, 0, 1)
    marched = cn.render.ray_march(field, o, d, 1.0, 2.0, 8, occupancy=grid, background=1, mode=mode)
    dr.backward(dr.sum(marched.color.x))
    assert (marched.color.numpy() == 1).all() and (dr.grad(field["network.weights"]).numpy() == 0).all()


def test_interval(ns, backend):
    grid = cn.render.OccupancyGrid(4, -1, (1, 2, 3), backend)
    o, d = points(500).astype(np.float64), directions(500).astype(np.float64)
    near, far = (v.numpy() for v in grid.interval(ns.Array3f(o), ns.Array3f(d)))
    for found, given in zip(
        cn.render.box_interval(ns.Array3f(o), ns.Array3f(d), -1, (1, 2, 3)), (near, far), strict=True
    ):
        np.testing.assert_array_equal(found.numpy(), given)
    hit = far > near
    assert 0.2 < hit.mean() < 0.95 and (near >= 0).all()
    lower, upper = np.reshape(grid.lower, (3, 1)), np.reshape(grid.upper, (3, 1))
    for t, inside in (((near + far) / 2, True), (far + 1e-3, False)):
        p = (o + t * d)[:, hit]
        assert (((p > lower - 1e-5) & (p < upper + 1e-5)).all(axis=0) == inside).all()
    fine = o[:, ~hit, None] + np.linspace(0, 6, 400) * d[:, ~hit, None]
    assert not ((fine > lower[..., None]) & (fine < upper[..., None])).all(axis=0).any()


def test_a_density_that_is_not_a_number(ns, backend):
    """Rays see it, instead of skipping all cells."""
    grid = cn.render.OccupancyGrid(4, backend=backend)

    def field(p, d, key, active):
        return dr.select(p.x < 0.25, dr.nan, dr.select(p.x < 0.5, 5, 0)), ns.Array3f(1)

    for step in range(2):
        grid.update(field, cn.Key(0, step=step), density="none")
        assert grid.share() == 0.5
    grid.set_density(np.where(np.arange(64) < 16, np.nan, 0))
    assert grid.share() == 0.25


def test_lines_along_the_axes(ns):
    """Inside, on a face, outside; from within, from before, and from behind the box."""
    o = ns.Array3f([0.5, 0, 1.5, 0.5, 0.5, 0.5], 0.5, [0.5, -1, -1, 3, -2, 0.25])
    near, far = cn.render.box_interval(o, [0, 0, 1])
    np.testing.assert_array_equal(near.numpy(), [0, 1, 0, 0, 2, 0])
    np.testing.assert_array_equal(far.numpy(), [0.5, 2, -1, -1, 3, 0.75])
    with pytest.raises(ValueError, match=r"render.box_interval: lower is \(2.0, .* and upper"):
        cn.render.box_interval(o, [0, 0, 1], 2, 1)


def test_frozen_updates(ns, backend):
    """The grid is an argument of the frozen function, which changes it; other keys record nothing anew."""

    def step(grid, number):
        grid.update(fog, cn.Key(1, step=number), threshold=0.5)

    frozen = dr.freeze(step)
    grids = [cn.render.OccupancyGrid(6, -1, 1, backend) for _ in range(2)]
    for number in range(5):
        for grid, function in zip(grids, (frozen, step), strict=True):
            function(grid, dr.opaque(ns.UInt32, number))
        assert np.array_equal(grids[0].density.numpy(), grids[1].density.numpy()), number
        assert np.array_equal(grids[0].bits.numpy(), grids[1].bits.numpy()), number
    assert frozen.n_recordings <= 2


def test_training_with_a_grid(ns, backend):
    """``fit`` with the grid in its objective, updated by its metric: later steps see the changed bits."""
    field = cn.NeuralField(None, cn.MLP(3, 4, width=8, depth=1, bias=True)).build(backend)
    grid = cn.render.OccupancyGrid(4, -1, 1, backend)
    updates = []

    def batch(key):
        u = cn.uniform(3, key, ns.Float, 64)
        return ns.Array3f(u) - 0.5

    def objective(field, o, key):
        seen = cn.render.ray_march(field, o, ns.Array3f(0, 0, 1), 0, 1, 4, key=key, occupancy=grid)
        return dr.squared_norm(seen.color - 0.75) + dr.square(seen.transmittance)

    def metric(field):
        if len(updates) == 1:
            grid.set_density(np.zeros(grid.cells))
        else:
            grid.update(field, cn.Key(1, step=len(updates)))
        updates.append(grid.share())
        return 0.0

    result = cn.fit(field, batch, 12, objective=objective, metric=metric, metric_every=4, progress=False, lr=1e-2)
    assert len(updates) == 3 and updates[1] == 0
    losses = np.array(result.losses)
    assert np.allclose(losses[8:], 3 * 0.75**2 + 1, rtol=1e-3) and not np.allclose(losses[:8], losses[8], rtol=1e-2)


def test_updates_in_training_steps(ns, backend):
    """In the objective of ``fit``, at every step: the grid is what the same updates outside make of another."""
    field = cn.NeuralField(None, cn.MLP(3, 4, width=8, depth=1, bias=True)).build(backend)
    grid, other = (cn.render.OccupancyGrid(6, -1, 1, backend) for _ in range(2))
    wanted = []

    def objective(field, o, key):
        grid.update(fog, key, decay=0.5, threshold=0.5)
        seen = cn.render.ray_march(field, o, ns.Array3f(0, 0, 1), 0, 1, 4, key=key, occupancy=grid)
        return dr.squared_norm(seen.color - 0.75)

    def metric(field):
        other.update(fog, cn.Key(0, step=len(wanted)), decay=0.5, threshold=0.5)
        wanted.append(other.share())
        assert np.array_equal(grid.bits.numpy(), other.bits.numpy())
        assert np.array_equal(grid.density.numpy(), other.density.numpy())
        return 0.0

    cn.fit(
        field, lambda key: ns.Array3f(cn.uniform(3, key, ns.Float, 64)) - 0.5, 6, objective=objective, metric=metric,
        metric_every=1, progress=False,
    )  # fmt: skip
    assert len(wanted) == 6 and len(set(wanted)) > 1


def test_in_a_loop(ns, backend):
    grid, _ = random_grid(backend)
    p = ns.Array3f(points(100, low=-1, high=0.7))
    _, _, found = dr.while_loop(
        (ns.UInt32(0), grid, dr.zeros(ns.UInt32, 100)),
        lambda i, grid, found: i < 3,
        lambda i, grid, found: (i + 1, grid, found + dr.select(grid.occupied(p), 1, 0)),
        mode="evaluated",
    )
    assert np.array_equal(found.numpy(), 3 * grid.occupied(p).numpy())


def test_storing(ns, backend):
    grid, _ = random_grid(backend)
    stored = grid.density.numpy()[: grid.cells]
    for values in (stored, stored.reshape(7, 6, 5), ns.Float(stored), stored.tolist()):
        other = cn.render.OccupancyGrid((5, 6, 7), -1, (1, 1.25, 0.75), backend)
        other.set_density(values, 0.6)
        assert np.array_equal(other.bits.numpy(), grid.bits.numpy())
    assert repr(grid) == "OccupancyGrid(resolution=(5, 6, 7), lower=(-1.0, -1.0, -1.0), upper=(1.0, 1.25, 0.75))"


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"resolution": 0}, ValueError), ({"resolution": 1025}, ValueError), ({"resolution": (1, 2)}, ValueError),
        ({"resolution": 2.5}, ValueError), ({"lower": 1, "upper": 1}, ValueError), ({"upper": "1"}, ValueError),
        ({"lower": (0, 0, float("nan"))}, ValueError), ({"backend": "metal"}, ValueError),
    ],
)  # fmt: skip
def test_errors_of_grids(arguments, kind):
    with pytest.raises(kind):
        cn.render.OccupancyGrid(**arguments)


def test_errors_of_updates(ns, backend):
    grid = cn.render.OccupancyGrid(4, backend=backend)
    for changed, kind in (
        ({"decay": 2.0}, ValueError), ({"threshold": -1.0}, ValueError), ({"share": 0}, ValueError),
        ({"share": 65}, ValueError), ({"key": 3}, TypeError), ({"field": 3}, TypeError), ({"density": "x"}, ValueError),
    ):  # fmt: skip
        arguments = {"field": fog, "key": cn.Key(0), "density": "softplus", "decay": 0.9, "threshold": 0.1, "share": 1}
        arguments |= changed
        field, key = arguments.pop("field"), arguments.pop("key")
        with pytest.raises(kind, match=r"^OccupancyGrid\.update"):
            grid.update(field, key, **arguments)
    for values in ([1, 2], "abc", np.ones(65)):
        with pytest.raises(ValueError, match=r"^OccupancyGrid\.set_density"):
            grid.set_density(values)


def test_a_grid_of_its_own(backend):
    """Without more, it has 128 cells a side of the unit cube."""
    grid = cn.render.OccupancyGrid(backend=backend)
    assert (grid.resolution, grid.lower, grid.upper) == ((128,) * 3, (0.0,) * 3, (1.0,) * 3)
