"""Fields: coordinates in, outputs in the same kind of container, one mapping of parameters."""

from __future__ import annotations

import warnings

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from drjit.opt import Adam
from support.arrays import close, contain, coordinates, evaluated, precisions, values

import coopnet as cn
from coopnet import backend as backends
from coopnet import reference as ref
from coopnet.nn.tree import children

GRID = dict(n_levels=3, hashmap_size=2**8, base_resolution=4, per_level_scale=1.9)
CONTAINERS = ["nested", "fixed", "list", "tuple", "coopvec", "tensor"]


def make(encoding="sinusoidal", dropout=0.0, output="float32", in_features=2):
    encodings = {
        "sinusoidal": lambda: cn.Sinusoidal(3, in_features=in_features),
        "triangular": lambda: cn.Triangular(3, in_features=in_features),
        "grid": lambda: cn.HashGrid(in_features, **GRID, init_scale=1.0),
        "identity": cn.Identity,
        "drjit": lambda: drnn.SinEncode(3),
        None: lambda: None,
    }
    n_in = {"identity": in_features, None: in_features, "drjit": -1}.get(encoding, -1)
    return cn.NeuralField(encodings[encoding](), cn.MLP(n_in, 3, 16, 2, "tanh", dropout=dropout), output)


def reference_of(field, encoding, x, drop=None, dtype=np.float32):
    """Outputs of an unpacked field in double precision."""
    weights = [m.weights.numpy() for m in children(field.network) if isinstance(m, drnn.Linear)]
    if encoding == "grid":
        grid = field.encoding.grid.value
        scales = [level.scale for level in grid.levels]
        x = ref.hash_grid(x, grid.data.numpy(), **GRID, level_scales=scales)
    elif encoding in ("sinusoidal", "triangular"):
        x = getattr(ref, encoding)(x, 3)
    return ref.mlp(weights, x, "tanh", dropout=drop, dtype=dtype)


def types(ns, precision):
    return (ns.TensorXf16, np.float16, 2e-2) if precision == "half" else (ns.TensorXf, np.float32, 5e-5)


def default_precision(backend):
    return "half" if backend == "cuda" else "single"


# ---- Values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONTAINERS)
def test_containers(ns, backend, kind):
    field = make(dropout=0.3).build(backend, seed=4)
    dtype, np_dtype, tolerance = types(ns, field.precision)
    x, parts = coordinates(ns)
    plain = make(dropout=0.3).allocate(dtype, field.precision, 4)
    for key, drop in [(None, None), (cn.Key(3, step=1), ref.MLPDropout(0.3, 16, 3, None, 1))]:
        y = field(contain(ns, kind, parts), key)
        assert type(y) is {"coopvec": drnn.CoopVec, "tensor": ns.TensorXf}.get(kind, ns.ArrayXf)
        assert kind != "coopvec" or y.type is ns.Float
        close(values(y), reference_of(plain, "sinusoidal", x, drop, np_dtype), tolerance)


@pytest.mark.parametrize("encoding", ["sinusoidal", "triangular", "grid", "identity", None])
def test_encodings_and_precisions(ns, backend, encoding):
    x, parts = coordinates(ns)
    for precision in precisions(backend):
        field = make(encoding).build(backend, precision, seed=5)
        dtype, _, tolerance = types(ns, precision)
        plain = make(encoding).allocate(dtype, precision, 5)
        assert field.precision == precision and field.in_features == 2
        close(values(field(parts)), reference_of(plain, encoding, x), tolerance)


def test_encodings_of_drjit_inside_the_network(ns, backend):
    network = cn.Sequential(drnn.Cast(ns.Float32), drnn.SinEncode(2), drnn.Cast(ns.Float16), drnn.Linear(-1, 2))
    if backend == "llvm":
        network = cn.Sequential(drnn.SinEncode(2), drnn.Linear(-1, 2))
    field = cn.NeuralField(cn.Sinusoidal(1, in_features=2), network).build(backend)
    x, parts = coordinates(ns)
    (layer,) = [m for m in children(make_plain(ns, field, network).network) if isinstance(m, drnn.Linear)]
    hidden = ref.sinusoidal(ref.sinusoidal(x, 1), 2)
    expected = ref.linear(layer.weights.numpy(), hidden, layer.bias.numpy())
    close(values(field(parts)), expected, 2e-2 if backend == "cuda" else 5e-5)


def make_plain(ns, field, network):
    dtype, _, _ = types(ns, field.precision)
    return cn.NeuralField(cn.Sinusoidal(1, in_features=2), network).allocate(dtype, field.precision)


def test_output_type(ns, backend):
    _, parts = coordinates(ns)
    half = make(output="float16").build(backend, "half", seed=1)
    single = make().build(backend, "half", seed=1)
    y = half(parts)
    assert type(y) is ns.ArrayXf16 and half(drnn.CoopVec(parts)).type is ns.Float16
    np.testing.assert_array_equal(values(y), values(single(parts)))


def test_build(ns, backend):
    original = make("grid")
    field = original.build(backend)
    assert original.precision is None and field.precision == default_precision(backend)
    a, b, c = (make("grid").build(backend, seed=s) for s in (7, 7, 2**64 - 1))
    for name in a:
        np.testing.assert_array_equal(a[name].numpy(), b[name].numpy())
        assert not np.array_equal(a[name].numpy(), c[name].numpy())
    _, parts = coordinates(ns)
    np.testing.assert_array_equal(values(a(parts)), values(b(parts)))
    assert field.build(backend, seed=1)(parts) is not None  # a built field can be built again


def test_width_of_the_coordinates_is_inferred(backend):
    fields = {
        2: cn.NeuralField(cn.Sinusoidal(3), cn.MLP(12, 1, 8, 1)),
        3: cn.NeuralField(None, cn.MLP(3, 1, 8, 1)),
        5: cn.NeuralField(None, cn.Sequential(cn.Sequential(cn.Linear(5, 1)))),
        4: cn.NeuralField(None, cn.Sequential(cn.Triangular(2, in_features=4), cn.Linear(-1, 1))),
        1: cn.NeuralField(cn.Identity(), cn.MLP(1, 1, 8, 1)),
        6: cn.NeuralField(drnn.SinEncode(2), cn.MLP(-1, 1, 8, 1), in_features=6),
    }
    for size, field in fields.items():
        assert field.build(backend).in_features == size


# ---- Parameters and gradients ------------------------------------------------------------------------------


def test_one_optimizer_trains_encoding_and_network(ns, backend):
    field = make("grid").build(backend, seed=2)
    assert set(field) == {"encoding.data", "network.weights"}
    opt = Adam(lr=1e-2, params=field)
    before = {k: field[k].numpy() for k in field}
    _, parts = coordinates(ns, 400, seed=1)
    target = dr.sin(6 * parts[0]) * parts[1]
    losses = []
    for _ in range(25):
        field.update(opt)
        y = field(parts)
        loss = dr.mean(dr.square(y[0] - target) + dr.square(y[1] - parts[0]) + dr.square(y[2] - parts[1]))
        dr.backward(loss)
        losses.append(float(dr.detach(loss)[0]))
        opt.step()
    field.update(opt)
    assert losses[-1] < 0.3 * losses[0]
    assert all(not np.array_equal(before[k], field[k].numpy()) for k in field)


def test_casts_carry_gradients(ns, backend):
    """Gradients of coordinates, encoding and network, through the conversions, by differences."""
    for precision in precisions(backend):
        field = make("sinusoidal").build(backend, precision, seed=3)
        dtype, _, tolerance = types(ns, precision)
        plain = make("sinusoidal").allocate(dtype, precision, 3)
        x, parts = coordinates(ns, 60)
        dr.enable_grad(parts, field["network.weights"])
        y = field(parts)
        dy = np.random.default_rng(1).normal(size=(3, 60)).astype(np.float32)
        dr.backward(sum(v * ns.Float(d) for v, d in zip(y, dy, strict=True)))
        h = 1e-5
        for d in range(2):
            e = np.zeros((2, 1))
            e[d] = h
            moved = [reference_of(plain, "sinusoidal", x.astype(np.float64) + s * e) for s in (1, -1)]
            expected = (dy * (moved[0] - moved[1])).sum(axis=0) / (2 * h)
            close(parts[d].grad.numpy(), expected, 10 * tolerance)
        assert np.any(field["network.weights"].grad.numpy())


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("mode", ["symbolic", "evaluated"])
def test_coordinates_keep_their_gradient_in_loops(ns, backend, mode, captured):
    """Whether they are part of the loop's state or captured by its body."""
    field = make(None).build(backend, seed=3)
    _, parts = coordinates(ns, 30)
    weight = ns.Float(np.random.default_rng(1).random(30).astype(np.float32))

    def total(y):
        return weight * y[0] - weight * y[2] + y[1] * weight * weight

    dr.enable_grad(parts)
    dr.backward(3 * total(field(parts)))
    expected = [g.numpy() for g in evaluated(dr.grad(parts))]
    dr.clear_grad(parts)
    if captured:
        _, y = dr.while_loop(
            (ns.UInt32(0), ns.ArrayXf(np.zeros((3, 30), np.float32))),
            lambda i, y: i < 3,
            lambda i, y: (i + 1, y + field(parts)),
            mode=mode,
            max_iterations=-1,
        )
    else:
        _, y, _ = dr.while_loop(
            (ns.UInt32(0), ns.ArrayXf(np.zeros((3, 30), np.float32)), parts),
            lambda i, y, p: i < 3,
            lambda i, y, p: (i + 1, y + field(p), p),
            mode=mode,
            max_iterations=-1,
        )
    dr.backward(total(y))
    for p, e in zip(parts, expected, strict=True):
        close(p.grad.numpy(), e, 2e-2 if backend == "cuda" else 1e-5)


def test_many_masks_in_one_kernel(ns, backend):
    """Monte Carlo dropout: a symbolic loop over steps agrees with separate calls."""
    field = make(dropout=0.3).build(backend)
    _, parts = coordinates(ns)
    _, mean = dr.while_loop(
        (ns.UInt32(0), ns.ArrayXf(np.zeros((3, 200), np.float32))),
        lambda i, total: i < 4,
        lambda i, total: (i + 1, total + field(parts, cn.Key(9, step=i))),
        mode="symbolic",
    )
    expected = sum(values(field(parts, cn.Key(9, step=i))) for i in range(4))
    close(values(mean), expected, 1e-2 if backend == "cuda" else 1e-5)


# ---- Errors ------------------------------------------------------------------------------------------------


def test_errors_of_construction_and_build(backend):
    mlp = cn.MLP(2, 3, 8, 1)
    for run, error, message in [
        (lambda: cn.NeuralField(3, mlp), TypeError, "NeuralField: encoding is a int; a Module"),
        (lambda: cn.NeuralField(None, "mlp"), TypeError, "NeuralField: network is a str; a Module"),
        (lambda: cn.NeuralField(None, mlp, "float64"), ValueError, "output is 'float64'; accepted are 'float32'"),
        (lambda: cn.NeuralField(None, mlp).build(backend, "double"), ValueError, "precision is 'double'; accepted are"),
        (lambda: cn.NeuralField(None, mlp).build("metal"), ValueError, "'metal' is not a backend"),
        (lambda: cn.NeuralField(None, mlp).build(3), TypeError, "backend=3 must be"),
        (lambda: cn.NeuralField(None, mlp).build(backend, seed=-1), ValueError, r"seed is -1; an int in \[0, 2\^64\)"),
        (lambda: cn.NeuralField(None, mlp).build(backend, seed=0.5), ValueError, "build: seed is 0.5"),
        (lambda: cn.NeuralField(cn.Sinusoidal(2)).build(backend), ValueError, "build: the field has no network"),
        (
            lambda: cn.NeuralField(cn.Sinusoidal(2), cn.MLP(out_features=1)).build(backend),
            ValueError,
            r"build: the number of coordinates is unknown; .*in_features",
        ),
        (
            lambda: cn.NeuralField(cn.Sinusoidal(2, in_features=2), cn.MLP(9, 1)).build(backend),
            ValueError,
            "in_features is 9, but the layer before it .* has 8 features",
        ),
        (
            lambda: cn.NeuralField(cn.Sinusoidal(2), cn.MLP(9, 1)).build(backend),
            ValueError,
            "build: no number of coordinates makes Sinusoidal.* give the 9 features",
        ),
        (
            lambda: cn.NeuralField(drnn.SinEncode(2), cn.MLP(8, 1)).build(backend),
            ValueError,
            "build: the number of coordinates is unknown",
        ),
        (lambda: cn.NeuralField(None, mlp, in_features=0), ValueError, "NeuralField: in_features is 0; a positive int"),
        (lambda: cn.NeuralField(None, mlp, in_features=3).build(backend), ValueError, "in_features is 2, but .* has 3"),
    ]:
        with pytest.raises(error, match=message):
            run()


def test_single_precision_on_cuda_is_an_error(backend):
    if backend != "cuda":
        pytest.skip("needs CUDA")
    with pytest.raises(ValueError, match=r"build: precision 'single' is not possible on CUDA"):
        make().build("cuda", "single")


def test_missing_backend():
    missing = [name for name in ("llvm", "cuda") if name not in backends.available()]
    if not missing:
        pytest.skip("every backend is here")
    with pytest.raises(cn.BackendError, match="Cure"):
        make().build(missing[0])


def test_errors_of_calls(ns, backend):
    field = make().build(backend)
    x, y = ns.Float(1), ns.Float(2)
    for run, error, message in [
        (lambda: make()([x, y]), ValueError, r"NeuralField: the field is not built yet; call field = field.build\(\)"),
        (lambda: field([x]), ValueError, "NeuralField: p has 1 coordinates, but the field takes 2"),
        (lambda: field(ns.Array3f(1)), ValueError, "NeuralField: p has 3 coordinates, but the field takes 2"),
        (lambda: field(ns.Float(1)), ValueError, "NeuralField: p has 1 coordinates"),
        (lambda: field(drnn.CoopVec(x, y, x)), ValueError, "NeuralField: p has 3 coordinates"),
        (lambda: field(dr.ones(ns.TensorXf, (5, 2))), ValueError, "p has 5 coordinates.*the shape of a tensor is"),
        (lambda: field(dr.ones(ns.TensorXf, 5)), ValueError, r"NeuralField: got a tensor of shape \(5,\)"),
        (
            lambda: field(np.ones((2, 3))),
            TypeError,
            "NeuralField: got a NumPy array; accepted are .*Float.row. for row in x",
        ),
        (lambda: field([1.0, 2.0]), TypeError, "NeuralField: entry 0 of the list is a float"),
        (lambda: field([]), ValueError, "NeuralField: got an empty list"),
        (lambda: field(dr.zeros(ns.Array2f, 0)), ValueError, "NeuralField: got an empty array"),
        (lambda: field([x, dr.zeros(ns.Float, 0)]), ValueError, "NeuralField: entry 1 of the list is empty"),
        (lambda: field([ns.Int(1), ns.Int(2)]), TypeError, "NeuralField: got values of type .*Int; a floating"),
        (lambda: field([x, ns.Float16(1)]), TypeError, "NeuralField: entry 1 of the list is a .*Float16"),
        (
            lambda: field([ns.Float([1, 2, 3]), ns.Float([1, 2])]),
            ValueError,
            "NeuralField: got arrays of different sizes",
        ),
        (lambda: field(ns.Matrix2f(1)), TypeError, "NeuralField: got a Matrix2f"),
        (lambda: field(None), TypeError, "NeuralField: got builtins.NoneType"),
        (lambda: field([x, y], 5), TypeError, "NeuralField: key is a int; a coopnet.Key or None"),
        (lambda: field([x, y], "key"), TypeError, "NeuralField: key is a str"),
    ]:
        with pytest.raises(error, match=message):
            run()


@pytest.mark.skipif(len(backends.available()) < 2, reason="needs two backends")
@pytest.mark.parametrize("encoding", ["sinusoidal", "grid"])
def test_mixed_backends(encoding):
    for here, there in (("llvm", "cuda"), ("cuda", "llvm")):
        field, ns = make(encoding).build(here, "half"), backends.namespace(there)
        with pytest.raises(TypeError, match=r"the input lives on the .* backend"):
            field([ns.Float(1), ns.Float(2)])
        own = backends.namespace(here)
        with pytest.raises(TypeError, match=r"Key: holds a .*but the input lives on"):
            make(encoding, 0.5).build(here, "half")([own.Float(1), own.Float(2)], cn.Key(ns.UInt64(1)))


def test_repr(backend):
    text = repr(make("grid", dropout=0.25).build(backend))
    lines = text.splitlines()
    assert lines[0] == "NeuralField(" and lines[-1] == ")"
    assert "encoding=HashGrid(in_features=2, n_levels=3" in lines[1]
    assert "  network=Sequential(" in text and "Dropout(p=0.25, bits=16, stream=1)" in text
    assert f"precision='{default_precision(backend)}'" in lines[-2]
    assert "MLP(" in repr(make())


@pytest.mark.parametrize("seed", [-1, 2**64, 2**65 - 1, 1.0, True, None, "1"])
def test_seeds_are_64_bits(backend, seed):
    with pytest.raises(ValueError, match=r"NeuralField\.build: seed is .*an int in \[0, 2\^64\) is needed"):
        make().build(backend, seed=seed)


def test_precision_of_the_backend_that_is_found(monkeypatch):
    """Half on CUDA, whatever it was asked for as."""
    from coopnet import field as room

    llvm = pytest.importorskip("drjit.llvm.ad")
    monkeypatch.setattr(room, "namespace", lambda backend: llvm)
    for found, precision in (("cuda", "half"), ("llvm", "single")):
        monkeypatch.setattr(room, "require", lambda backend, found=found: found)
        tensor = llvm.TensorXf16 if precision == "half" else llvm.TensorXf
        assert room.storage("auto", "auto", "here") == (tensor, precision)
        assert room.storage("auto", "half", "here") == (llvm.TensorXf16, "half")
    monkeypatch.setattr(room, "require", lambda backend: "cuda")
    with pytest.raises(ValueError, match="here: precision 'single' is not possible on CUDA"):
        room.storage("auto", "single", "here")


def test_coordinates_in_half_precision(ns, backend):
    """They are widened before an encoding sees them."""
    field = cn.NeuralField(cn.Sinusoidal(6, in_features=1), cn.Linear(-1, 1)).build(backend)
    p = ns.Float16(np.linspace(0, 1, 33).astype(np.float16))
    half, single = field([p]), field([ns.Float(p)])
    dr.eval(half, single)
    np.testing.assert_allclose(half.numpy(), single.numpy(), atol=1e-6 if backend == "llvm" else 1e-3)


def test_building_a_trained_field_warns(backend):
    """A copy of it is something else."""
    field = make().build(backend, seed=3)
    for again in (field, cn.NeuralField(field.encoding, field.network)):
        with pytest.warns(RuntimeWarning, match="has parameters already; this one gets new ones. For a copy"):
            again.build(backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        field.build(backend, seed=4)  # asks for others
        make().build(backend)


def test_where_a_field_lives(backend, ns):
    field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1))
    built = field.build(backend)
    assert built.backend == backend and built.float32 is ns.Float
    for name in ("backend", "float32"):
        with pytest.raises(ValueError, match=rf"^NeuralField\.{name}: the field is not built yet"):
            getattr(field, name)
