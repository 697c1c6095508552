"""Derivatives with respect to the input, layer by layer: every one has a rule, and rules agree with the reference."""

from __future__ import annotations

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.arrays import arrays, close, differences, evaluated, values
from support.networks import gradients, layers, matrices

import coopnet as cn
from coopnet import reference as ref
from coopnet.engine import FUNCTIONS
from coopnet.engine.ops import Record
from coopnet.nn.tree import children

#: A level that holds all of its vertices, and a hashed one.
LEVELS = dict(n_levels=2, hashmap_size=2**7, base_resolution=4, per_level_scale=3.1, init_scale=0.5)
SAMPLES = 200


#: What to test of layers that do nothing by default, or too much.
EXAMPLES = {
    "Composite": lambda: cn.Composite([cn.Frequency(2), cn.Identity()], [1, 2]),
    "DropLevels": lambda: cn.DropLevels(0.4, per_sample=True, n_features_per_level=1),
    "Embedding": lambda: cn.Embedding(5, 4),
    "Fourier": lambda: cn.Fourier(4, 0.5),
    "Frequency": lambda: cn.Frequency(3),
    "Grid": lambda: cn.Grid(**LEVELS),
    "HashGrid": lambda: cn.HashGrid(**LEVELS),
    "Heads": lambda: cn.Heads(cn.Linear(3, 4), {"a": cn.Tanh(), "b": cn.Linear(-1, 2)}),
    "Permutohedral": lambda: cn.Permutohedral(**LEVELS),
    "Residual": lambda: cn.Residual(cn.Sequential(cn.Linear(3, 3), cn.Tanh())),
    "Sequential": lambda: cn.Sequential(cn.Linear(3, 4), cn.Tanh()),
    "Sinusoidal": lambda: cn.Sinusoidal(3),
    "SIREN": lambda: cn.SIREN(3, width=8, depth=1, omega_0=3.0),
    "Skip": lambda: cn.Skip(cn.Linear(3, 2)),
    "TriangleWave": lambda: cn.TriangleWave(3),
    "Triangular": lambda: cn.Triangular(2),
    "Linear": lambda: cn.Linear(3, 2),
    "MLP": lambda: cn.MLP(3, 2, 4, 1, "tanh"),
}


def opaque(ns, x):
    return getattr(ns, f"Array{len(x)}f")(arrays(ns, x))


def jacobian(f, x, h=1e-6):
    """(outputs, coordinates, samples) of ``f`` by central differences."""
    steps = [h * np.eye(len(x))[:, i : i + 1] for i in range(len(x))]
    return np.stack([(f(x + e) - f(x - e)) / (2 * h) for e in steps], axis=1)


def losses(y, j, dy):
    """A loss of values and gradient per sample, in NumPy."""
    return (np.sqrt((j[0] ** 2).sum(axis=0) + 0.01) - 1) ** 2 * dy[0] + y[0] * dy[1]


def losses_of(ns, field, p, dy, key=None):
    y, g = field.value_and_grad(p, key)
    norm = dr.sqrt(sum(dr.square(v) for v in g) + 0.01)
    dy = arrays(ns, dy)
    return dr.square(norm - 1) * dy[0] + y[0] * dy[1]


def allocated(ns, backend, encoding, network, size):
    field = cn.NeuralField(encoding, network, in_features=size)
    half = backend == "cuda"
    return field.allocate(ns.TensorXf16 if half else ns.TensorXf, "half" if half else "single")


# ---- Every layer has a rule --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", layers())
def test_every_layer_has_a_rule(ns, backend, name):
    """Its values are those of a call, and its slopes those of differences."""
    layer = EXAMPLES.get(name, layers()[name])()
    size = 1 if name == "Embedding" else 3
    field = allocated(ns, backend, None, cn.Sequential(layer), size).pack()
    x = 0.05 + 0.9 * np.random.default_rng(0).random((size, 60))
    if name == "Embedding":
        x = np.floor(x * 5)
    p, key = opaque(ns, x), cn.Key(3)
    try:
        rows = field.jacobian(p, key)
    except TypeError as error:
        pytest.fail(f"coopnet.{name} has no rule for derivatives with respect to its input: {error}")
    direction = np.random.default_rng(1).normal(size=x.shape)
    value, slope = field.jvp(p, opaque(ns, direction), key)
    half = backend == "cuda"
    dr.eval(value, rows, slope)  # one by one, each would be a kernel
    close(value.numpy(), field(p, key).numpy(), 2e-3 if half else 1e-6)
    got = np.stack([[np.broadcast_to(v.numpy(), 60) for v in row] for row in rows])  # constants have one entry
    if name == "Embedding":
        assert got.shape == (4, 1, 60) and not got.any() and not slope.numpy().any()
        return
    expected = jacobian(lambda q: field(opaque(ns, q), key).numpy().astype(np.float64), x, 0.02 if half else 1e-3)
    close(got, expected, 0.2 if half else 2e-2, 0.2 if half else 0.1)
    close(slope.numpy(), np.einsum("ijn,jn->in", got, direction), 1e-2 if half else 1e-5)


@pytest.mark.parametrize("name", [n for n, c in layers().items() if hasattr(c, "jvp")])
def test_tangents_that_are_none(ns, name):
    """Whatever the layer, tangents are lists of vectors like its input."""
    layer = EXAMPLES.get(name, layers()[name])()
    n = 1 if name == "Embedding" else 3
    encoding = isinstance(layer, (cn.Encoding, cn.Embedding, cn.Identity))

    def vector(n=n, leaf=ns.Float, samples=2):
        return drnn.CoopVec([dr.zeros(leaf, samples) for _ in range(n)])

    x, listed = vector(), list(vector())
    for arguments, error, words in [
        ((ns.Float(1), []), TypeError, "x is a Float; a drjit.nn.CoopVec" + " or a list of arrays" * encoding),
        ((x, x), TypeError, "tangents is a CoopVec; a list of directions is needed"),
        ((x, [x, listed]), TypeError, r"tangents\[1\] is a list, but x a CoopVec"),
        ((x, [vector(n + 1)]), ValueError, rf"tangents\[0\] has {n + 1} components, but x has {n}"),
        ((x, [x, vector(leaf=ns.Float16)]), TypeError, r"tangents\[1\] is of Float16, but x of Float"),
        ((x, [vector(samples=3)]), ValueError, "arrays of different sizes"),
        ((listed, [x]), TypeError, r"tangents\[0\] is a CoopVec, but x a list" if encoding else "x is a list"),
    ]:
        with pytest.raises(error, match=rf"{type(layer).__name__}\.jvp.*{words}"):
            layer.jvp(*arguments)
    if isinstance(layer, cn.Encoding):
        layer.in_features = 5
        with pytest.raises(ValueError, match=r"the input has 3 features, but .* takes 5"):
            layer.jvp(x, [x])


def test_encodings_say_what_they_lack(ns, backend):
    class Bare(cn.Encoding):
        pass

    x = [ns.Float(1)]
    with pytest.raises(TypeError, match=r"^Bare: width\(size\) is missing; coopnet\.Encoding says"):
        cn.NeuralField(Bare(), cn.MLP(-1, 1), in_features=2).build(backend)
    with pytest.raises(TypeError, match=r"^Bare: _features\(coordinates\) is missing; coopnet\.Encoding says"):
        Bare()(x)
    with pytest.raises(TypeError, match=r"Bare: this layer has no rule .* define Bare\.jvp"):
        Bare().jvp(x, [x])


# ---- Encodings ---------------------------------------------------------------------------------------------


def frequencies(layer):
    return layer.frequencies.value.data.numpy().reshape(layer.n_frequencies, -1).astype(np.float64)


def grid(layer, x, table):
    names = ("n_levels", "n_features_per_level", "hashmap_size", "base_resolution")
    options = {name: getattr(layer, name) for name in names}
    options["level_scales"] = [level.scale for level in layer.grid.value.levels]
    if isinstance(layer, cn.Permutohedral):
        return ref.permutohedral(x, table, **options)
    options["interpolation"] = layer.interpolation
    return ref.hash_grid(
        x, table, **options, **({"storage": layer.storage, "multiple": 8} if type(layer).__name__ == "Grid" else {})
    )


# name: (layer, coordinates, twin(layer, x, its parameters or None), continuous slope?)
CASES = {
    "frequency": (lambda: cn.Frequency(6), 2, lambda e, x, t: ref.frequency(x, 6), True),
    "triangle wave": (lambda: cn.TriangleWave(5), 2, lambda e, x, t: ref.triangle_wave(x, 5), False),
    "one blob": (lambda: cn.OneBlob(8), 2, lambda e, x, t: ref.one_blob(x, 8), True),
    "one bin": (lambda: cn.OneBlob(1), 3, lambda e, x, t: ref.one_blob(x, 1), True),
    "harmonics 1": (lambda: cn.SphericalHarmonics(1), 3, lambda e, x, t: ref.spherical_harmonics(x, 1), True),
    "harmonics 5": (lambda: cn.SphericalHarmonics(5), 3, lambda e, x, t: ref.spherical_harmonics(x, 5), True),
    "fourier": (lambda: cn.Fourier(5, 2.0), 3, lambda e, x, t: ref.fourier(x, frequencies(e)), True),
    "trained fourier": (
        lambda: cn.Fourier(5, 1.0, trained=True), 2, lambda e, x, t: ref.fourier(x, t.reshape(5, -1)), True),
    "dense": (lambda: cn.Grid(storage="dense", **LEVELS), 2, grid, False),
    "tiled": (lambda: cn.Grid(storage="tiled", **LEVELS), 3, grid, False),
    "smoothstep": (lambda: cn.Grid(interpolation="smoothstep", **LEVELS), 3, grid, True),
    "tiled smoothstep": (lambda: cn.Grid(storage="tiled", interpolation="smoothstep", **LEVELS), 2, grid, True),
    "nearest": (lambda: cn.Grid(interpolation="nearest", **LEVELS), 2, grid, False),
    "hash grid smoothstep": (lambda: cn.HashGrid(interpolation="smoothstep", **LEVELS), 2, grid, True),
    "permutohedral 2": (lambda: cn.Permutohedral(**LEVELS), 2, grid, False),
    "permutohedral 4": (lambda: cn.Permutohedral(**LEVELS), 4, grid, False),
    "identity": (lambda: cn.Identity(-3.0, 0.25), 2, lambda e, x, t: ref.identity(x, -3, 0.25), True),
    "projection": (
        lambda: cn.SparseProjection(out_features=5, density=0.6, seed=2), 3,
        lambda e, x, t: ref.sparse_projection(x, 5, 0.6, 2), True),
    "composite": (
        lambda: cn.Composite([cn.TriangleWave(2), cn.OneBlob(4), cn.Identity(2.0, -1.0)], [1, 1, 2], [2, 0, 1]), 3,
        lambda e, x, t: ref.composite(x, [
            (2, 1, lambda v: ref.triangle_wave(v, 2)), (0, 1, lambda v: ref.one_blob(v, 4)),
            (1, 2, lambda v: ref.identity(v, 2, -1))]), False),
    "sum": (
        lambda: cn.Composite([cn.Identity(), cn.Identity(0.5)], [2, 2], [0, 1], reduction="sum"), 3,
        lambda e, x, t: ref.composite(
            x, [(0, 2, ref.identity), (1, 2, lambda v: ref.identity(v, 0.5))], "sum"), True),
    "product": (
        lambda: cn.Composite([cn.Frequency(2), cn.OneBlob(4), cn.Identity(), ], [1, 1, 4], [0, 1, 0],
                             reduction="product"), 4,
        lambda e, x, t: ref.composite(x, [
            (0, 1, lambda v: ref.frequency(v, 2)), (1, 1, lambda v: ref.one_blob(v, 4)), (0, 4, ref.identity)],
            "product"), True),
}  # fmt: skip


def twin_of(layer, twin):
    """The twin as ``f(x, parameters)``, and the parameters."""
    table = layer["data"].numpy().astype(np.float64) if list(layer) else None
    return (lambda x, t=table: twin(layer, x, t)), table


@pytest.mark.parametrize("name", CASES)
def test_encodings(ns, backend, name):
    """Alone, in single precision, on lists and cooperative vectors."""
    make, size, twin, _ = CASES[name]
    layer = make().alloc(ns.TensorXf, size)
    f, _ = twin_of(layer, twin)
    x = np.random.default_rng(0).random((size, SAMPLES)).astype(np.float32).astype(np.float64)
    p = list(opaque(ns, x))
    expected = jacobian(f, x, 1e-7)
    units = [[ns.Float(i == j) for j in range(size)] for i in range(size)]
    y, moved = layer.jvp(p, units)
    assert isinstance(y, list) and all(isinstance(t, list) for t in moved)
    dr.eval(y, moved)  # one by one, each would be a kernel
    close(np.array([np.ravel(v) for v in y]), f(x), 1e-5)
    got = np.stack([[np.broadcast_to(v.numpy(), SAMPLES) for v in t] for t in moved], axis=1)
    if np.abs(expected).max() < 1e-6:
        assert not got.any()
        return
    close(got, expected, 1e-4, 0.01)
    direction = [p[-1], *p[:-1]]
    y, (slope,) = layer.jvp(drnn.CoopVec(p), [drnn.CoopVec(direction)])
    assert isinstance(y, drnn.CoopVec) and isinstance(slope, drnn.CoopVec)
    moved = np.einsum("ijn,jn->in", expected, np.roll(x, 1, axis=0))
    close(values(slope), moved, 1e-4, 0.01)


@pytest.mark.parametrize("name", CASES)
def test_second_order_through_encodings(ns, backend, name):
    """The gradient of a loss on the gradient: with respect to weights, parameters of the encoding, and coordinates."""
    if backend == "cuda" and name not in ("one blob", "trained fourier", "smoothstep", "permutohedral 2", "composite"):
        pytest.skip("the same program as on LLVM")
    make, size, twin, smooth = CASES[name]
    field = allocated(ns, backend, make(), cn.MLP(-1, 1, 4, 1, "softplus", bias=False), size)
    weights, _ = matrices(field.network)
    f, table = twin_of(field.encoding, twin)
    field = field.pack()
    rng = np.random.default_rng(0)
    x = rng.random((size, SAMPLES)).astype(np.float32).astype(np.float64)
    dy = rng.normal(size=(2, SAMPLES)) / SAMPLES

    def encoded(x, table=table):
        return f(x, table), jacobian(lambda q: f(q, table), x)

    def terms(weights, e, j):
        parts = [ref.mlp_jvp(weights, e, j[:, i], "softplus") for i in range(size)]
        return losses(parts[0][0], np.stack([d for _, d in parts], axis=1), dy)

    p = opaque(ns, x)
    dr.enable_grad(p, field["network.weights"])
    if table is not None:
        dr.enable_grad(field["encoding.data"])
    dr.backward(losses_of(ns, field, p, dy))
    dr.eval(dr.grad([p, *field.values()]))
    tolerance = 8e-2 if backend == "cuda" else 5e-4
    here = encoded(x)
    for i, got in enumerate(gradients(field)[0]):
        places = range(0, got.size, 3)
        expected = differences(lambda w, i=i: terms([w if k == i else v for k, v in enumerate(weights)], *here).sum(),
                               weights[i], places)  # fmt: skip
        close(got.flat[list(places)], expected, tolerance)
    if table is not None:
        got = field["encoding.data"].grad.numpy()
        places = np.flatnonzero(got)[:: max(1, np.count_nonzero(got) // 12)]
        expected = differences(lambda t: terms(weights, *encoded(x, t)).sum(), table, places)
        close(got[places], expected, tolerance)
    h = 1e-4 if smooth else 1e-6
    single = np.stack([(terms(weights, *encoded(x + e)) - terms(weights, *encoded(x - e))) / (2 * h)
                       for e in (h * np.eye(size)[:, i : i + 1] for i in range(size))])  # fmt: skip
    # of those that jump, some samples lie so close to an edge that the difference reaches across
    close(dr.grad(p).numpy(), single, 8e-2 if backend == "cuda" else 1e-3, 0.005 if smooth else 0.06)


def test_encodings_in_loops(ns, backend):
    """Parameters of encodings, through tangents inside a symbolic loop."""
    x = np.random.default_rng(0).random((2, 50))
    for encoding in (cn.Permutohedral(2, **LEVELS), cn.Fourier(4, 1.0, trained=True, in_features=2)):
        field = allocated(ns, backend, encoding, cn.Linear(-1, 1, bias=False), 2).pack()
        results = []
        for mode in ("symbolic", "evaluated"):
            p = opaque(ns, x)
            field["encoding.data"] = dr.detach(field["encoding.data"])
            dr.enable_grad(field["encoding.data"], p)

            def body(i, total, field=field, p=p):
                value, g = field.value_and_grad(p + i * 0.01)
                return i + 1, total + value[0] * g[0] + dr.square(g[1])

            total = dr.while_loop(
                (ns.UInt32(0), dr.zeros(ns.Float, 50)), lambda i, total: i < 2, body, mode=mode, max_iterations=2
            )[1]
            dr.backward(total)
            results.append(
                [v.numpy().copy() for v in evaluated(dr.detach(total), *dr.grad([field["encoding.data"], p]))]
            )
        assert np.any(results[0][1])
        for a, b in zip(*results, strict=True):
            close(a, b, 1e-2 if backend == "cuda" else 1e-4)


# ---- Activations with parameters ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "slope"),
    [
        (lambda: cn.Softplus(10.0), lambda x: ref.ACTIVATIONS["softplus"][1](10 * x)),
        (lambda: cn.Softplus(0.5), lambda x: ref.ACTIVATIONS["softplus"][1](x / 2)),
        (lambda: cn.Squareplus(10.0), lambda x: ref.ACTIVATIONS["squareplus"][1](10 * x)),
        (lambda: cn.Squareplus(0.5), lambda x: ref.ACTIVATIONS["squareplus"][1](x / 2)),
        (lambda: cn.GELU(), ref.ACTIVATIONS["gelu"][1]),
        (lambda: cn.Sine(3.0), lambda x: 3 * np.cos(3 * x)),
        (lambda: cn.Identity(-2.0, 0.5), lambda x: -2 + 0 * x),
    ],
)
def test_second_derivatives(ns, backend, layer, slope):
    """Formulas of first and second derivatives, near and far from 0."""
    at = np.concatenate([np.linspace(-4, 4, 60) + 0.01, [-300.0, -30.0, 30.0, 300.0]])
    leaf = ns.Float16 if backend == "cuda" else ns.Float
    x, one = drnn.CoopVec([leaf(ns.Float(at))]), drnn.CoopVec([leaf(1)])
    op = layer().op()
    y = op.value(x)
    exact = np.asarray(next(iter(x)).numpy(), np.float64)
    tolerance = 2e-2 if backend == "cuda" else 2e-5
    close(next(iter(op.slope(one, Record(op, [x], [y]), None))).numpy() + 0 * at, slope(exact), tolerance)
    h = 1e-5
    expected = (slope(exact + h) - slope(exact - h)) / (2 * h)
    if FUNCTIONS[op.layer.function].piecewise_linear:
        assert not np.any(np.abs(expected) > 1e-6)
        return
    # the second takes differences of numbers that half precision has rounded
    close(next(iter(op.curvature(x, y))).numpy(), expected, 2 * tolerance)
    assert FUNCTIONS[op.layer.function].curvature is not None


# ---- Containers --------------------------------------------------------------------------------------------


def linear(w, b):
    return lambda x: ref.linear(w, x, b)


def dropped(p, stream, dtype):
    def run(x):
        keep = ref.keep_mask(len(x), p, 5, np.arange(x.shape[1]), 2, stream)
        return np.where(keep, x * float(dtype(ref.scale(p))), 0)

    return run


def softplus(x):
    return ref.ACTIVATIONS["softplus"][0](x)


def residual(dtype):
    """A network and its twin as a function of weights and biases."""
    net = cn.Sequential(
        cn.Linear(2, 3), cn.Softplus(),
        cn.Residual(cn.Sequential(cn.Linear(3, 2), cn.GELU(), cn.Dropout(0.25), cn.Linear(2, 3))),
        cn.Identity(2.0, 0.1), cn.Sine(), cn.Linear(3, 1))  # fmt: skip

    def twin(w, b):
        body = ref.sequential(
            linear(w[1], b[1]), ref.ACTIVATIONS["gelu"][0], dropped(0.25, 0, dtype), linear(w[2], b[2]))  # fmt: skip
        return ref.sequential(linear(w[0], b[0]), softplus, ref.residual(body),
                              lambda x: np.sin(2 * x + 0.1), linear(w[3], b[3]))  # fmt: skip

    return net, twin


def first(dtype):
    """A residual network from its first stage on: nothing below wants the gradient of the input."""
    net = cn.Sequential(cn.Residual(cn.Sequential(cn.Linear(2, 4), cn.Tanh(), cn.Linear(4, 2))), cn.Linear(2, 1))
    return net, lambda w, b: ref.sequential(
        ref.residual(ref.sequential(linear(w[0], b[0]), np.tanh, linear(w[1], b[1]))), linear(w[2], b[2])
    )


def skip(dtype):
    inner = cn.Skip(cn.Sequential(cn.Linear(4, 3), cn.Squareplus()))
    net = cn.Sequential(cn.Tanh(), cn.Skip(cn.Linear(2, 2)), inner, cn.Linear(7, 1))

    def twin(w, b):
        square = ref.ACTIVATIONS["squareplus"][0]
        return ref.sequential(
            np.tanh, ref.skip(linear(w[0], b[0])), ref.skip(ref.sequential(linear(w[1], b[1]), square)),
            linear(w[2], b[2]))  # fmt: skip

    return net, twin


def heads(dtype):
    body = cn.Heads(cn.Sequential(cn.Linear(2, 3), cn.Softplus()),
                    {"a": cn.Sequential(cn.Linear(3, 2), cn.Tanh()), "b": cn.Residual(cn.Linear(3, 3))})  # fmt: skip
    net = cn.Sequential(body, cn.SiLU(), cn.Linear(5, 1))

    def twin(w, b):
        branches = ref.heads(
            ref.sequential(linear(w[0], b[0]), softplus), ref.sequential(linear(w[1], b[1]), np.tanh),
            ref.residual(linear(w[2], b[2])))  # fmt: skip
        return ref.sequential(branches, ref.ACTIVATIONS["silu"][0], linear(w[3], b[3]))

    return net, twin


def unfused(dtype):
    """An encoding in one branch, which the engine does not know."""
    net = cn.Sequential(cn.Skip(cn.Frequency(1)), cn.Linear(6, 4), cn.Tanh(), cn.Linear(4, 1))
    return net, lambda w, b: ref.sequential(
        ref.skip(lambda x: ref.frequency(x, 1)), linear(w[0], b[0]), np.tanh, linear(w[1], b[1])
    )


def noisy(dtype):
    """Samples dropped whole, and noise: tangents see the factors of the values."""
    body = cn.Sequential(
        cn.Linear(3, 3), cn.Softplus(), cn.GaussianDropout(0.2, 3), cn.Linear(3, 3), cn.DropPath(0.3, 16, 7)
    )
    net = cn.Sequential(cn.Linear(2, 3), cn.Residual(body), cn.Tanh(), cn.Linear(3, 1))

    def twin(w, b):
        def path(x):
            return x * ref.drop_path(np.ones_like(x), 0.3, 5, None, 2, 7)

        body = ref.sequential(linear(w[1], b[1]), softplus, lambda x: ref.gaussian_dropout(x, 0.2, 5, None, 2, 3),
                              linear(w[2], b[2]), path)  # fmt: skip
        return ref.sequential(linear(w[0], b[0]), ref.residual(body), np.tanh, linear(w[3], b[3]))

    return net, twin


NETS = {f.__name__: f for f in (residual, first, skip, heads, unfused, noisy)}


def container(ns, backend, name):
    """A field, its key, and its twin as ``f(weights, biases)``."""
    dtype = np.float16 if backend == "cuda" else np.float32
    net, twin = NETS[name](dtype)
    field = allocated(ns, backend, None, net, 2)
    for i, layer in enumerate(m for m in children(field.network) if isinstance(m, drnn.Linear)):
        layer.bias = type(layer.bias)(np.linspace(-0.3, 0.4, layer.config[1]) * (i + 1))
    weights, biases = matrices(field.network)
    return field.pack(), cn.Key(5, step=2), twin, weights, biases


@pytest.mark.parametrize("name, path", [
    *((name, "auto") for name in NETS), ("noisy", "store"),
    *(("residual", path) for path in ("spill", "banks")), *(("heads", path) for path in ("store", "builtin")),
])  # fmt: skip
def test_containers(ns, backend, name, path):
    """Gradients with respect to the input, and the gradient of a loss on those, by all paths."""
    if backend == "cuda" and (path != "auto" or name not in ("residual", "heads")):
        pytest.skip("slow to compile")
    field, key, twin, weights, biases = container(ns, backend, name)
    rng = np.random.default_rng(0)
    x = rng.random((2, SAMPLES)).astype(np.float32).astype(np.float64)
    dy = rng.normal(size=(2, SAMPLES)) / SAMPLES
    p = opaque(ns, x)
    value, g = evaluated(*field.value_and_grad(p, key))
    tolerance = 4e-2 if backend == "cuda" else 5e-5
    close(value.numpy(), twin(weights, biases)(x), tolerance)
    close(g.numpy(), jacobian(twin(weights, biases), x)[0], tolerance)

    def terms(weights, x, biases=biases):
        f = twin(weights, biases)
        return losses(f(x), jacobian(f, x), dy)

    dr.enable_grad(p, field["network.weights"])
    with cn.gradient_path(path):
        dr.backward(losses_of(ns, field, p, dy, key))
    dr.eval(dr.grad([p, field["network.weights"]]))
    for i, got in enumerate(gradients(field)[0]):
        places = range(0, got.size, 3)
        expected = differences(
            lambda w, i=i: terms([w if k == i else v for k, v in enumerate(weights)], x).sum(), weights[i], places
        )
        close(got.flat[list(places)], expected, 8e-2 if backend == "cuda" else 5e-4)
    for i, got in enumerate(gradients(field)[1]):
        places = range(0, got.size, 2)
        expected = differences(
            lambda b, i=i: terms(weights, x, [b if k == i else v for k, v in enumerate(biases)]).sum(),
            biases[i],
            places,
        )
        close(got[list(places)], expected, 8e-2 if backend == "cuda" else 5e-4)
    h = 1e-4
    single = np.stack([(terms(weights, x + e) - terms(weights, x - e)) / (2 * h)
                       for e in (h * np.eye(2)[:, i : i + 1] for i in range(2))])  # fmt: skip
    close(dr.grad(p).numpy(), single, 8e-2 if backend == "cuda" else 1e-3)


@pytest.mark.parametrize("name", ["first", "heads"])
def test_weights_alone(ns, backend, name):
    """Nobody wants the gradient of the input: the weights' is the same."""
    if backend == "cuda":
        pytest.skip("slow to compile")
    field, key, *_ = container(ns, backend, name)
    dy = np.random.default_rng(0).normal(size=(2, SAMPLES))
    results = []
    for wanted in (True, False):
        p = opaque(ns, np.random.default_rng(1).random((2, SAMPLES)))
        dr.disable_grad(field["network.weights"])
        dr.enable_grad(field["network.weights"])
        if wanted:
            dr.enable_grad(p)
        dr.backward(losses_of(ns, field, p, dy, key))
        results.append(field["network.weights"].grad.numpy().copy())
    assert np.any(results[0])
    close(*results, 1e-6)


@pytest.mark.parametrize("path", ["auto", "banks"])
def test_containers_in_loops(ns, backend, path):
    field, _, *_ = container(ns, backend, "residual")
    results = []
    for mode in ("symbolic", "evaluated"):
        p = opaque(ns, np.random.default_rng(1).random((2, 60)))
        dr.disable_grad(field["network.weights"])
        dr.enable_grad(field["network.weights"], p)

        def body(i, total, p=p):
            value, g = field.value_and_grad(p, cn.Key(5, step=i))
            return i + 1, total + value[0] * g[0] + dr.square(g[1])

        with cn.gradient_path(path):
            total = dr.while_loop(
                (ns.UInt32(0), dr.zeros(ns.Float, 60)), lambda i, total: i < 2, body, mode=mode, max_iterations=2
            )[1]
            dr.backward(total)
        found = evaluated(dr.detach(total), *dr.grad([field["network.weights"], p]))
        results.append([v.numpy().copy() for v in found])
    for a, b in zip(*results, strict=True):
        close(a, b, 5e-2 if backend == "cuda" else 2e-5)


def test_forward_mode_of_containers(ns, backend):
    """dr.forward through a gradient, with weights and coordinates moving."""
    if backend == "cuda":
        pytest.skip("the same program as on LLVM")
    for name in ("residual", "skip", "heads"):
        field, key, twin, weights, biases = container(ns, backend, name)
        rng = np.random.default_rng(2)
        x, dx = rng.random((2, 40)).astype(np.float32).astype(np.float64), rng.normal(size=(2, 40))
        p, buffer = opaque(ns, x), field["network.weights"]
        dr.enable_grad(p, buffer)
        _, g = field.value_and_grad(p, key)
        dr.set_grad(buffer, dr.ones(type(buffer), dr.width(buffer)))
        dr.set_grad(p, ns.Array2f(dx))
        dr.forward_to(g)
        h = 1e-4
        sides = [jacobian(twin([w + s for w in weights], [b + s for b in biases]), x + s * dx)[0] for s in (h, -h)]
        close(dr.grad(g).numpy(), (sides[0] - sides[1]) / (2 * h), 1e-3)


def test_slopes_of_triangle_waves(ns):
    """4 up, 4 down, and 0 at the tip between."""
    x = [ns.Float([0.1, 0.25, 0.4, 0.0, 0.9])]
    y, (dy,) = cn.Triangular(1, in_features=1).jvp(x, [[ns.Float(2)]])
    np.testing.assert_allclose([v.numpy() for v in y], [[0.4, 1, 0.4, 0, -0.4], [0.6, 0, -0.6, 1, 0.6]], atol=1e-6)
    np.testing.assert_array_equal([v.numpy() for v in dy], [[8, 0, -8, 8, 8], [-8, -8, -8, 0, 8]])
