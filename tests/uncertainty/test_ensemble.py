"""Several fields as one."""

from __future__ import annotations

import drjit as dr
import numpy as np
import pytest
from support.arrays import assert_same, precisions
from support.kernels import launched

import coopnet as cn
from coopnet import reference as ref

N, K = 70, 3


def make_fields(backend, precision="auto", grid=False, outputs=2, dropout=0.0, **options):
    encoding = cn.HashGrid(2, 2, hashmap_size=64, base_resolution=4, init_scale=1.0) if grid else cn.Sinusoidal(2)
    network = cn.MLP(-1, outputs, width=6, depth=1, activation="tanh", dropout=dropout)
    field = cn.NeuralField(encoding, network, in_features=2, **options)
    return [field.build(backend, precision, seed=i) for i in range(K)]


def points(ns):
    p = ns.Array2f(np.random.default_rng(0).random((2, N)).astype(np.float32))
    dr.make_opaque(p)
    return p


@pytest.mark.parametrize("grid", [False, True])
def test_agrees_with_the_reference(backend, ns, grid):
    p = points(ns)
    for precision in precisions(backend):
        fields = make_fields(backend, precision, grid, bounds=(-0.5, 1.5))
        together = cn.ensemble(fields)
        mean, deviation = ref.ensemble(np.stack([field(p).numpy() for field in fields]))
        tolerance = 2e-6 if precision == "single" else 2e-3
        np.testing.assert_allclose(together(p).numpy(), mean, atol=tolerance)
        np.testing.assert_allclose(together.std(p).numpy(), deviation, atol=tolerance)
        for found in cn.mc_dropout(together, p, cn.Key(0), 2 * K), (together(p), together.std(p)):
            np.testing.assert_allclose(found[0].numpy(), mean, atol=tolerance)
            np.testing.assert_allclose(found[1].numpy(), deviation, atol=tolerance)


def test_a_key_picks_a_member(backend, ns):
    fields, p = make_fields(backend), points(ns)
    together = cn.ensemble(fields)
    each = [field(p).numpy() for field in fields]
    for step in (0, 1, 5, 2**32 - 1):
        assert_same(backend, together(p, cn.Key(1, step=step)).numpy(), each[step % K])
    steps = np.arange(N, dtype=np.uint32)
    found = together(p, cn.Key(1, step=ns.UInt32(steps))).numpy()
    assert_same(backend, found, np.choose(steps % K, each))


def test_the_layer_by_itself_counts_its_coordinates(backend, ns):
    layer, p = cn.ensemble(make_fields(backend)).encoding, points(ns)
    np.testing.assert_allclose(
        [v.numpy() for v in layer(list(p))], cn.ensemble(make_fields(backend))(p).numpy(), atol=1e-6
    )
    with pytest.raises(ValueError, match=r"^Members: the input has 3 features, but the encoding takes 2"):
        layer([p[0], p[1], p[0]])


def test_members_draw_masks_of_their_own(backend, ns):
    fields, p = make_fields(backend, dropout=0.3), points(ns)
    together = cn.ensemble(fields)
    assert_same(backend, together(p, cn.Key(1, step=2 * K + 1)).numpy(), fields[1](p, cn.Key(1, step=2)).numpy())
    mean, deviation = cn.mc_dropout(together, p, cn.Key(4), 2 * K)
    passes = [fields[i % K](p, cn.Key(4, step=i // K)).numpy() for i in range(2 * K)]
    expected = ref.ensemble(np.stack(passes))
    for found, wanted in zip((mean, deviation), expected, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-5 if backend == "llvm" else 2e-3)


def test_passes_that_are_no_multiple_of_the_members(backend, ns):
    fields, p = make_fields(backend), points(ns)
    each = np.stack([fields[i % K](p).numpy() for i in range(K + 1)])
    for found, wanted in zip(cn.mc_dropout(cn.ensemble(fields), p, cn.Key(0), K + 1), ref.ensemble(each), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-5 if backend == "llvm" else 2e-3)


def constant(backend, value):
    field = cn.NeuralField(None, cn.Linear(1, 1)).build(backend)
    field.set_matrix("network.bias", [value])
    return field


def test_ensembles_of_ensembles(backend, ns):
    """Passes go through the members of members, too: 0, 0, 10, 10."""
    inner = [cn.ensemble([constant(backend, 0), constant(backend, 10)]) for _ in range(2)]
    field, p = cn.ensemble(inner), [ns.Float(0)]
    assert [field(p, cn.Key(0, step=i))[0][0] for i in range(4)] == [0, 0, 10, 10]
    for passes, mean in ((2, 0), (4, 5), (6, 20 / 6)):
        moments = [v.numpy().item() for v in cn.mc_dropout(field, p, cn.Key(0), passes)]
        squares = np.mean(np.square([0, 0, 10, 10, 0, 0][:passes]))
        np.testing.assert_allclose(moments, [mean, np.sqrt(squares - mean**2)], rtol=1e-3)


def test_saved_frozen_in_loops_and_in_one_kernel(backend, ns, tmp_path):
    pytest.importorskip("safetensors")
    together, p = cn.ensemble(make_fields(backend, grid=True)), points(ns)
    cn.save(tmp_path / "f.safetensors", together)
    again = cn.load(tmp_path / "f.safetensors", backend)
    frozen = dr.freeze(lambda f, p: (f(p), f.std(p)))
    expected = together(p).numpy(), together.std(p).numpy()
    for _ in range(3):
        for field in (together, again):
            for found, wanted in zip(frozen(field, p), expected, strict=True):
                assert_same(backend, found.numpy(), wanted)
    with launched() as kernels:
        dr.eval(together(p), together.std(p))
    assert len(kernels) == 1
    total = dr.while_loop(
        (ns.UInt32(0), dr.zeros(ns.Float, N)),
        lambda i, s: i < K,
        lambda i, s: (i + 1, s + together(p, cn.Key(0, step=i))[0]),
        mode="symbolic",
    )[1]
    np.testing.assert_allclose(total.numpy() / K, expected[0][0], atol=1e-5 if backend == "llvm" else 2e-3)


def test_derivatives(backend, ns):
    """By coordinates, the mean of the members'; by weights, that of mean and deviation."""
    fields, p = make_fields(backend, outputs=1), points(ns)
    together = cn.ensemble(fields)
    _, gradient = together.value_and_grad(p)
    expected = np.mean([field.value_and_grad(p)[1].numpy() for field in fields], axis=0)
    np.testing.assert_allclose(gradient.numpy(), expected, atol=1e-4 if backend == "llvm" else 5e-2)
    value = type(together["encoding.weights"])(dr.detach(together["encoding.weights"]))
    dr.enable_grad(value)
    together["encoding.weights"] = value
    dr.backward(dr.sum(together(p)[0] + together.std(p)[0]))
    name = "encoding.networks.1.layers.2.weights"
    moved = together.matrix(name)
    found, eps = together.gradient(name)[0, 0], 1e-2
    sums = []
    for sign in (1, -1):
        changed = moved.copy()
        changed[0, 0] += sign * eps
        together.set_matrix(name, changed)
        with dr.suspend_grad():
            sums.append(np.sum(together(p).numpy().astype(np.float64) + together.std(p).numpy()))
    assert found == pytest.approx((sums[0] - sums[1]) / (2 * eps), rel=2e-2 if backend == "llvm" else 0.2)


def test_marched(backend, ns):
    """One member along a ray."""
    volume = cn.NeuralField(cn.Sinusoidal(1, in_features=3), cn.MLP(out_features=4, width=6, depth=1))
    fields = [volume.build(backend, seed=i) for i in range(2)]
    together = cn.ensemble(fields)
    rays = ns.Array3f([0.1, 0.2], 0, -1), ns.Array3f(0, 0, 1), 0.0, 2.0, 3
    for step in range(2):
        key = cn.Key(0, index=0, step=step)
        found, wanted = (
            cn.render.ray_march(f, *rays, key=key, jitter=False, dropout="ray").color.numpy()
            for f in (together, fields[step])
        )
        np.testing.assert_allclose(found, wanted, atol=1e-6 if backend == "llvm" else 1e-3)


@pytest.mark.parametrize(
    "fields, error, words",
    [
        (3, TypeError, "fields is a int"),
        ([], ValueError, "fields has 0 entries"),
        ([1], ValueError, "fields has 1 entries"),
        ([1, 2], TypeError, "fields[0] is a int"),
        ([cn.NeuralField(None, cn.MLP(2, 1))] * 2, ValueError, "not built yet"),
    ],
)
def test_bad_arguments(fields, error, words):
    with pytest.raises(error, match="ensemble") as info:
        cn.ensemble(fields)
    assert words in str(info.value)


def test_fields_that_differ(backend):
    one = cn.NeuralField(None, cn.MLP(2, 1, width=4, depth=1)).build(backend)
    for other, words in (
        (cn.NeuralField(None, cn.MLP(3, 1, width=4, depth=1)), "number of inputs 3"),
        (cn.NeuralField(None, cn.MLP(2, 2, width=4, depth=1)), "number of outputs 2"),
        (cn.NeuralField(None, cn.MLP(2, 1, width=4, depth=1), bounds=(0, 2)), "bounds"),
        (cn.NeuralField(None, cn.MLP(2, 1, width=4, depth=1), output="float16"), "output type"),
    ):
        with pytest.raises(ValueError, match=words):
            cn.ensemble([one, other.build(backend)])
