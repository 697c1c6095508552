"""Fields audited: errors by layer, overflow, dead units, and layers that the reference does not know."""

from __future__ import annotations

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import arrays, coordinates, precisions
from support.kernels import launched
from support.networks import layers

import coopnet as cn
from coopnet import audit
from coopnet import reference as ref
from coopnet.nn.linear import check_precision

ENCODINGS = {
    "none": lambda: None,
    "identity": cn.Identity,
    "sinusoidal": lambda: cn.Sinusoidal(4, shift=0.2, in_features=2),
    "triangular": lambda: cn.Triangular(4, in_features=2),
    "grid": lambda: cn.HashGrid(2, n_levels=3, hashmap_size=2**8, base_resolution=4, init_scale=1.0),
    "drjit": lambda: drnn.SinEncode(3),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_known_layers(ns, backend, encoding):
    """Every layer of ours has a twin, found with its parameters, and errors have the size of the precision."""
    _, p = coordinates(ns)
    n_in = 2 if encoding in ("none", "identity") else -1
    layers = [cn.Linear(n_in, 8), cn.Tanh(), cn.Linear(-1, 8), cn.Sine(3.0), cn.LeakyReLU(0.3), cn.Dropout(0.3)]
    if backend == "llvm" or encoding == "sinusoidal":
        layers += [cn.Sigmoid(), cn.SiLU(), cn.Softplus(), cn.ReLU(), cn.Linear(-1, 3, bias=False), cn.Exp()]
    for precision in precisions(backend):
        field = cn.NeuralField(ENCODINGS[encoding](), cn.Sequential(*layers), in_features=2).build(backend, precision)
        report = field.audit(p, cn.Key(2**40 + 3, step=2))
        assert report.finite and not report.unknown
        assert (report.backend, report.precision, report.samples) == (backend, precision, 200)
        for layer in report.layers:
            limit = 3e-2 if precision == "half" else 1e-5
            assert layer.rms_error < limit and layer.own_error < limit and layer.max_error < 3 * limit, layer
            assert layer.overflows == layer.non_finite == 0
        if precision == "half":
            assert report.layers[-1].rms_error > 1e-5  # and not zero either


def test_a_wrong_layer_is_found(ns, backend):
    """A layer that computes something else shows in its own error, later ones only in the accumulated one."""
    _, p = coordinates(ns)
    field = cn.NeuralField(None, cn.Sequential(cn.Linear(2, 8), cn.Sine(2.0), cn.Linear(-1, 4))).build(backend)
    sine = field.network.layers[1]
    sine.params = lambda: (2.2,)
    good, bad, after = field.audit(p).layers[-3:]
    assert bad.layer == "Sine" and bad.own_error > 0.05
    assert after.rms_error > 0.02 and after.own_error < 1e-2 and good.rms_error < 1e-2


def test_dead_units(ns, backend):
    """Those that are 0 for all samples; neither those that are for some, nor those of other activations."""
    _, p = coordinates(ns)
    field = cn.NeuralField(None, cn.Sequential(cn.Linear(2, 5), cn.ReLU(), cn.Linear(-1, 2)))
    dtype = ns.TensorXf16 if backend == "cuda" else ns.TensorXf
    field = field.allocate(dtype, "half" if backend == "cuda" else "single")
    first = field.network.layers[0]
    first.bias = type(first.bias)([-50, 50, 0, -50, -50])
    field = field.pack()
    field.set_matrix("layers.0.weights", [[1, 1], [1, 1], [1, -1], [1, 1], [1, 1]])
    rows = field.audit(p).layers
    relu = rows[-2]
    assert relu.layer == "ReLU" and (relu.dead, relu.features) == (3, 5)
    assert [r.dead for r in rows if r.layer != "ReLU"] == [None] * (len(rows) - 1)
    lively = cn.NeuralField(None, cn.Sequential(cn.Linear(2, 5), cn.ReLU(), cn.Linear(-1, 2))).build(backend)
    lively.set_matrix("layers.0.weights", np.ones((5, 2)))
    assert lively.audit(p).layers[-2].dead == 0


def test_overflow_in_half_precision(ns, backend):
    """exp(20) is no half; the network says so, and where."""
    _, p = coordinates(ns)
    field = cn.NeuralField(None, cn.Sequential(cn.Linear(2, 2), cn.Exp(), cn.Linear(-1, 1)))
    field = field.allocate(ns.TensorXf16, "half")
    first = field.network.layers[0]
    first.bias = type(first.bias)([20, 0])
    report = field.pack().audit(p)
    by_layer = {r.layer: r for r in report.layers}
    assert not report.finite
    assert by_layer["Linear(2, 2)"].non_finite == 0
    assert by_layer["Exp"].overflows == by_layer["Exp"].non_finite == 200
    assert by_layer["Exp"].rms_error < 1e-2  # of the finite unit


@pytest.mark.parametrize("kind", [cn.Dropout, cn.DropPath, cn.GaussianDropout])
def test_probabilities_of_dr_jit(ns, backend, kind):
    """The twin reads a scheduled p when it is called, and clips it as kernels do."""
    _, p = coordinates(ns)
    options = {} if kind is cn.GaussianDropout else {"bits": 8}
    net = cn.Sequential(cn.Linear(2, 8), kind(dr.opaque(ns.Float, 0.5), **options), cn.Linear(-1, 2))
    for precision in precisions(backend):
        field = cn.NeuralField(None, net).build(backend, precision)
        layer = field.network.layers[1]
        for value in (0.3, 0.0, 0.999, 1.0, 1.5, -0.5):
            layer.p = dr.opaque(ns.Float, value)
            report = field.audit(p, cn.Key(5, step=3))
            (row,) = (r for r in report.layers if r.layer == kind.__name__)
            # the noise is single precision, and large for a p close to 1
            assert row.own_error < (1e-3 if precision == "half" else 1e-5), (value, row)
            assert (field.audit(p).layers[-2].rms_error == report.layers[-2].rms_error) == (value <= 0)


class Doubling(cn.Module):
    def __call__(self, x, key=None):
        return x * 2


class Tanh(cn.Module):
    """Not the Tanh that the reference has."""

    def __call__(self, x, key=None):
        return x * 2


def test_unknown_layers(ns, backend):
    _, p = coordinates(ns)
    for layer in (Doubling(), Tanh()):
        field = cn.NeuralField(None, cn.Sequential(cn.Linear(2, 4), layer, cn.Sine())).build(backend)
        report = field.audit(p)
        assert report.unknown == ("network.1",)
        unknown, after = report.layers[-2:]
        assert unknown.max_error is None and unknown.rms_error is None and unknown.own_error is None
        assert after.rms_error < (1e-2 if backend == "cuda" else 1e-6)
        assert "unknown" in str(report)


def test_layers_with_more_numbers_than_their_twin():
    """A number of the layer that the twin has no place for makes another function of it; sizes and arrays do not."""

    class Layer:
        DRJIT_STRUCT = {"a": float, "weights": object, "in_features": int, "omega": float}
        a, weights, in_features, omega = 2.0, [1.0], 3, None

    def scaled(x, a, b=1): ...

    def other(x, b): ...

    layer = Layer()
    assert audit._arguments(layer, scaled, {}) == {"a": 2.0}
    assert audit._arguments(layer, other, {}) is None  # and what the twin needs, the layer must have
    layer.omega = 0
    assert audit._arguments(layer, scaled, {}) is None
    layer.omega, layer.b = "text", "text"
    assert audit._arguments(layer, scaled, {}) == {"a": 2.0, "b": "text"}
    del Layer.DRJIT_STRUCT
    layer.omega = 1.0
    assert audit._arguments(layer, scaled, {}) == {"a": 2.0, "b": "text"}


def test_scales_of_a_grid_are_those_of_its_kernels(ns, backend):
    """Level 2 of this one has scale 17 and 18 vertices in exact arithmetic, but 19 in Dr.Jit's."""
    for grid in (cn.HashGrid, cn.Permutohedral):
        layer = grid(2, n_levels=4, base_resolution=2, per_level_scale=3.0, init_scale=1.0)
        field = cn.NeuralField(layer, cn.Linear(-1, 1)).build(backend)
        assert layer.alloc(ns.TensorXf).grid.value.levels[2].scale > 17
        for row in field.audit(coordinates(ns)[1]).layers:
            assert row.rms_error < (1e-2 if backend == "cuda" else 1e-5)


@pytest.mark.filterwarnings("error")
def test_overflow_of_the_reference_warns_of_nothing(ns, backend):
    net = cn.Sequential(cn.Linear(2, 2), cn.Exp(), cn.Exp(), cn.Linear(2, 2))
    field = cn.NeuralField(cn.Identity(100.0), net).build(backend)
    field.set_matrix("layers.0.weights", np.ones((2, 2)))
    field.set_matrix("layers.3.weights", np.array([[1, -1], [1, 1]]))  # inf - inf
    overflown, again, unknown = field.audit(coordinates(ns)[1]).layers[-3:]
    assert 0 < overflown.overflows == overflown.non_finite < again.non_finite == unknown.non_finite
    assert again.overflows == unknown.overflows == 0


def test_one_kernel_for_each_layer(ns, backend):
    net = cn.Sequential(cn.Linear(2, 4), cn.Residual(cn.Sequential(cn.Linear(4, 4), cn.ReLU())))
    field, p = cn.NeuralField(None, net).build(backend), coordinates(ns)[1]
    with launched() as kernels:
        rows = field.audit(p).layers
    assert sum(k["size"] == 200 for k in kernels) <= len(rows) + 1  # the cast has one for each coordinate


def test_print(ns, backend):
    field = cn.NeuralField(cn.Sinusoidal(2, in_features=2), cn.MLP(-1, 1, 8, 1)).build(backend)
    lines = str(field.audit(coordinates(ns)[1])).splitlines()
    assert lines[0].startswith(f"{backend.upper()}, {field.precision} precision, 200 samples")
    assert lines[1].split()[:3] == ["layer", "max", "error"]
    cast = backend == "cuda"
    assert len(lines) == 2 + 1 + cast + 3  # encoding, cast, linear, relu, linear
    assert lines[2].startswith("encoding") and " of 8" in lines[-2]


def test_it_is_the_field(ns, backend):
    """The layers one by one give what the field gives."""
    _, p = coordinates(ns)
    field = cn.NeuralField(cn.Sinusoidal(2, in_features=2), cn.MLP(-1, 1, 8, 2, dropout=0.2)).build(backend)
    exact = ref.sinusoidal(p.numpy(), 2)
    plain = cn.NeuralField(cn.Sinusoidal(2, in_features=2), cn.MLP(-1, 1, 8, 2, dropout=0.2))
    plain = plain.allocate(ns.TensorXf16 if backend == "cuda" else ns.TensorXf, field.precision)
    weights = [layer.weights.numpy() for layer in plain.network.layers if isinstance(layer, cn.Linear)]
    y = ref.mlp(weights, exact, "relu", dropout=(0.2, 16, 4))
    got = field(p, cn.Key(4)).numpy()
    error = np.abs(got - y).max() / np.abs(y).max()
    assert abs(field.audit(p, cn.Key(4)).layers[-1].max_error - error) < (5e-3 if backend == "cuda" else 1e-6)


def test_errors(ns, backend):
    field = cn.NeuralField(None, cn.Linear(2, 1)).build(backend)
    with pytest.raises(ValueError, match=r"NeuralField.audit: p has 3 coordinates"):
        field.audit(ns.Array3f(1))
    with pytest.raises(ValueError, match=r"NeuralField.audit: the field is not built yet"):
        cn.NeuralField(None, cn.Linear(2, 1)).audit(ns.Array2f(1))

    def body(i):
        field.audit(ns.Array2f(1, 2))
        return (i + 1,)

    with pytest.raises(RuntimeError) as error:
        dr.while_loop((ns.UInt32(0),), lambda i: i < 2, body, mode="symbolic")
    assert "NeuralField.audit: called while Dr.Jit records" in str(error.value.__cause__ or error.value)


def test_single_precision_weights_on_cuda():
    """Known by their type alone, so that it can be checked without a GPU."""
    from drjit.cuda.ad import Float, Float16
    from drjit.llvm.ad import Float as OnCPU
    from drjit.llvm.ad import Float64

    check_precision(Float16, "Linear")
    check_precision(OnCPU, "Linear")
    with pytest.raises(TypeError, match="Linear: the packed weights are Float64; cooperative vectors are"):
        check_precision(Float64, "Linear")
    with pytest.raises(TypeError, match=r"Linear: the packed weights are Float32, but CUDA's .* half precision only"):
        check_precision(Float, "Linear")


GRID = dict(n_levels=2, hashmap_size=2**7, base_resolution=4, per_level_scale=3.1, init_scale=0.5)
#: Layers that do nothing by default, or too much.
EXAMPLES = {
    "Composite": lambda: cn.Composite([cn.Frequency(2), cn.Grid(1, "dense", **GRID), cn.Identity(2.0)], [1, 1, 1]),
    "DropLevels": lambda: cn.DropLevels(0.4, n_features_per_level=1),
    "Embedding": lambda: cn.Embedding(5, 4),
    "Grid": lambda: cn.Grid(storage="tiled", interpolation="smoothstep", **GRID),
    "HashGrid": lambda: cn.HashGrid(**GRID),
    "Heads": lambda: cn.Heads(cn.Linear(3, 4), {"a": cn.Tanh(), "b": cn.Residual(cn.Linear(-1, 4))}),
    "Identity": lambda: cn.Identity(-2.0, 0.5),
    "Linear": lambda: cn.Linear(3, 4),
    "MLP": lambda: cn.MLP(3, 2, 4, 1),
    "Permutohedral": lambda: cn.Permutohedral(**GRID),
    "Residual": lambda: cn.Residual(cn.Sequential(cn.Linear(3, 3), cn.GELU(), cn.DropPath(0.3))),
    "Sequential": lambda: cn.Sequential(cn.Linear(3, 4), cn.Tanh()),
    "SIREN": lambda: cn.SIREN(3, width=8, depth=1, omega_0=3.0),
    "Skip": lambda: cn.Skip(cn.Sequential(cn.Linear(3, 2), cn.Sine())),
    "Softplus": lambda: cn.Softplus(10.0),
    "SparseProjection": lambda: cn.SparseProjection(out_features=4, density=0.6),
    "Squareplus": lambda: cn.Squareplus(10.0),
    "Triangular": lambda: cn.Triangular(3),
}


@pytest.mark.parametrize("name", layers())
def test_every_layer_has_a_twin(ns, backend, name):
    """Found with its parameters, in the network and, where it can be one, as the encoding."""
    size = 1 if name == "Embedding" else 3
    x = np.random.default_rng(0).random((size, 200)).astype(np.float32)
    p = getattr(ns, f"Array{size}f")(arrays(ns, np.floor(5 * x) if name == "Embedding" else x))
    make = EXAMPLES.get(name, layers()[name])
    for inside in (True, False):
        layer = make()
        encodes = isinstance(layer, (cn.nn.Encoding, cn.Identity, cn.Embedding))
        if inside:
            field = cn.NeuralField(None, cn.Sequential(layer), in_features=size)
        elif encodes:
            field = cn.NeuralField(layer, cn.Linear(-1, 2), in_features=size)
        else:
            continue
        for precision in precisions(backend)[: None if inside else 1]:
            report = field.build(backend, precision).audit(p, cn.Key(2**40 + 3, step=2))
            assert not report.unknown, f"coopnet.{name} has no twin that audits find"
            assert report.finite and report.precision == precision
            half = precision == "half"
            # half-precision coordinates miss their cells and periods
            limit = (0.3 if inside and encodes else 3e-2) if half else 2e-5
            for row in report.layers:
                assert row.rms_error < limit and row.own_error < limit, row
            if half and not (inside and name == "Embedding"):  # whose rows are what they are
                assert report.layers[-1].rms_error > 1e-5


def test_rows_of_containers(ns, backend):
    """Containers are taken apart, and what they merge is compared, too."""
    net = cn.Sequential(
        cn.Linear(2, 4),
        cn.Residual(cn.Sequential(cn.Linear(4, 4), cn.ReLU())),
        cn.Heads(None, {"a": cn.Linear(4, 1), "b": cn.Skip(cn.Linear(4, 2))}),
    )
    for precision in precisions(backend):
        field = cn.NeuralField(None, net).build(backend, precision)
        rows = [r for r in field.audit(coordinates(ns)[1]).layers if r.name != "cast"]
        assert [(r.name, r.layer) for r in rows] == [
            ("network.0", "Linear(2, 4)"),
            ("network.1.body.0", "Linear(4, 4)"),
            ("network.1.body.1", "ReLU"),
            ("network.1", "Residual"),
            ("network.2.a.0", "Linear(4, 1)"),
            ("network.2.b.0.body.0", "Linear(4, 2)"),
            ("network.2.b.0", "Skip"),
            ("network.2", "Heads"),
        ]
        assert [r.features for r in rows] == [4, 4, 4, 4, 1, 2, 6, 7]
        half = precision == "half"
        assert all(r.rms_error < (2e-2 if half else 1e-5) for r in rows)
        # the sum rounds by itself; what is joined end to end does not
        assert (rows[3].own_error > 1e-5) == half and rows[6].own_error == rows[7].own_error == 0
