"""What coopnet does on CUDA alone, with types of the CPU: packed layouts, sums of biases, padding, warnings.

The CPU's packed matrices are rows one after the other. Where CUDA's are permutations, the layouts are made up here.
"""

from __future__ import annotations

import importlib.util
import linecache
import warnings

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import all_close
from support.cuda_on_cpu import Drjit, as_cuda
from support.engine import module, shaped

import coopnet as cn
from coopnet import backend as backends
from coopnet import checks, field, reference
from coopnet.engine import (
    Affine,
    Branching,
    Stack,
    banks,
    elementwise,
    limits,
    memory,
    ops,
    products,
    row_vectors,
    spill,
    stacking,
    stall,
    strategies,
)
from coopnet.engine.activation_cache import ActivationCache
from coopnet.engine.affine import Weights
from coopnet.engine.network_op import Plan
from coopnet.engine.row_vectors import Rows
from coopnet.engine.situation import Network, Situation
from coopnet.jit import layout, registers, views
from coopnet.jit.unpacked import Constant
from coopnet.nn import linear
from coopnet.nn import module as module_of_layers
from coopnet.nn.parameters import Parameter
from coopnet.nn.sequential import known_ops

networks, situation = module("evaluate"), module("situation")

pytestmark = pytest.mark.skipif("llvm" not in backends.available(), reason="made for the CPU's layouts")


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- Layouts -----------------------------------------------------------------------------------------------


def hardware(places, size):
    """A ``drjit.nn.pack`` that puts entry ``i`` of a matrix at ``places[i]`` of ``size`` numbers (nowhere if -1)."""

    def pack(tensor, layout):
        assert layout == "training"
        buffer = np.zeros(size + 3, np.float32)
        for value, place in zip(tensor.numpy().ravel(), places, strict=True):
            if place >= 0:
                buffer[place + 2] = value
        view = drnn.MatrixView()
        view.buffer, view.offset, view.size = dr.array_t(tensor)(buffer), 2, size
        return view

    return pack


def find_places(monkeypatch, tensor, shape, pack):
    monkeypatch.setattr(layout.drnn, "pack", pack)
    layout._places.cache_clear()
    try:
        return layout._places(tensor, shape)
    finally:
        layout._places.cache_clear()
        monkeypatch.undo()


def test_places_of_rows(llvm):
    for tensor in (llvm.TensorXf, llvm.TensorXf16):
        for shape in ((3, 5), (1, 4), (4, 1)):
            np.testing.assert_array_equal(layout._places(tensor, shape), np.arange(shape[0] * shape[1]))


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (1, 7), (7, 1), (1, 1)])
def test_places_of_a_permutation_with_gaps(monkeypatch, llvm, shape):
    entries = shape[0] * shape[1]
    places = np.random.default_rng(1).permutation(entries + 9)[:entries]
    found = find_places(monkeypatch, llvm.TensorXf16, shape, hardware(places, entries + 9))
    assert found.dtype == np.uint32
    np.testing.assert_array_equal(found, places)


def test_no_permutation_is_no_layout(monkeypatch, llvm):
    """Entries that are missing, that meet in one place, or that are there twice."""
    tensor, shape = llvm.TensorXf16, (2, 3)
    assert find_places(monkeypatch, tensor, shape, hardware([0, 1, 2, 3, 4, -1], 6)) is None
    assert find_places(monkeypatch, tensor, shape, hardware([0, 1, 2, 3, 4, 4], 6)) is None

    def pack(tensor, layout):
        view = hardware([0, 1, 2, 3, 4, lost], 7)(tensor, layout)
        view.buffer[2 + 6] = view.buffer[2]  # entry 0 is there once more
        return view

    lost = -1
    assert find_places(monkeypatch, tensor, shape, pack) is None  # as many places as entries, and yet
    lost = 5
    assert find_places(monkeypatch, tensor, shape, pack) is None


def test_no_layout_beyond_what_half_precision_can_number(llvm):
    for tensor in (llvm.TensorXf16, llvm.TensorXf):
        for shape in ((2047, 1), (2, 2047)):
            np.testing.assert_array_equal(layout._places(tensor, shape), np.arange(shape[0] * shape[1]))
        for shape in ((2048, 1), (1, 2048), (0, 3), (3, 0)):
            assert layout._places(tensor, shape) is None
            assert layout.Layout.find(tensor, shape, False) is None
    assert layout.Layout.find(llvm.TensorXf16, (2048, 3), True) is None


@pytest.mark.parametrize(
    ("shape", "around", "columns"),
    [
        ((64, 64), (64, 64), 8), ((32, 7), (32, 7), 8), ((3, 64), (3, 64), 32), ((64, 3), (64, 3), 8),
        ((16, 16), (16, 16), 16), ((48, 48), (48, 48), 16), ((24, 24), (24, 32), 32), ((16, 24), (16, 32), 16),
        ((20, 33), (20, 64), 32), ((3, 16), (16, 16), 32), ((1, 1), (16, 16), 32), ((9, 9), (9, 9), 16),
        ((3, 17), (3, 32), 32),
    ],
)  # fmt: skip
def test_shapes_that_warps_add_in_pieces(shape, around, columns):
    """Numbers in memory, with rows and columns filled to multiples of 8, are multiples of 256."""
    assert layout.in_pieces(shape) == around
    assert layout.piece_columns(shape[0]) == columns
    for rows, of in (around, (shape[0], columns)):
        assert -(-rows // 8) * -(-of // 8) % 4 == 0


def test_accumulators_of_a_layer(monkeypatch, llvm):
    """The bias is the column after the inputs in the matrix's accumulator, or the first of a matrix of its own."""
    found = layout.Layout.find(llvm.TensorXf16, (5, 3), True)
    np.testing.assert_array_equal(found.places.numpy(), np.arange(15))
    assert found.matrix.view.shape == (16, 16) and found.bias.view is None
    row, column = np.divmod(np.arange(15), 3)
    np.testing.assert_array_equal(found.matrix.origins.numpy(), 16 * row + column)
    np.testing.assert_array_equal(found.bias.origins.numpy(), 16 * np.arange(5) + 3)
    found = layout.Layout.find(llvm.TensorXf16, (32, 16), True)
    assert found.matrix is None and found.bias.view.shape == (32, 8)
    np.testing.assert_array_equal(found.bias.origins.numpy(), 8 * np.arange(32))
    for shape in ((5, 3), (32, 16)):
        assert layout.Layout.find(llvm.TensorXf16, shape, False).bias is None
    real = layout._places
    for missing in (8, 16):  # columns of an accumulator of unknown layout
        monkeypatch.setattr(
            layout, "_places", lambda tensor, shape, no=missing: None if shape[1] == no else real(tensor, shape)
        )
        assert layout.Layout.find(llvm.TensorXf16, (32, 24) if missing == 8 else (5, 3), True) is None


def test_gaps_of_a_packed_matrix_have_no_origin(monkeypatch, llvm):
    places = np.random.default_rng(1).permutation(20)[:15]
    real = layout._places
    monkeypatch.setattr(layout, "_places", lambda tensor, shape: places if shape == (5, 3) else real(tensor, shape))
    monkeypatch.setattr(
        layout, "_zeros", lambda tensor, shape: hardware(np.arange(15), 20)(tensor((0.0,) * 15), "training")
    )
    origins = layout.Layout.find(llvm.TensorXf16, (5, 3), False).matrix.origins.numpy()
    row, column = np.divmod(np.arange(15), 3)
    np.testing.assert_array_equal(origins[places], 16 * row + column)
    assert (np.delete(origins, places) == layout.GAP).all()


def test_a_half_precision_layer_on_cuda_looks_for_its_layout(llvm):
    def known(module, tensor, **options):
        with as_cuda(linear):
            return cn.Linear(3, 5, **options).alloc(tensor).layout.value

    assert known(linear, llvm.TensorXf) is None
    assert known(linear, llvm.TensorXf16, bias=False).bias is None
    assert known(linear, llvm.TensorXf16).matrix.view.shape == (16, 16)
    assert known(linear, llvm.TensorXf16).bias is not None
    assert cn.Linear(3, 5).alloc(llvm.TensorXf16).layout.value is None


# ---- Gradients by known layouts ----------------------------------------------------------------------------


def network(llvm, bias=True, permute=None, depth=2, dropout=0.0, width=8):
    """An MLP 3 -> width -> ... -> 2 whose layers have layouts, packed; its weights and biases; its linear layers."""
    net = cn.MLP(3, 2, width=width, depth=depth, activation="tanh", bias=bias, dropout=dropout).alloc(llvm.TensorXf, 3)
    layers = [m for m in net.layers if isinstance(m, cn.Linear)]
    weights, biases = [m.weights.numpy().astype(np.float64) for m in layers], None
    for i, layer in enumerate(layers):
        found = layout.Layout.find(llvm.TensorXf, layer.weights.shape, bias)
        if permute is not None:
            found.places = llvm.UInt32(permute(i, dr.width(found.places)))
        layer.layout = Constant(found)
    if bias:
        biases = [numbers(m.config[1], seed=9 + i) for i, m in enumerate(layers)]
        for layer, b in zip(layers, biases, strict=True):
            layer.bias = llvm.TensorXf(b)
    net = drnn.pack(net, layout="training")
    return net, weights, biases, [m for m in net.layers if isinstance(m, cn.Linear)]


def differentiate(llvm, net, x, dy, path, key=None):
    buffer = net["weights"]
    dr.disable_grad(buffer)
    dr.enable_grad(buffer)
    with cn.gradient_path(path):
        y = net(drnn.CoopVec([llvm.Float(v) for v in x]), key)
        dr.backward(sum(a * llvm.Float(d) for a, d in zip(y, dy, strict=True)))
    return dr.grad(buffer).numpy()


@pytest.mark.parametrize("bias", [False, True])
def test_spilled_gradients_go_where_the_layout_says(llvm, bias):
    orders = {}

    def permute(i, n):
        orders[i] = np.random.default_rng(i).permutation(n)
        return orders[i]

    net, weights, biases, layers = network(llvm, bias, permute)
    x, dy = numbers(3, 500), numbers(2, 500, seed=1) / 500
    got = differentiate(llvm, net, x, dy, "spill")
    _, _, dw, db = reference.mlp_vjp(weights, x, dy, "tanh", biases=biases)
    for i, layer in enumerate(layers):
        view = layer.weights
        entries = got[view.offset : view.offset + view.size][orders[i]]
        all_close([entries], [dw[i].ravel()], 2e-5)
        if bias:
            all_close([got[layer.bias.offset : layer.bias.offset + layer.config[1]]], [db[i]], 2e-5)


@pytest.mark.parametrize("samples", [700, 5000])  # one bank, and several
@pytest.mark.parametrize(("width", "bias"), [(8, True), (16, True), (16, False), (32, True)])
def test_banks_accumulate_in_matrices_of_other_shapes(llvm, samples, width, bias):
    """Together, apart, and for the matrix or the bias alone."""
    net, weights, biases, layers = network(llvm, bias, width=width)
    x, dy = numbers(3, samples), numbers(2, samples, seed=1) / samples
    assert (banks.banks_for(samples) > 1) == (samples > 1024)
    got = differentiate(llvm, net, x, dy, "banks")
    _, _, dw, db = reference.mlp_vjp(weights, x, dy, "tanh", biases=biases)
    for i, layer in enumerate(layers):
        view = layer.weights
        all_close([got[view.offset : view.offset + view.size]], [dw[i].ravel()], 2e-5)
        if bias:
            all_close([got[layer.bias.offset : layer.bias.offset + layer.config[1]]], [db[i]], 2e-5)


def test_banks_count_biases_for_values_alone(llvm):
    """Tangents go through the layers without them; spilled vectors know nothing of banks."""
    net, *_ = network(llvm)
    x, d, a, b = (numbers(3 if i < 2 else 2, 2000, seed=i) for i in range(4))
    found = []
    for path in ("banks", "spill"):
        dr.disable_grad(net["weights"])
        dr.enable_grad(net["weights"])
        with cn.gradient_path(path):
            p, direction = (drnn.CoopVec([llvm.Float(v) for v in u]) for u in (x, d))
            y, (moved,) = net.jvp(p, [direction])
            parts = zip([*y, *moved], [*a, *b], strict=True)
            dr.backward(sum(v * llvm.Float(w) for v, w in parts))
        found.append(dr.grad(net["weights"]).numpy())
    all_close(found[:1], found[1:], 2e-5)


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("depth", [2, 3])  # a buffer of 122 numbers, and one of 194: just over a multiple of 64
def test_accumulators_lie_behind_all_matrices(llvm, depth, width):
    net, _, _, layers = network(llvm, depth=depth, width=width)
    affine = [Affine(m) for m in layers]
    buffer = net["weights"]
    found = banks.Banks(buffer, [*affine, affine[0]], 3)  # a layer that is there twice has one sum
    place, expected, shapes = dr.width(buffer), {}, {}
    for m in layers:
        for own in (m.weights, m.bias):
            if own is m.bias and m.layout.value.bias.view is None:
                expected[own.offset] = expected[m.weights.offset]
            elif own is m.bias or m.weights.shape != (16, 16):
                place = expected[own.offset] = -(-place // 64) * 64
                shapes[own.offset] = (2, 32) if own is m.bias and m.config[1] == 2 else (16, 16)
                place += np.prod(shapes[own.offset])
    assert {offset: at for offset, (_, at) in found.apart.items()} == expected
    assert len(found.banks) == 3 and {dr.width(b) for b in found.banks} == {place}
    for k in range(3):
        for op, matrix, bias in found.accumulators(affine, k):
            assert (matrix is bias) == (op.layout.bias.view is None)
            for view, own in ((matrix, op.weights), (bias, op.bias)):
                if own.offset in shapes:
                    assert view.buffer is found.banks[k] and view.offset == expected[own.offset]
                    assert view.shape == shapes[own.offset]
            assert bias is not None and (matrix is None) == (op.weights.shape == (16, 16))


def scattered(llvm):
    """An op whose matrix and bias lie in a buffer of 30 numbers: at 4, ..., 9 in another order, and at 12, 13, 14; the
    positions of its entries."""
    buffer = dr.zeros(llvm.Float, 30)
    views = []
    for offset, shape, stride in ((4, (3, 2), 2), (12, (3, 1), 1)):
        view = drnn.MatrixView()
        view.buffer, view.offset, view.shape, view.stride, view.size = buffer, offset, shape, stride, shape[0] * stride
        views.append(view)
    found, order = layout.Layout.find(llvm.TensorXf, (3, 2), True), [5, 3, 1, 0, 2, 4]
    found.places = llvm.UInt32(order)
    found.matrix.origins = llvm.UInt32(found.matrix.origins.numpy()[np.argsort(order)])
    return buffer, Affine(Weights(*views, found)), [9, 7, 5, 4, 6, 8], [12, 13, 14]


def accumulated(values):
    """Gradients of :func:`scattered`'s op in banks: of the buffer, with those from the accumulator behind it."""
    expected = values[..., :30].copy()
    accumulator = values[..., 64:].reshape(*values.shape[:-1], 16, 16)
    expected[..., [9, 7, 5, 4, 6, 8]] = accumulator[..., :3, :2].reshape(*values.shape[:-1], 6)
    expected[..., [12, 13, 14]] = accumulator[..., :3, 2]
    return expected


def test_sums_of_spilled_products_go_where_views_say(llvm):
    buffer, op, of_matrix, of_bias = scattered(llvm)
    sums = products.Sums()
    cotangent, activation = (Rows([llvm.Float(0)] * n, 1) for n in (3, 3))
    for _ in range(2):
        # the last column belongs to the bias
        sums.add("x", products.Product(op, cotangent, activation), llvm.Float(np.arange(1, 10, dtype=np.float32)))
    expected = np.zeros(30)
    expected[of_matrix], expected[of_bias] = [2, 4, 8, 10, 14, 16], [6, 12, 18]
    np.testing.assert_array_equal(sums.gradient("x", buffer).numpy(), expected)
    assert not products.Sums().gradient("x", buffer).numpy().any()


@pytest.mark.parametrize(
    ("backend", "width", "frozen", "caller", "library", "whole", "count"),
    [
        (dr.JitBackend.CUDA, 64, False, False, True, True, 2),
        (dr.JitBackend.CUDA, 64, False, False, False, True, 1),  # Dr.Jit multiplies
        (dr.JitBackend.CUDA, 64, True, False, True, True, 1),
        (dr.JitBackend.CUDA, 64, True, True, True, True, 2),  # the caller multiplies
        (dr.JitBackend.CUDA, 64, True, True, True, False, 1),  # not the product of a chunk
        (dr.JitBackend.CUDA, 256, True, True, True, True, 2),
        (dr.JitBackend.CUDA, 257, True, True, True, True, 1),
        (dr.JitBackend.LLVM, 64, False, False, True, True, 1),
    ],
)
def test_rows_of_two_vectors_where_they_pay(monkeypatch, backend, width, frozen, caller, library, whole, count):
    monkeypatch.setattr(products, "frozen", lambda: frozen)
    monkeypatch.setattr(products, "library", lambda backend: library)
    network = Network([])
    network.shapes = [(width, width)]
    s = Situation(network, backend, 1 << 20, frozen=frozen, caller=caller)
    assert products.vectors_together(s, whole) == count


def test_kernels_that_follow_the_order_of_the_ops(monkeypatch, llvm):
    """Barriers behind every op, forward and back, if they are asked for."""
    barriers = []
    monkeypatch.setattr(ops, "in_order", barriers.append)
    chain = [elementwise.Nonlinearity(cn.Tanh()), elementwise.Nonlinearity(cn.ReLU())]
    x = [drnn.CoopVec(llvm.Float(1), llvm.Float(2))]
    for ordered, count in ((False, 0), (True, 2)):
        tape = ops.evaluate(chain, x, None, ordered=ordered)
        assert len(barriers) == count
        ops.pullback(tape, tape.y, None, True, lambda *_: None, ordered)
        assert len(barriers) == 2 * count


@pytest.mark.parametrize("samples", [1, 2, 3, 64, 129, 1000])
def test_products_of_rows_that_hold_two_vectors(llvm, set_limits, samples):
    """A product over such rows contains the one over samples; rows beyond the samples add nothing."""
    set_limits(PIECE_SAMPLES=32)
    m, n = 16, 24
    dy, x = numbers(m, samples), numbers(n, samples, seed=1)
    rows = [Rows([llvm.Float(v) for v in each], samples, 2) for each in (dy, x)]
    read = np.array([v.numpy() for v in rows[1].read(llvm.Float, n)])
    np.testing.assert_array_equal(read, x)
    a, b = (one.tensor().numpy() for one in rows)
    assert a.shape[2] == 2 * m and b.shape[:2] == a.shape[:2] and rows[1].width == 2 * n
    # neighbouring lanes write packets of 8 side by side: 32 bytes in half precision
    first = rows[0].numbers.numpy()[:16]
    np.testing.assert_array_equal(first[:8], dy[:8, 0])
    np.testing.assert_array_equal(first[8:], dy[:8, 1] if samples > 1 else np.zeros(8))
    view = drnn.MatrixView()
    view.buffer, view.offset, view.shape, view.stride, view.size = dr.zeros(llvm.Float, m * n), 0, (m, n), n, m * n
    sums = products.Sums()
    sums.add("x", products.Product(Affine(Weights(view)), *rows), llvm.Float(np.einsum("pki,pkj->pij", a, b).ravel()))
    found = sums.gradient("x", view.buffer).numpy().reshape(m, n)
    np.testing.assert_allclose(found, dy @ x.T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("n_in", "width", "depth", "dropout", "ends"),
    [
        (16, 128, 3, 0, []),
        (128, 128, 5, 0, [0, 3]),  # a long input has a kernel of its own, and three matrices fill the cache
        (16, 128, 3, 0.1, [2]),
        (16, 256, 3, 0, [1, 2, 3]),
        (16, 64, 8, 0, []),
        (2, 8, 1, 0, []),
    ],
)
def test_where_kernels_end(llvm, set_limits, n_in, width, depth, dropout, ends):
    layers = []
    for rows, columns in [(width, n_in), *[(width, width)] * (depth - 1), (3, width)]:
        view = drnn.MatrixView()
        view.buffer, view.shape = llvm.Float16([0.0]), (rows, columns)
        layers.append(Affine(Weights(view)))
    mask = elementwise.Nonlinearity(cn.ReLU())
    mask.dropout = dropout > 0
    found = strategies.kernels_end(Situation(Network([*layers, mask]), dr.JitBackend.CUDA, 1 << 18))
    assert [layers.index(op) for op in found] == ends


TWICE = [cn.Linear(16, 16), cn.SiLU()] * 2


@pytest.mark.parametrize("network, kept", [
    (lambda: cn.MLP(3, 2, width=16, depth=2, activation="silu", bias=True, dropout=0.2), [16, 16]),
    (lambda: cn.MLP(3, 2, width=16, depth=2, activation="gelu", output_activation="silu"), [16, 16]),  # 2 are few
    (lambda: cn.MLP(3, 2, width=8, depth=2, activation="silu"), []),
    (lambda: cn.MLP(3, 2, width=16, depth=2, activation="tanh"), []),  # its derivatives follow from its output
    (lambda: cn.Sequential(cn.Linear(3, 16), cn.SiLU(), cn.Residual(cn.Linear(16, 16)), cn.Linear(16, 2)), []),
    (lambda: cn.Sequential(cn.Linear(3, 16), cn.SiLU(), *TWICE, cn.Linear(16, 2)), [16] * 3),
])  # fmt: skip
@pytest.mark.parametrize("vectors", [1, 2])
def test_outputs_that_a_gpu_keeps(llvm, monkeypatch, set_limits, network, kept, vectors):
    """Those of wide layers whose activations need them. Gradients are the same to the bit without them."""
    set_limits(LONG_VECTOR=15)
    built = cn.NeuralField(None, network()).build("llvm", seed=1).network
    ops, samples = known_ops([built]), 50
    numbers = np.random.default_rng(0).normal(size=(3 * vectors + 2 * vectors, samples)).astype(np.float32)
    xs, dys = ([llvm.Float(v) for v in part] for part in (numbers[: 3 * vectors], numbers[3 * vectors :]))
    s = Situation(Network(ops), dr.JitBackend.CUDA, samples, vectors, inputs=True)
    plan = Plan(s, "store")
    monkeypatch.setattr(module("activation_cache"), "vectors_together", lambda s, whole: 1)  # these have 4 bytes

    def gradients():
        cache = ActivationCache.make(plan, ops, xs, cn.Key(1))
        y = cache.filled(plan.evaluate(cache.ops, xs, cn.Key(1), cache).flat())
        products, dx = spill.back_from(cache, plan, xs, dys, cn.Key(1))
        arrays = [*y, *dx, *(n for p in products for n in p.numbers())]
        dr.eval(arrays)
        return cache, [v.numpy() for v in arrays]

    cache, found = gradients()
    assert sorted(op.weights.shape[0] for op in cache.written) == kept
    outputs = [len(v) for bundle in cache._outputs if bundle for v in bundle]
    assert outputs == [n for n in kept for _ in range(vectors)]
    monkeypatch.setattr(memory, "keeps_output", lambda shape: False)
    without, expected = gradients()
    assert cache.size - without.size == 4 * samples * vectors * sum(kept)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_share_of_a_gpus_memory_is_for_activations(monkeypatch, llvm):
    view = drnn.MatrixView()
    view.buffer, view.shape = llvm.Float([0.0]), (8, 8)
    op = Affine(Weights(view))
    assert memory.kept_bytes([op]) == limits.KEPT_BYTES
    monkeypatch.setattr(memory, "cuda_device", lambda: 0)
    with as_cuda(memory):
        for size, expected in ((80 << 30, 10 << 30), (8 << 30, 2 << 30), (0, 2 << 30)):
            monkeypatch.setattr(memory, "memory", lambda number, size=size: size)
            assert memory.kept_bytes([op]) == expected


def test_sums_of_banks_go_where_views_say(llvm):
    buffer, op, *_ = scattered(llvm)
    found = banks.Banks(buffer, [op], 2)
    values = numbers(2, dr.width(found.banks[0]))
    for bank, value in zip(found.banks, values, strict=True):
        np.testing.assert_array_equal(dr.grad(bank).numpy(), 0)
        dr.set_grad(bank, llvm.Float(value))
    np.testing.assert_allclose(found.sum().numpy(), accumulated(values.sum(axis=0)), rtol=1e-5, atol=1e-6)


def test_gradients_of_stacked_fields_go_where_views_say(llvm):
    buffer, op, *_ = scattered(llvm)
    found = banks.Banks(buffer, [op], 3)
    values = numbers(3, dr.width(found.banks[0]))
    for bank, value in zip(found.banks, values, strict=True):
        dr.set_grad(bank, llvm.Float(value))
    np.testing.assert_array_equal(found.side_by_side().numpy(), accumulated(values).ravel())


def test_stacked_fields_accumulate_biases_as_matrices(llvm):
    count, samples = 3, 96
    net, *numbers_of, layers = network(llvm)
    scales = [1.0, 0.5, -2.0]
    whole = dr.concat([dr.detach(net["weights"]).array * scale for scale in scales])
    dr.enable_grad(whole)
    which = dr.arange(llvm.UInt32, count * samples) // samples
    x, dy = numbers(3, count * samples), numbers(2, count * samples, seed=1) / samples
    with stacking(Stack(which, count, {net["weights"].array.index: whole})):
        y = net(drnn.CoopVec([llvm.Float(v) for v in x]))
        dr.backward(sum(a * llvm.Float(d) for a, d in zip(y, dy, strict=True)))
    got = dr.grad(whole).numpy().reshape(count, -1)
    for k, scale in enumerate(scales):
        own = slice(k * samples, (k + 1) * samples)
        weights, biases = ([scale * v for v in part] for part in numbers_of)
        _, _, dw, db = reference.mlp_vjp(weights, x[:, own], dy[:, own], "tanh", biases=biases)
        for i, layer in enumerate(layers):
            view = layer.weights
            all_close([got[k][view.offset : view.offset + view.size]], [dw[i].ravel()], 2e-5)
            all_close([got[k][layer.bias.offset : layer.bias.offset + layer.config[1]]], [db[i]], 2e-5)


def test_layers_without_a_layout_and_of_other_buffers_have_no_accumulators(llvm):
    net, _, _, layers = network(llvm)
    other, _, _, others = network(llvm)
    plain = [Affine(Weights(m.weights, m.bias)) for m in layers]
    found = banks.Banks(net["weights"], [*plain, *map(Affine, others)], 2)
    assert found.apart == {} and dr.width(found.banks[0]) == dr.width(net["weights"])
    assert [pair for _, *pair in found.accumulators(plain, 0)] == [[None, None]] * 3
    # a layer at the same place of another buffer is not ours
    mine = banks.Banks(net["weights"], list(map(Affine, layers)), 1)
    assert len(list(mine.accumulators(list(map(Affine, layers)), 0))) == 3
    assert list(mine.accumulators(list(map(Affine, others)), 0)) == []
    assert other["weights"] is not net["weights"]


@pytest.mark.parametrize("whole", [True, False])
def test_accumulators_in_a_symbolic_loop(llvm, monkeypatch, whole):
    """The banks are summed behind the loop, accumulators among them; parts of one buffer that are evaluated
    one by one have banks with room for their own."""
    net, weights, biases, layers = network(llvm, dropout=0.2)
    room, found = set(), banks.Banks.accumulators
    monkeypatch.setattr(banks.Banks, "accumulators", lambda self, *a: (room.add(len(self.apart)), found(self, *a))[1])
    x, dy = numbers(3, 700), numbers(2, 700, seed=1) / 700
    buffer, steps = net["weights"], 2
    dr.enable_grad(buffer)

    def body(i, total):
        y, key = drnn.CoopVec([llvm.Float(v) * 1 for v in x]), cn.Key(7, step=i)
        for part in [net] if whole else net.layers:
            y = part(y, key)
        return i + 1, total + sum(a * llvm.Float(d) for a, d in zip(y, dy, strict=True))

    with cn.gradient_path("banks"):
        state = (llvm.UInt32(0), dr.zeros(llvm.Float, 700))
        total = dr.while_loop(state, lambda i, t: i < steps, body, mode="symbolic", max_iterations=-1)[1]
        dr.backward(total)
    got = dr.grad(buffer).numpy()
    assert room == {6 if whole else 2}
    dw, db = 0, 0
    for step in range(steps):
        drop = reference.MLPDropout(0.2, seed=7, step=step)
        _, _, w, b = reference.mlp_vjp(weights, x, dy, "tanh", biases=biases, dropout=drop)
        dw, db = (
            [p + q for p, q in zip(w, dw or [0] * 3, strict=True)],
            [p + q for p, q in zip(b, db or [0] * 3, strict=True)],
        )
    for i, layer in enumerate(layers):
        view = layer.weights
        all_close([got[view.offset : view.offset + view.size]], [dw[i].ravel()], 2e-5)
        all_close([got[layer.bias.offset : layer.bias.offset + layer.config[1]]], [db[i]], 2e-5)


def test_parameters_by_name_in_a_hardware_layout(llvm):
    """set_matrix() writes where the layout says; without one, it is looked up; wide ones are refused."""
    order = np.random.default_rng(0).permutation(24)
    net, *_ = network(llvm, False, lambda i, n: order if n == 24 else np.arange(n))
    layer = net.layers[0]
    layer.weights.offset += 20  # as in a buffer that begins with something else
    view = layer.weights
    assert view.shape == (8, 3) and view.layout == "training"
    with as_cuda(views):
        np.testing.assert_array_equal(Parameter("w", layer, "weights").places().numpy(), view.offset + order)
        layer.layout = Constant()
        np.testing.assert_array_equal(Parameter("w", layer, "weights").places().numpy(), view.offset + np.arange(24))
    wide = drnn.pack(cn.Linear(2, 2048, bias=False).alloc(llvm.TensorXf16), layout="training")
    with as_cuda(views), pytest.raises(RuntimeError, match="layout of a 2048 x 2 matrix is not known"):
        Parameter("w", wide, "weights").places()


# ---- Backends that meet ------------------------------------------------------------------------------------


def test_what_lives_elsewhere_is_refused(llvm):
    """Half precision stands for another backend than the rest."""

    def backend_v(value):
        leaf = dr.leaf_t(value if isinstance(value, type) else type(value))
        return dr.JitBackend.CUDA if leaf is llvm.Float16 else dr.JitBackend.LLVM

    layer = cn.Linear(2, 3).alloc(llvm.TensorXf)
    grid = cn.Grid(2, n_levels=1).alloc(llvm.TensorXf)
    table = cn.Embedding(4, 2).alloc(llvm.TensorXf16)
    with pytest.MonkeyPatch.context() as patch:
        for module in (checks, linear, module_of_layers):
            patch.setattr(module, "dr", Drjit(backend_v))
        with pytest.raises(TypeError, match="Linear: the input lives on the CUDA backend and the weights on LLVM"):
            linear.check_input(layer, 2, llvm.Float16)
        with pytest.raises(TypeError, match="Grid: the input lives on the CUDA backend and the parameters on LLVM"):
            grid._same_backend(llvm.Float16, llvm.Float)
        with pytest.raises(TypeError, match="Embedding: the ids live on the LLVM backend and the table on CUDA"):
            table(llvm.UInt32(1))
        with pytest.raises(TypeError, match=r"'bias' lives on the LLVM backend, but the new value on CUDA"):
            layer["bias"] = llvm.TensorXf16(np.zeros(3, np.float16))
        linear.check_input(layer, 2, llvm.Float)
        grid._same_backend(llvm.Float, llvm.Float)


def test_a_backend_that_is_missing_is_said_first(llvm, monkeypatch):
    def missing(what):
        raise cn.BackendError(what)

    monkeypatch.setattr(module_of_layers, "require", missing)
    with pytest.raises(cn.BackendError, match="TensorXf"):
        cn.Linear(2, 3).alloc(llvm.TensorXf)


# ---- Padding -----------------------------------------------------------------------------------------------


def padded(module, tensor, size=1):
    """``module`` allocated as on CUDA: a matrix of one column gets another, of zeros."""
    with as_cuda(linear):
        return module.alloc(tensor, size)


def test_a_single_column_is_padded(llvm):
    layer = padded(cn.Linear(1, 4), llvm.TensorXf16)
    plain = cn.Linear(1, 4).alloc(llvm.TensorXf16)
    assert layer.weights.shape == (4, 2) and plain.weights.shape == (4, 1)
    np.testing.assert_array_equal(layer.weights.numpy()[:, 1], 0)
    np.testing.assert_array_equal(layer.weights.numpy()[:, :1], plain.weights.numpy())
    assert layer.layout.value is not None and dr.width(layer.layout.value.places) == 8
    assert padded(cn.Linear(2, 4), llvm.TensorXf16, 2).weights.shape == (4, 2)
    x = llvm.TensorXf16(numbers(1, 5))
    np.testing.assert_array_equal(layer(x).numpy(), plain(x).numpy())
    assert Parameter("w", layer, "weights").shape == (4, 1)
    packed = drnn.pack(layer, layout="training")
    np.testing.assert_array_equal(packed.matrix("weights"), plain.weights.numpy())


@pytest.mark.parametrize("path", ["spill", "banks", "builtin"])
def test_gradients_of_a_padded_layer(llvm, path):
    net = padded(cn.MLP(1, 2, width=5, depth=1, activation="tanh", bias=True), llvm.TensorXf)
    weights = [m.weights.numpy().astype(np.float64)[:, : m.config[0]] for m in net.layers if isinstance(m, cn.Linear)]
    net = drnn.pack(net, layout="training")
    layers = [m for m in net.layers if isinstance(m, cn.Linear)]
    assert layers[0].weights.shape == (5, 2)
    x, dy = numbers(1, 300), numbers(2, 300, seed=1) / 300
    got = differentiate(llvm, net, x, dy, path)
    _, _, dw, db = reference.mlp_vjp(weights, x, dy, "tanh", biases=[np.zeros(5), np.zeros(2)])
    for layer, w, b in zip(layers, dw, db, strict=True):
        view = layer.weights
        entries = got[view.offset : view.offset + view.size].reshape(view.shape)
        # zeros stay zeros: a column that learned would be a bias
        np.testing.assert_array_equal(entries[:, layer.config[0] :], 0)
        entries = entries[:, : layer.config[0]]
        all_close([entries, got[layer.bias.offset : layer.bias.offset + len(b)]], [w, b], 2e-5)


def test_a_siren_of_one_coordinate_is_padded(llvm):
    net = padded(cn.SIREN(1, 2, width=6, depth=2), llvm.TensorXf16)
    plain = cn.SIREN(1, 2, width=6, depth=2).alloc(llvm.TensorXf16)
    assert net.layers[0].weights.shape == (6, 2)
    np.testing.assert_array_equal(net.layers[0].weights.numpy()[:, 1], 0)
    for a, b in zip(net.layers[::2], plain.layers[::2], strict=True):
        np.testing.assert_array_equal(a.weights.numpy()[:, : a.config[0]], b.weights.numpy())
        np.testing.assert_array_equal(a.bias.numpy(), b.bias.numpy())


def test_a_siren_of_one_unit_stays_padded(llvm):
    net = padded(cn.SIREN(1, 1, width=1, depth=1), llvm.TensorXf16)
    assert [m.weights.shape for m in net.layers[::2]] == [(1, 2), (1, 2)]


def test_a_checkpoint_is_padded_when_it_is_loaded(llvm, tmp_path):
    pytest.importorskip("safetensors")
    field = cn.NeuralField(None, cn.MLP(1, 2, width=4, depth=1, bias=True)).build("llvm", "half")
    cn.save(tmp_path / "field.safetensors", field)
    with as_cuda(linear):
        loaded = cn.load(tmp_path / "field.safetensors", "llvm", "half")
    assert loaded.network.layers[0].weights.shape == (4, 2)
    x = [llvm.Float(np.linspace(-1, 1, 7)) + 1e-3]
    np.testing.assert_array_equal(loaded(x).numpy(), field(x).numpy())
    for name in ("layers.0.weights", "layers.0.bias", "layers.2.weights"):
        np.testing.assert_array_equal(loaded.matrix(name), field.matrix(name))
    cn.save(tmp_path / "again.safetensors", loaded)
    again, before = (cn.io.read(tmp_path / f"{name}.safetensors").tensors for name in ("again", "field"))
    assert again.keys() == before.keys()
    for name, value in before.items():  # files know no padding
        np.testing.assert_array_equal(again[name], value)


# ---- Registers, warnings -----------------------------------------------------------------------------------


def test_components_in_use_at_a_time():
    a, b, c = shaped((8, 3), (16, 8), (2, 16))
    assert banks.in_use([a, b, c], 1) == (8 + 16) + 16  # what goes into the second and third, and the widest cotangent
    assert banks.in_use([a, b, c], 4) == 4 * 40
    assert banks.in_use([a, Branching([[b], []], "cat"), c], 1) == 40
    assert banks.in_use([a], 2) == 2 * 8
    assert banks.in_use([], 3) == 0
    assert Network([c, a]).width == 16 and Network([]).width == 0
    assert ops.matrices([a, Branching([[b], [c]], "sum")]) == [a.weights, b.weights, c.weights]


def test_when_registers_are_asked_for(llvm, monkeypatch):
    parts = [llvm.Float16(0), llvm.Float16(0.5) + dr.opaque(llvm.Float16, 0, 10), dr.opaque(llvm.Float16, 1, 10)]
    view = drnn.view(dr.zeros(llvm.TensorXf16, (8, 8)))
    long = drnn.view(dr.zeros(llvm.TensorXf16, (registers.LONG + 1, 8)))
    fits = drnn.view(dr.zeros(llvm.TensorXf16, (8, registers.LONG)))

    def changed(views, used):
        with as_cuda(registers):
            found = registers.request_registers(parts, views, used)
        return [a.index != b.index for a, b in zip(found, parts, strict=True)]

    assert (registers.SHARE, registers.ALL) == (128, 256)
    assert changed([view], registers.SHARE) == [False, False, False]
    assert changed([], registers.SHARE + 1) == [False, False, False]
    assert changed([view], 100) == [False, False, False]
    assert changed([view], registers.SHARE + 1) == [False, True, False]  # not from a constant
    assert changed([view, fits], registers.SHARE + 1) == [False, True, False]
    assert changed([view, long], registers.SHARE + 1) == [False, False, False]  # Dr.Jit does it by itself
    lengths, matvec = [], drnn.matvec
    monkeypatch.setattr(drnn, "matvec", lambda view, x: lengths.append((view.shape, len(x))) or matvec(view, x))
    changed([view], registers.SHARE + 1)
    # longer than Dr.Jit's limit, and by as much as keeps rows of halves aligned to 16 bytes
    assert lengths == [((8, registers.LONG + 8), registers.LONG + 8)] and registers.LONG == 64


def test_directions_that_fit_into_registers():
    def most(*shapes):
        return networks.tangents_at_a_time(Situation(Network(shaped(*shapes)), dr.JitBackend.CUDA, 100, 7))

    assert most((64, 3), (1, 64)) == 3
    assert most((128, 3), (1, 128)) == 1
    assert most((512, 3)) == 1
    assert most() == 256 - 1


@pytest.mark.parametrize("precision", ["half", "single"])
def test_sizes_of_numbers_in_the_explanation(precision):
    """Spilled vectors are in half precision on CUDA, in single precision on CPUs whatever the network's is."""
    network = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build("llvm", precision)
    single, half = 4 * (2 + 8 + 8 + 1), 2 * (8 + 8 + 8 + 8)  # inputs and outputs of both layers; halves are padded
    assert network.explain(100).memory == 100 * single
    with as_cuda(row_vectors):
        assert network.explain(100).memory == 100 * (half if precision == "half" else single)


def test_precisions_of_cuda(monkeypatch, llvm):
    with pytest.raises(ValueError, match="f: precision is 'double'; accepted are"):
        field.storage("llvm", "double", "f")
    for precision, tensor, found in (
        ("auto", llvm.TensorXf, "single"), ("single", llvm.TensorXf, "single"), ("half", llvm.TensorXf16, "half")
    ):  # fmt: skip
        assert field.storage("llvm", precision, "f") == (tensor, found)
    monkeypatch.setattr(field, "require", lambda backend: "cuda")
    monkeypatch.setattr(field, "namespace", lambda backend: llvm)
    for precision in ("auto", "half"):
        assert field.storage("cuda", precision, "f") == (llvm.TensorXf16, "half")
    with pytest.raises(ValueError, match=r"^f: precision 'single' is not possible on CUDA.*; use 'half', or the LLVM"):
        field.storage("cuda", "single", "f")


def test_the_warning_of_sums_that_stall(monkeypatch):
    def warned(samples, fresh=True):
        if fresh:
            monkeypatch.setattr(stall, "_warned", False)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            stall.warn_stall(samples)
        return [str(w.message) for w in found if w.category is RuntimeWarning]

    assert limits.STALL_SAMPLES == 1 << 15  # at 2^16 samples half a percent can be lost already
    assert warned(1) == warned(limits.STALL_SAMPLES) == []
    (message,) = warned(limits.STALL_SAMPLES + 1)
    assert f"over {limits.STALL_SAMPLES + 1} samples" in message
    assert warned(1 << 20, fresh=False) == []  # once is enough
    assert warned(1) == []
    assert len(warned(2 << 20, fresh=False)) == 1  # a batch that is no trouble doesn't use the warning up
    (message,) = warned(None)
    assert "virtual call" in message and "None" not in message


@pytest.mark.parametrize("place", ["call", "call of a layer of drjit.nn", "loop"])
@pytest.mark.usefixtures("as_if_unwarned")
def test_the_warning_points_to_the_users_line(llvm, set_limits, place):
    net = cn.MLP(2, 1, width=8, depth=1) if place == "call" else drnn.Sequential(cn.Linear(2, 8), cn.Linear(8, 1))
    f = cn.NeuralField(None, net).build("llvm", "half")
    dr.enable_grad(f["network.weights"])
    x = llvm.Float(numbers(40))
    set_limits(STALL_SAMPLES=1)

    def call(x):
        return f([x, x * 2])[0]  # the user's

    def turn(i):
        y = f([x * 1, x * 2])[0]
        dr.backward(y)  # the user's
        return (i + 1,)

    with pytest.warns(RuntimeWarning, match="half precision") as found:
        if place == "loop":
            dr.while_loop((llvm.UInt32(0),), lambda i: i < 2, turn, mode="symbolic")
        else:
            dr.switch(dr.zeros(llvm.UInt32, 40), [call, call], x)
    assert found[0].filename == __file__
    assert "# the user's" in linecache.getline(__file__, found[0].lineno)


def test_the_first_warning_of_a_process_is_not_held_back():
    spec = importlib.util.spec_from_file_location("coopnet.engine.fresh_stall", stall.__file__)
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    with pytest.warns(RuntimeWarning, match="half precision"):
        fresh.warn_stall(None)


def test_unknown_layouts():
    known = Affine(Weights(None, layout=object()))
    unknown = Affine(Weights(None))
    assert Network([known]).layouts_known and Network([]).layouts_known
    assert not Network([known, unknown]).layouts_known
    assert not Network([known, Branching([[unknown]], "sum")]).layouts_known


@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_networks_in_calls_are_kept_apart_on_cuda(llvm, monkeypatch, dropout, literal):
    """Two in one callable would be interleaved. The values are the same, and NaN stays visible."""
    nets = [network(llvm, dropout=dropout)[0] for _ in range(2)]
    n, kept = 50, []
    keep = registers.in_separate_blocks
    monkeypatch.setattr(networks, "in_separate_blocks", lambda f, xs: kept.append(len(xs)) or keep(f, xs))
    which = llvm.UInt32(np.arange(n) % 2)
    first = numbers(n)
    first[7] = np.nan
    x = [llvm.Float(1), llvm.Float(first), llvm.Float(numbers(n, seed=1))]
    x = [llvm.Float(0.5)] * 3 if literal else x
    key = cn.Key(3, dr.arange(llvm.UInt32, n)) if dropout else None

    def body(number):
        def both(a, b, c, key):
            v = drnn.CoopVec([a * 1, b * 1, c * 1])
            return [*nets[number](v, key), *nets[1 - number](v, key)]

        return both

    def run():
        out = dr.switch(which, [body(0), body(1)], *x, key)
        return np.array([np.broadcast_to(v.numpy(), n) for v in out])

    wanted = run()
    assert not kept
    with as_cuda(networks, situation):
        got = run()
        outside = nets[0](drnn.CoopVec([v * 1 for v in x]), None)
    assert len(kept) == 4 and literal == bool(np.isfinite(wanted).all())
    np.testing.assert_array_equal(got, wanted)
    assert len(outside) == len(wanted) // 2 and len(kept) == 4  # outside symbolic code, networks stay as they are


@pytest.mark.parametrize("scope", ["loop", "conditional", "conditional in a loop"])
def test_networks_in_loops_and_conditionals_are_kept_apart_on_cuda(llvm, chosen, scope):
    nets = [network(llvm, dropout=0.4)[0] for _ in range(2)]
    x = [llvm.Float(numbers(50, seed=i)) for i in range(3)]
    lane = dr.arange(llvm.UInt32, 50)

    def both(y, turn):
        key = cn.Key(3, lane, turn)
        v = drnn.CoopVec([a + y for a in x])
        (first, *_), (second, *_) = nets[0](v, key), nets[1](v, key)
        return first + second

    def body(turn, y):
        if scope == "loop":
            return turn + 1, both(y, turn)
        return turn + 1, dr.if_stmt((y, turn), lane % 3 == turn, both, lambda y, _: y, mode="symbolic")

    def run():
        if scope == "conditional":
            return body(llvm.UInt32(1), llvm.Float(0))[1].numpy()
        state = llvm.UInt32(0), dr.zeros(llvm.Float, 50)
        return dr.while_loop(state, lambda turn, _: turn < 3, body, mode="symbolic")[1].numpy()

    wanted = run()
    with as_cuda(networks, situation):
        got = run()
    ways = [strategy for _, strategy in chosen]
    half = len(ways) // 2
    assert set(ways[:half]) == {"kernel"} and set(ways[half:]) == {"separate blocks"}
    np.testing.assert_array_equal(got, wanted)
