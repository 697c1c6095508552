"""Visits of rays to cells, and what rays see that was not seen."""

import drjit as dr
import numpy as np
import pytest
from support.arrays import all_close, evaluated

import coopnet as cn
from coopnet import reference as ref
from coopnet.checks import memory

LOWER, UPPER, RESOLUTION, STEPS = (-1, -1, -1), (1, 1.25, 0.75), (5, 6, 7), 40


def rays(n, seed=0):
    """Origins outside the box, towards it."""
    rng = np.random.default_rng(seed)
    o = rng.normal(0, 1, (3, n))
    o *= 2.5 / np.linalg.norm(o, axis=0)
    return o.astype(np.float32), ((rng.uniform(-0.7, 0.7, (3, n)) - o) / 2).astype(np.float32)


def wall(p, d, key, active):
    """Dense beyond x = 0.2, thin fog elsewhere."""
    return dr.select(p.x > 0.2, 20, 0.3), [0 * p.x] * 3


def expected(o, d, near, far):
    t, length = ref.march_distances(near, far, np.full((STEPS, o.shape[1]), 0.5))
    p = o.astype(np.float64)[:, None] + t * d.astype(np.float64)[:, None]
    sigma = np.where(p[0] > 0.2, 20, 0.3)
    return (*ref.visits(sigma, p, length, RESOLUTION, LOWER, UPPER), p)


def counted(backend, n=300):
    ns = cn.backend.namespace(backend)
    visits = cn.render.Visits(RESOLUTION, LOWER, UPPER, backend)
    o, d = rays(n)
    visits.add(wall, ns.Array3f(o), ns.Array3f(d), 0.25, 3.5, STEPS, density="none")
    return visits, o, d


def test_visits_are_those_of_the_reference(ns, backend):
    visits, o, d = counted(backend)
    n, _, _ = expected(o, d, np.full(300, 0.25), np.full(300, 3.5))
    found = visits.counts.numpy().astype(np.float64).reshape(n.shape) / 2**20
    # a sample on a face may be on either side of it
    assert abs(found.sum() - n.sum()) < 0.01 * n.sum() and n.max() > 2
    assert (abs(found - n) < 0.01 * n + 1e-3).mean() > 0.95

    q = np.random.default_rng(1).uniform(-1.4, 1.4, (3, 500))
    q[:, 0] = np.nan
    at = visits.unseen(ns.Array3f(q)).numpy()
    assert at[0] == 1
    all_close(at[1:], ref.unseen(found, q[:, 1:], LOWER, UPPER), 1e-5)


def test_rays_are_unseen_where_they_come_to_what_was_not_seen(ns, backend):
    visits, *_ = counted(backend)
    o, d = rays(200, seed=5)
    near, far = np.full(200, 0.25), np.full(200, 3.5)
    _, left, p = expected(o, d, near, far)
    found = visits.counts.numpy().astype(np.float64).reshape(RESOLUTION[::-1]) / 2**20
    inside = np.all((p >= np.reshape(LOWER, (3, 1, 1))) & (p < np.reshape(UPPER, (3, 1, 1))), axis=0)
    known = np.max(np.where(inside, left * ref.unseen(found, p, LOWER, UPPER), 0), axis=0)
    along = visits.along(wall, ns.Array3f(o), ns.Array3f(d), 0.25, 3.5, STEPS, density="none").numpy()
    assert known.min() < 0.5 and known.max() > 0.6
    all_close(along, known, 1e-3)
    masked = visits.along(wall, ns.Array3f(o), ns.Array3f(d), 0.25, 3.5, STEPS, density="none", active=False)
    assert not masked.numpy().any()


def test_what_lies_behind_a_wall_was_not_seen(ns, backend):
    visits = cn.render.Visits(16, -1, 1, backend)
    rng = np.random.default_rng(0)
    o = np.stack([np.full(4000, -2.0), *rng.uniform(-0.9, 0.9, (2, 4000))]).astype(np.float32)
    front = ns.Array3f(o), [1, 0, 0], 0, 4, 80
    visits.add(wall, *front, density="none")
    back = ns.Array3f(-o), [-1, 0, 0], 1, 4, 80  # from within the box
    seen, unseen = (visits.along(wall, *rays, density="none").numpy() for rays in (front, back))
    assert np.median(seen) < 0.35 and unseen.min() > 0.9


def test_sums_do_not_depend_on_the_order_of_rays(ns, backend):
    whole, o, d = counted(backend)
    parts = cn.render.Visits(RESOLUTION, LOWER, UPPER, backend)
    for part in (slice(200, 300), slice(0, 200)):
        parts.add(wall, ns.Array3f(o[:, part]), ns.Array3f(d[:, part]), 0.25, 3.5, STEPS, density="none")
    assert np.array_equal(whole.counts.numpy(), parts.counts.numpy())


def test_fields_frozen_functions_and_gradients(ns, backend):
    field = cn.NeuralField(cn.HashGrid(3, n_levels=2, hashmap_size=64), cn.MLP(out_features=4, width=16)).build(backend)
    for v in field.values():
        dr.enable_grad(v)
    o, d = (ns.Array3f(v) for v in rays(64))
    visits = cn.render.Visits(4, -1, 1, backend)
    visits.add(field, o, d, 0.25, 3.5, 16)
    plain = evaluated(visits.along(field, o, d, 0.25, 3.5, 16))

    @dr.freeze
    def both(field, o, d):
        fresh = cn.render.Visits(4, -1, 1, backend)
        fresh.add(field, o, d, 0.25, 3.5, 16)
        return fresh.counts, fresh.along(field, o, d, 0.25, 3.5, 16)

    for _ in range(2):
        counts, along = both(field, o, d)
        assert np.array_equal(counts.numpy(), visits.counts.numpy())
        all_close(along.numpy(), plain.numpy(), 1e-6)
    assert not dr.grad_enabled(along)


def test_defaults(backend):
    visits = cn.render.Visits(backend=backend)
    assert (visits.resolution, visits.lower, visits.upper) == ((32,) * 3, (0,) * 3, (1,) * 3)
    assert dr.width(visits.counts) == 32**3


def test_counts_are_evaluated(backend):
    assert counted(backend, 10)[0].counts.state == dr.VarState.Evaluated


@pytest.mark.parametrize(("kind", "itemsize"), [(cn.render.Visits, 8), (cn.render.OccupancyGrid, 4)])
def test_cells_fit_into_the_memory_of_a_cpu(backend, monkeypatch, kind, itemsize):
    """Dr.Jit would end the process."""
    if backend == "cuda":
        pytest.skip("Dr.Jit reports missing memory of a GPU")
    twice = 2 * itemsize * 512
    monkeypatch.setattr(memory, "_LARGE", 0)
    monkeypatch.setattr(memory, "memory_left", lambda: {memory.MEMORY: twice})
    assert kind(8, backend=backend).cells == 512
    monkeypatch.setattr(memory, "memory_left", lambda: {memory.MEMORY: twice - 1})
    with pytest.raises(ValueError, match=f"{kind.__name__}: 512 cells do not fit"):
        kind(8, backend=backend)


def test_wrong_use(ns, backend):
    visits, o = cn.render.Visits(4, -1, 1, backend), ns.Array3f(0, 0, 0)
    with pytest.raises(ValueError, match="Visits: resolution is 0"):
        cn.render.Visits(0)
    with pytest.raises(ValueError, match="each of lower must be less"):
        cn.render.Visits(4, 1, 1)
    with pytest.raises(ValueError, match=r"Visits\.add: steps is 0"):
        visits.add(wall, o, [1, 0, 0], 0, 1, 0)
    with pytest.raises(ValueError, match=r"Visits\.unseen: p has 2 components"):
        visits.unseen([o.x, o.y])
    with pytest.raises(TypeError, match=r"Visits\.along: field is a int"):
        visits.along(3, o, [1, 0, 0], 0, 1, 8)


def test_in_a_loop(ns, backend):
    visits, o, d = counted(backend)
    rays = ns.Array3f(o), ns.Array3f(d), 0.25, 3.5, STEPS
    plain = visits.along(wall, *rays, density="none").numpy()

    def twice(change):
        start = ns.UInt32(0), dr.zeros(ns.Float, 300)
        return dr.while_loop(start, lambda i, _: i < 2, lambda i, _: (i + 1, change()), mode="symbolic")[1]

    all_close(twice(lambda: visits.along(wall, *rays, density="none")).numpy(), plain, 1e-6)
    with pytest.raises(RuntimeError) as error:
        twice(lambda: visits.add(wall, *rays, density="none"))
    assert "Visits.add: called in a symbolic loop" in str(error.value.__cause__ or error.value)
