"""Fields over a box of their own: ``bounds`` maps it to the unit cube, wherever a field is evaluated."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext

import drjit as dr
import numpy as np
import pytest
from support.arrays import close, contain, values
from support.exported import imported
from support.pages import page_data
from support.properties import example, given, st

import coopnet as cn
from coopnet import bounds as box
from coopnet import reference as ref
from coopnet.bounds import checked
from coopnet.interop.export import View

GRID = dict(n_levels=3, hashmap_size=2**8, base_resolution=4, per_level_scale=1.9, init_scale=1.0)
BOX = ((-1.5, 2.0), (1.5, 10.0))
LOW, EXTENT = np.array([[-1.5], [2.0]]), np.array([[3.0], [8.0]])


def make(bounds=BOX, encoding="grid", outputs=1, dropout=0.0, activation="softplus"):
    made = {"grid": cn.HashGrid(2, **GRID), "blob": cn.OneBlob(4, 2), None: None}[encoding]
    network = cn.MLP(2 if encoding is None else -1, outputs, 8, 1, activation, dropout=dropout)
    return cn.NeuralField(made, network, bounds=bounds)


def points(ns, samples=60, seed=0):
    """Points of the box in NumPy, and opaque; and their places in the unit square."""
    unit = np.random.default_rng(seed).random((2, samples))
    x = (LOW + EXTENT * unit).astype(np.float32)
    unit = ref.unit_cube(x, *BOX)
    found = [ns.Float(v.copy()) for v in x], [ns.Float(v.astype(np.float32)) for v in unit]
    dr.make_opaque(found)
    return x, *found


# ---- The map -------------------------------------------------------------------------------------------------

SINGLE = st.floats(-1e6, 1e6, width=32)


@given(low=SINGLE, extent=st.floats(0.125, 1e6, width=32), t=st.floats(0, 1))
@example(low=-1.5, extent=3.0, t=1.0)
@example(low=1e6, extent=1.0, t=0.5)
def test_ends_and_places(low, extent, t):
    """The ends of the box are exactly 0, and 1 within a rounding; so is all between, far from the origin, too."""
    ns = cn.backend.namespace(cn.backend.available()[0])
    low, high = np.float32(low), np.float32(np.float32(low) + np.float32(extent))
    x = np.float32([low, high, low + t * (high - low)])
    (y,) = box.to_unit([ns.Float(x)], checked("test", (float(low), float(high))))
    found = y.numpy()
    assert found[0] == 0 and abs(found[1] - 1) <= 2**-23
    np.testing.assert_allclose(found, ref.unit_cube(x[None], low, high)[0], atol=2**-22)


@pytest.mark.parametrize("kind", ["nested", "list", "coopvec", "tensor"])
def test_containers(ns, backend, kind):
    field, plain = (make(b, dropout=0.3).build(backend, seed=4) for b in (BOX, None))
    _, p, unit = points(ns)
    tolerance = 2e-2 if backend == "cuda" else 1e-5
    for key in (None, cn.Key(3)):
        close(values(field(contain(ns, kind, p), key)), values(plain(contain(ns, kind, unit), key)), tolerance)


def test_values_of_the_reference(ns, backend):
    field = make().build(backend, seed=4)
    x, p, _ = points(ns)
    grid = field.encoding.grid.value
    scales = [level.scale for level in grid.levels]
    data = grid.data.numpy()
    options = {k: v for k, v in GRID.items() if k != "init_scale"}
    weights = [field.matrix(f"layers.{i}.weights") for i in (0, 2)]
    expected = ref.neural_field(
        lambda u: ref.hash_grid(u, data, **options, level_scales=scales),
        lambda u: ref.mlp(weights, u, "softplus"),
        bounds=BOX,
    )
    close(values(field(p)), expected(x), 2e-2 if backend == "cuda" else 5e-5)
    assert max(layer.max_error or 0 for layer in field.audit(p).layers) < (5e-2 if backend == "cuda" else 1e-3)


@pytest.mark.parametrize("encoding, precision", [("grid", "auto"), (None, "auto"), (None, "half")])
def test_derivatives_are_by_what_was_given(ns, backend, encoding, precision):
    """The chain rule: forwards, backwards through the network, and by Dr.Jit, also with gradients enabled."""
    activation = "relu" if precision == "half" else "softplus"  # half precision compiles slowly
    field, plain = (make(b, encoding, activation=activation).build(backend, precision, seed=4) for b in (BOX, None))
    _, p, unit = points(ns)
    tolerance = 1e-4 if field.precision == "single" else 5e-2
    value, slope = plain.value_and_grad(unit)
    expected = values(slope) / EXTENT
    y, gradient = field.value_and_grad(p)
    close(values(gradient), expected, tolerance)
    close(values(y), values(value), tolerance)
    if precision == "half":
        return
    v = np.random.default_rng(1).normal(size=expected.shape).astype(np.float32)
    _, moved = field.jvp(p, [ns.Float(c) for c in v])
    close(values(moved)[0], (expected * v).sum(0), tolerance)
    for c in p:
        dr.enable_grad(c)
    (row,) = field.jacobian(p)
    close(values(row), expected, tolerance)
    y = field(p)[0] * dr.opaque(ns.Float, 1)
    dr.backward(y)
    close(values([dr.grad(c) for c in p]), expected, tolerance)


def test_lanes_that_do_not_count(ns, backend):
    """They return zeros and send nothing back, though zero, which they are evaluated at, is far outside the box."""
    field = make(bounds=(100, 101)).build(backend)
    dr.enable_grad(field["encoding.data"])
    p = ns.Array2f(np.full((2, 3), 100.5, np.float32))
    y = field(p, active=ns.Bool([True, False, False]))
    assert (values(y)[0, 1:] == 0).all() and values(y)[0, 0] != 0
    dr.backward(y[0])
    alone = make(bounds=(100, 101)).build(backend)
    dr.enable_grad(alone["encoding.data"])
    dr.backward(alone(ns.Array2f(100.5, 100.5))[0])
    np.testing.assert_array_equal(*(dr.grad(f["encoding.data"]).numpy() for f in (field, alone)))


def test_loops_and_frozen_functions(ns, backend):
    field = make(encoding=None).build(backend)
    _, p, _ = points(ns)
    expected = values(field(p))

    @dr.freeze
    def frozen(field, p):
        def body(i, y):
            return i + 1, y + field(p)[0]

        return dr.while_loop((ns.UInt32(0), dr.zeros(ns.Float, 60)), lambda i, y: i < 2, body)[1]

    for _ in range(3):
        close(frozen(field, p).numpy(), 2 * expected[0], 2e-2 if backend == "cuda" else 1e-5)


def test_uncertainty(ns, backend):
    field, plain = (make(b, dropout=0.3).build(backend, seed=4) for b in (BOX, None))
    _, p, unit = points(ns)
    found, expected = (cn.mc_dropout(f, x, cn.Key(2), 4) for f, x in ((field, p), (plain, unit)))
    for a, b in zip(found, expected, strict=True):
        close(values(a), values(b), 2e-2 if backend == "cuda" else 1e-4)


# ---- Kept ----------------------------------------------------------------------------------------------------


def test_files(ns, backend, tmp_path):
    pytest.importorskip("safetensors")
    field = make(((-1.5, 2), 10)).build(backend, seed=3)
    cn.save(tmp_path / "a.safetensors", field)
    again = cn.load(tmp_path / "a.safetensors", backend)
    assert again.bounds == field.bounds == ((-1.5, 2.0), 10.0)
    _, p, _ = points(ns)
    np.testing.assert_array_equal(values(again(p)), values(field(p)))


def test_descriptions():
    """Older versions read those of fields without bounds, and are told by the version that they cannot read others."""
    plain, bounded = cn.io.describe(make(None)), cn.io.describe(make())
    assert plain["version"] == 1 and "bounds" not in plain
    assert bounded["version"] == 2 and bounded["bounds"] == [[-1.5, 2.0], [1.5, 10.0]]
    assert bounded == {**plain, "version": 2, "bounds": bounded["bounds"]}
    assert cn.io.construct(plain).bounds is None and cn.io.construct(bounded).bounds == BOX
    assert cn.io.construct(cn.io.describe(make((-1, 1)))).bounds == (-1.0, 1.0)
    for wrong in ([2, 1], [0], "01", {"low": 0}, [[0], [1]], [[0, None], 1], [0, 1e400]):
        with pytest.raises(ValueError, match=r"^(construct|NeuralField).*bounds"):
            cn.io.construct({**bounded, "in_features": 2, "bounds": wrong})


def test_blobs_of_older_files():
    """A layer got an argument: what older files mean, and files and hashes that stay as they were."""
    described = cn.io.describe(cn.NeuralField(cn.OneBlob(4, 2), cn.MLP(-1, 1)))
    assert "periodic" not in described["encoding"] and cn.io.construct(described).encoding.periodic
    described["encoding"]["periodic"] = False
    assert not cn.io.construct(described).encoding.periodic
    assert cn.io.describe(cn.io.construct(described)) == described


def test_a_run_is_not_resumed_in_another_box(ns, backend, tmp_path):
    pytest.importorskip("safetensors")
    _, p, _ = points(ns)
    run = dict(checkpoint=tmp_path / "run.safetensors", resume=True, progress=False)
    cn.fit(make().build(backend), lambda key: (p, [p[0]]), 2, **run)
    with pytest.raises(ValueError, match="another architecture"):
        cn.fit(make((-2, 10)).build(backend), lambda key: (p, [p[0]]), 4, **run)


def test_copies(backend):
    field = make().build(backend, seed=3)
    for other in (
        copy.deepcopy(field),
        pickle.loads(pickle.dumps(field)),
        field.build(backend, seed=1),
        cn.to(field, backend, precision="half"),
    ):
        assert other.bounds == BOX
    assert "bounds=((-1.5, 2.0), (1.5, 10.0))" in repr(field) and "bounds" not in repr(make(None))


def test_parameters_of_tiny_cuda_nn(ns, backend):
    config = {"encoding": {"otype": "HashGrid", "n_levels": 4, "log2_hashmap_size": 8}, "network": {"n_neurons": 16}}
    read = [cn.from_config(2, 3, config, pad="tcnn", bounds=b) for b in (BOX, None)]
    assert read[0].field.bounds == BOX and read[1].field.bounds is None
    field, plain = (r.field.build(backend, seed=s) for r, s in zip(read, (1, 2), strict=True))
    params = plain.to_tcnn()
    field.load_tcnn(params, config)
    assert field.bounds == BOX
    np.testing.assert_array_equal(field.to_tcnn(), params)
    _, p, unit = points(ns)
    close(values(field(p)), values(plain(unit)), 2e-2 if backend == "cuda" else 1e-4)
    with pytest.raises(ValueError, match=r"from_config: bounds are those of 3 coordinates"):
        cn.from_config(2, 3, config, bounds=([0] * 3, 1))


def test_pytorch(ns, backend):
    torch = pytest.importorskip("torch")
    from coopnet.interop.torch import Module

    field = make().build(backend, seed=3)
    x, p, _ = points(ns)
    module = Module(field)
    given = torch.tensor(x.T.copy(), device=next(module.parameters()).device, requires_grad=True)
    y = module(given)
    close(y.detach().cpu().numpy().T, values(field(p)), 2e-2 if backend == "cuda" else 1e-5)
    (gradient,) = torch.autograd.grad(y.sum(), given)
    close(gradient.cpu().numpy().T, values(field.value_and_grad(p)[1]), 5e-2 if backend == "cuda" else 1e-4)
    assert module.field().bounds == BOX


def test_exports_say_where_they_are_from(tmp_path):
    """Every target is compared with the field in tests/interop (``VARIANTS``); here, that bounds are numbers there."""
    field = make((-1.5, 1.5)).build("llvm", seed=1)
    x = np.random.default_rng(0).uniform(-1.5, 1.5, (2, 20)).astype(np.float32)
    ns = cn.backend.namespace("llvm")
    module = imported(cn.export(field, "numpy", tmp_path / "f.py", inline=True).source)
    close(module.field(x), values(field([ns.Float(v) for v in x])), 1e-5)
    assert "bounds: to the unit cube" in (tmp_path / "f.py").read_text()
    assert (
        cn.export(field, "c", tmp_path / "a.c").source.read_text()
        != cn.export(make(None).build("llvm", seed=1), "c", tmp_path / "b.c").source.read_text()
    )


# ---- Shown ---------------------------------------------------------------------------------------------------


def test_pages_show_the_box(tmp_path):
    def region(field, **view):
        return page_data(cn.export(field, "html", tmp_path / "p.html", view=View(**view)).source)["region"]

    assert region(make().build("llvm")) == [-1.5, 2, 3, 8]
    assert region(make().build("llvm"), region=(0, 0, 1, 1)) == [0, 0, 1, 1]
    ball = cn.NeuralField(None, cn.MLP(3, 1, 8, 1), bounds=(-1, (1, 2, 3))).build("llvm")
    assert region(ball) == [-1, -1, -1, 1, 2, 3]
    assert region(cn.NeuralField(None, cn.MLP(3, 1, 8, 1)).build("llvm")) == [0, 0, 0, 1, 1, 1]


def test_pictures_show_the_box(backend):
    from coopnet import image

    pytest.importorskip("PIL")
    field, plain = (make(b, outputs=3, dropout=0.3).build(backend, seed=3) for b in (BOX, None))
    tolerance = 2e-2 if backend == "cuda" else 1e-5
    close(image.render(field, 6, 4), image.render(plain, 6, 4, region=(0, 0, 1, 1)), tolerance)
    close(image.render(field, 6, 4, (-1.5, 2, 1.5, 4)), image.render(plain, 6, 4, (0, 0, 0.5, 0.5)), tolerance)
    found, expected = image.render_mc(field, 6, 4, 2), image.render_mc(plain, 6, 4, 2, region=(0, 0, 1, 1))
    close(found[0], expected[0], tolerance)


def test_pictures_of_surfaces_show_the_box(backend):
    """A ball in the unit cube, and the same thirty times as large, elsewhere: one picture."""
    from coopnet import mesh

    pytest.importorskip("PIL")

    def ball(bounds, scale):
        """Six ReLUs make the distance in the sum of sides."""
        field = cn.NeuralField(None, cn.MLP(3, 1, 8, 1, bias=True), bounds=bounds).build(backend, seed=0)
        first, second = np.zeros((8, 3)), np.zeros((1, 8))
        first[:6] = np.repeat(np.eye(3), 2, axis=0) * np.tile([1, -1], 3)[:, None]
        second[0, :6] = scale / np.sqrt(3)
        field.set_matrix("layers.0.weights", first)
        field.set_matrix("layers.0.bias", np.tile([-0.5, 0.5], 4))
        field.set_matrix("layers.2.weights", second)
        field.set_matrix("layers.2.bias", np.array([-0.2 * scale]))
        return field

    found = mesh.render(ball(((-10, 0, 5), (20, 30, 35)), 30), 24, 16)
    expected = mesh.render(ball(None, 1), 24, 16)
    assert (expected < 0.99).any(axis=2).mean() > 0.1
    assert np.abs(found - expected).mean() < 5e-3
    given = mesh.render(ball(((-10, 0, 5), (20, 30, 35)), 30), 24, 16, region=(-10, 0, 5, 20, 30, 35))
    np.testing.assert_array_equal(given, found)
    wider = mesh.render(ball(None, 1), 24, 16, region=(-0.5, -0.5, -0.5, 1.5, 1.5, 1.5))
    assert (wider < 0.99).any(axis=2).mean() == pytest.approx((expected < 0.99).any(axis=2).mean() / 4, rel=0.3)


# ---- What it is for ------------------------------------------------------------------------------------------


def test_a_grid_learns_in_a_box_what_it_learns_in_the_unit_square(ns, backend):
    """Outside the unit square a hash grid learns badly, as a warning says; with bounds as well as inside."""
    losses = {}
    for low, high, bounds in ((0, 1, None), (-1.5, 1.5, (-1.5, 1.5)), (-1.5, 1.5, None)):

        def batch(key, low=low, high=high):
            u, v = cn.uniform(2, key, ns.Float, 1024)
            target = dr.sin(12 * u) * dr.cos(10 * v)
            return [low + (high - low) * u, low + (high - low) * v], [target]

        grid = cn.HashGrid(2, n_levels=4, hashmap_size=2**10, base_resolution=4, per_level_scale=2.2)
        field = cn.NeuralField(grid, cn.MLP(out_features=1, width=8, depth=1), bounds=bounds).build(backend)
        expected = nullcontext() if bounds or low == 0 else pytest.warns(RuntimeWarning, match="bounds=")
        with expected:
            result = cn.fit(field, batch, 120, lr=1e-2, progress=False)
        losses[bounds, low] = float(np.mean(result.losses[-10:]))
    inside, with_bounds, without = losses.values()
    assert inside < 0.02 and with_bounds < 1.3 * inside and without > 5 * inside


# ---- What it may be ------------------------------------------------------------------------------------------


def test_ways_to_write_it():
    scalar = dr.scalar.Array2f(-1, 0)
    for given_, kept in [
        ((0, 1), (0.0, 1.0)), ([-1.5, 1.5], (-1.5, 1.5)), ((0, [1, 2]), (0.0, (1.0, 2.0))),
        (np.array([[0, 0], [1, 2]]), ((0.0, 0.0), (1.0, 2.0))), (np.float32([0, 1]), (0.0, 1.0)),
        ((scalar, np.int64(3)), ((-1.0, 0.0), 3.0)), (None, None),
    ]:  # fmt: skip
        assert make(given_).bounds == kept


@pytest.mark.parametrize(
    "bounds, error, words",
    [
        (3, TypeError, r"bounds is 3; a pair \(low, high\)"),
        ("01", TypeError, r"bounds is '01'; a pair"),
        ({0: 1}, TypeError, r"bounds is .*; a pair"),
        ((0,), ValueError, r"bounds is \(0,\); a pair"),
        ((0, 1, 2), ValueError, r"bounds is \(0, 1, 2\); a pair"),
        ((0, "1"), TypeError, r"high of bounds is '1'; a finite number, or one for each coordinate"),
        ((None, 1), TypeError, r"low of bounds is None; a finite number"),
        ((0, float("inf")), ValueError, r"high of bounds is inf; a finite number"),
        ((float("nan"), 1), ValueError, r"low of bounds is nan"),
        ((-1e39, 1), ValueError, r"low of bounds is -1e\+39"),
        ((True, 2), ValueError, r"low of bounds is True"),
        (([], 1), ValueError, r"low of bounds is \[\]"),
        (([0, None], 1), ValueError, r"low of bounds is \[0, None\]"),
        ((1, 0), ValueError, r"bounds are 1 and 0 in single precision; low < high"),
        ((1, 1 + 1e-9), ValueError, r"bounds are 1 and 1 in single precision"),
        (([0, 3], [1, 2]), ValueError, r"bounds of coordinate 1 are 3 and 2"),
        ((0, 1e-31), ValueError, r"bounds are 1e-31 apart; from 1e-30 to 1e\+30"),
        ((-3e38, 3e38), ValueError, r"bounds are 6e\+38 apart"),
        (([0, 0], [1, 1, 1]), ValueError, r"bounds have 2 numbers for low and 3 numbers for high"),
        (([0, 0, 0], 1), ValueError, r"bounds are those of 3 coordinates, but the field takes 2"),
    ],
)  # fmt: skip
def test_errors(bounds, error, words):
    with pytest.raises(error, match=rf"^NeuralField(\.build)?: {words}"):
        make(bounds).build()
    with pytest.raises(error, match=rf"^NeuralField: {words}"):
        cn.NeuralField(None, cn.MLP(2, 1), in_features=2, bounds=bounds)


def test_variables_are_no_bounds(ns):
    with pytest.raises(TypeError, match=r"low of bounds is a Float; a finite number"):
        make((ns.Float(0), 1))
