"""Evaluated loops lay a mask on gathers and scatters; what has no entry per sample must not see it."""

import drjit as dr
import numpy as np
import pytest
from support.arrays import arrays
from support.cuda_on_cpu import as_cuda

import coopnet as cn
from coopnet.engine import Stack, stacking
from coopnet.jit import lanes as lanes_of_batches
from coopnet.jit import masks
from coopnet.kernels.sparse_projection import TILE
from coopnet.random.draws import PACKET
from coopnet.training.many.group import lanes_of


def turns(ns, lanes, body):
    """Runs ``body(active)`` in an evaluated loop that lanes leave after one to three turns; returns how often each."""
    often = dr.arange(ns.UInt32, lanes) % 3 + 1

    def turn(i):
        body(i < often)
        return (i + 1,)

    dr.while_loop((dr.zeros(ns.UInt32, lanes),), lambda i: i < often, turn, mode="evaluated")
    return often.numpy().astype(np.float32)


def test_masks_are_found_and_lifted(ns):
    found = []

    def body(active):
        backwards = 299 - dr.arange(ns.UInt32, 300)
        numbers = dr.opaque(ns.UInt32, 7, 300)
        bare = dr.gather(ns.UInt32, numbers, backwards).numpy()
        with masks.unmasked(ns.Float):
            lifted = dr.gather(ns.UInt32, numbers, backwards).numpy()
        found.append((masks.masked(ns.Float), masks.active(ns.Float, 300).numpy(), bare > 0, lifted, active.numpy()))

    assert not masks.masked(ns.Float)
    turns(ns, 300, body)
    assert not masks.masked(ns.Float) and len(found) == 3
    for inside, active, bare, lifted, expected in found:
        assert inside
        assert np.array_equal(active, expected) and np.array_equal(bare, expected)
        assert (lifted == 7).all()
    assert not found[-1][1].all()


def test_a_mask_is_lifted_for_lanes_of_no_whole_vector(ns):
    """What is beyond the last lane must still not be written."""
    out = []

    def body(active):
        with masks.unmasked(ns.Float):
            target = dr.zeros(ns.UInt32, 13)
            dr.scatter(target, dr.arange(ns.UInt32, 5) + 1, dr.arange(ns.UInt32, 5))
            out.append(target.numpy())

    turns(ns, 5, body)
    assert all(np.array_equal(v, [1, 2, 3, 4, 5] + [0] * 8) for v in out)


def test_without_the_functions_there_may_be_a_mask(ns, monkeypatch):
    monkeypatch.setattr(masks, "function", lambda symbol: None)
    assert masks.masked(ns.Float)
    with masks.unmasked(ns.Float):
        assert masks.active(ns.Float, 7).numpy().all()


@pytest.mark.parametrize("path, memory", [("spill", 1 << 30), ("spill", 1), ("banks", 1 << 30)])
@pytest.mark.parametrize("lanes", [1000, 1185, 4096])
def test_gradients_inside_evaluated_loops(ns, backend, set_limits, lanes, path, memory):
    """Lanes that have left add nothing, also where the loop has as many lanes as a matrix entries (1,185), and where
    memory is for a chunk of the samples only."""
    set_limits(KEPT_BYTES=memory)
    field = cn.NeuralField(None, cn.MLP(2, 1, width=32, depth=2, bias=True)).build(backend, seed=1)
    x = arrays(ns, [np.random.default_rng(i).random(lanes) for i in range(2)])
    weights = field["network.weights"]
    dr.enable_grad(weights)
    with cn.gradient_path(path):
        often = turns(ns, lanes, lambda active: dr.backward(dr.sum(dr.square(field(x)[0]))))
    found = dr.grad(weights).numpy().astype(float)
    dr.set_grad(weights, 0)
    dr.backward(dr.sum(dr.square(field(x)[0]) * arrays(ns, [often])[0]))
    expected = dr.grad(weights).numpy().astype(float)
    assert np.abs(found - expected).max() < (2e-2 if backend == "cuda" else 1e-5) * np.abs(expected).max()


def test_lanes_that_fill_warps_are_not_those_of_the_loop(ns, backend):
    """Banks are filled by whole warps, on a GPU: a mask of 1,185 lanes does not lie on 1,216."""
    field = cn.NeuralField(None, cn.MLP(2, 1, width=32, depth=2)).build(backend, seed=1)
    x = arrays(ns, [np.random.default_rng(i).random(1185) for i in range(2)])
    with cn.gradient_path("banks"), as_cuda(lanes_of_batches):
        found, expected = in_and_out(ns, 1185, field["network.weights"], lambda: dr.square(field(x)[0]))
    assert np.abs(found - expected).max() < (2e-2 if backend == "cuda" else 1e-5) * np.abs(expected).max()


def in_and_out(ns, lanes, weights, values):
    """The gradient of the sum of ``values()`` by ``weights``, taken in each turn of a loop; and what it should be."""
    dr.enable_grad(weights)
    often = turns(ns, lanes, lambda active: dr.backward(dr.sum(values())))
    found = dr.grad(weights).numpy().astype(float)
    dr.set_grad(weights, 0)
    dr.backward(dr.sum(values() * arrays(ns, [often])[0]))
    return found, dr.grad(weights).numpy().astype(float)


def test_stacked_fields_inside_evaluated_loops(ns, backend):
    """Each lane with the weights of its field, where there are as many lanes as a field has weights."""
    fields = [cn.NeuralField(None, cn.MLP(2, 2, width=8, depth=1, bias=True)).build(backend, seed=i) for i in range(2)]
    packed = [dr.detach(field["network.weights"]).array for field in fields]
    samples = lanes_of(dr.width(packed[0]) // 2, dr.JitBackend.CUDA if backend == "cuda" else dr.JitBackend.LLVM)
    whole, lanes = dr.concat(packed), 2 * samples
    which = dr.arange(ns.UInt32, lanes) // samples
    x = arrays(ns, [np.random.default_rng(i).random(lanes) for i in range(2)])

    def values():
        with stacking(Stack(which, 2, {packed[0].index: whole})):
            return dr.sum(dr.square(fields[0](x)), axis=0)

    found, expected = in_and_out(ns, lanes, whole, values)
    assert np.abs(found - expected).max() < (2e-2 if backend == "cuda" else 1e-5) * np.abs(expected).max()


@pytest.mark.parametrize("lanes", [3, 100])
def test_frequencies_inside_evaluated_loops(ns, lanes):
    """Also where there are as many lanes as frequencies."""
    layer = cn.Fourier(3, scale=1.0, trained=True, in_features=2).alloc(ns.TensorXf)
    x = arrays(ns, [np.random.default_rng(i).random(lanes) for i in range(2)])
    found, expected = in_and_out(ns, lanes, layer["data"], lambda: dr.square(sum(layer(x), ns.Float(0)) + 1))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_grids_inside_evaluated_loops(ns):
    """What a lane that has left would add has no say in the unit of fixed-point sums, either."""
    lanes, grid = 100, cn.HashGrid(2, n_levels=2, base_resolution=4).alloc(ns.TensorXf, 2)
    x = arrays(ns, [np.random.default_rng(i).random(lanes) for i in range(2)])
    dr.enable_grad(grid["data"])
    early, turn = dr.arange(ns.UInt32, lanes) % 3 == 0, iter((0, 1e30, 1e30))  # gone after the first turn

    def total(factor):
        return dr.sum(sum(grid(x), ns.Float(0)) * dr.select(early, factor, 1))

    with cn.deterministic():
        often = turns(ns, lanes, lambda active: dr.backward(total(next(turn))))
    found = dr.grad(grid["data"]).numpy()
    dr.set_grad(grid["data"], 0)
    dr.backward(dr.sum(sum(grid(x), ns.Float(0)) * dr.select(early, 0, arrays(ns, [often])[0])))
    np.testing.assert_allclose(found, dr.grad(grid["data"]).numpy(), rtol=1e-5, atol=1e-6)


def test_tensors_inside_evaluated_loops(ns, backend):
    """Products and dropout of tensors in memory have kernels of their own, whose lanes are not those of the loop."""
    projection, samples = cn.SparseProjection(30, 40, density=0.5), 100
    numbers = ns.TensorXf(np.random.default_rng(0).random((30, samples), np.float32))
    large = dr.full(ns.TensorXf, 1, (8, 8192))
    dr.eval(large)
    kind = dr.JitBackend.CUDA if backend == "cuda" else dr.JitBackend.LLVM
    for lanes, f in (
        (10 * -(-samples // min(TILE, 128)), lambda: projection(numbers)),
        (8192 // PACKET[kind], lambda: cn.dropout(large, 0.5, cn.Key(1))),
    ):
        expected, seen = f().numpy(), []
        turns(ns, lanes, lambda active, f=f, seen=seen: seen.append(f().numpy()))
        assert len(seen) == 3
        for found in seen:
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("lanes", [1000, 400, 100])
def test_rows_inside_evaluated_loops(ns, lanes):
    """The sums of an embedding sort samples: the mask is of samples, not of sorted ones. It also masks gradients."""
    table = cn.Embedding(100, 4).alloc(ns.TensorXf, rng=dr.rng(1))
    index = ns.UInt32(np.random.default_rng(0).integers(0, 100, lanes).astype(np.uint32))
    dr.enable_grad(table["data"])

    def total():
        return sum(list(table(index)), ns.Float(0))

    often = turns(ns, lanes, lambda active: dr.backward(dr.sum(total())))
    found = dr.grad(table["data"]).numpy()
    dr.set_grad(table["data"], 0)
    dr.backward(dr.sum(total() * arrays(ns, [often])[0]))
    np.testing.assert_allclose(found, dr.grad(table["data"]).numpy(), rtol=1e-5)


# copies are of 8,192 entries for vectors of 8 lanes, of 16,384 for those of 16
@pytest.mark.parametrize("lanes, samples", [(8, 8192), (16, 16384), (8, 5000)])
def test_copies_of_matrices_are_whole(ns, backend, play_lanes, lanes, samples):
    """In loops with as many lanes as a copy has entries, with vectors of 8 lanes and of 16."""
    play_lanes(lanes)
    field = cn.NeuralField(None, cn.MLP(3, 1, width=128, depth=2)).build(backend, seed=1)
    x = arrays(ns, [np.random.default_rng(i).random(samples) for i in range(3)])
    expected, slopes = (v.numpy() for v in field.value_and_grad(ns.Array3f(x)))
    seen = []

    def body(active):
        y, slope = field.value_and_grad(ns.Array3f(x))
        seen.append((active.numpy(), y.numpy()[0], slope.numpy()))

    turns(ns, samples, body)
    for active, y, slope in seen:
        np.testing.assert_allclose(y[active], expected[0][active], rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(slope[:, active], slopes[:, active], rtol=1e-3, atol=1e-5)
