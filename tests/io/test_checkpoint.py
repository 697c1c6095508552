"""Checkpoints: what is written comes back to the bit, and no file, however broken, does anything but fail."""

import json
import os
import pickle
import sys

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from support.properties import given
from support.properties import st as hs

import coopnet as cn
from coopnet import io
from coopnet.io import checkpoint
from coopnet.nn.parameters import converted

st = pytest.importorskip("safetensors.numpy")

PRECISIONS = {"llvm": ("single", "half"), "cuda": ("half",)}


def build(field, backend, precision="auto", seed=3):
    """A built field whose parameters are large enough that every one of them shows."""
    field = field.build(backend, precision, seed=seed)
    rng = np.random.default_rng(seed)
    for key, value in field.items():
        shape = tuple(value.shape)
        field[key] = type(value)(np.asarray(rng.uniform(-0.6, 0.6, shape), value.numpy().dtype))
    return field


def points(ns, n=300):
    rng = np.random.default_rng(1)
    return ns.Array2f(rng.random((2, n)).astype(np.float32))


def evaluate(field, ns, key=None):
    return field(points(ns), key).numpy()


def small(**options):
    return cn.NeuralField(cn.Triangular(2, in_features=2), cn.MLP(out_features=3, width=8, depth=1, **options))


def rewrite(path, change=None, tensors=None, header=None):
    """Write a checkpoint again with other contents: ``change`` gets the architecture, a dict."""
    import safetensors

    with safetensors.safe_open(path, framework="np") as file:
        meta = dict(file.metadata())
        data = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    architecture = json.loads(meta["coopnet"])
    if change:
        change(architecture)
    meta["coopnet"] = json.dumps(architecture)
    st.save_file(data | (tensors or {}), path, metadata=meta | (header or {}))


@pytest.fixture
def file(tmp_path, backend):
    """A small checkpoint."""
    path = tmp_path / "field.safetensors"
    io.save(path, build(small(dropout=0.25, bias=True), backend), tensors={"moment": np.arange(5)})
    return path


FIELDS = {
    "sinusoidal": lambda: cn.NeuralField(
        cn.Sinusoidal(3, 0.1, in_features=2), cn.MLP(out_features=3, width=16, dropout=0.3)
    ),
    "triangular": lambda: cn.NeuralField(cn.Triangular(4, in_features=2), cn.MLP(out_features=1, width=17, bias=True)),
    "hash grid": lambda: cn.NeuralField(
        cn.HashGrid(2, n_levels=4, hashmap_size=256), cn.MLP(out_features=3, width=16, bias=True, dropout=0.5)
    ),
    "grid in the network": lambda: cn.NeuralField(
        None, cn.Sequential(cn.Linear(2, 2), cn.HashGrid(n_levels=2, hashmap_size=64), cn.Linear(-1, 2))
    ),
    "identity": lambda: cn.NeuralField(cn.Identity(), cn.MLP(2, 3, depth=0, output_activation="sigmoid")),
    "no encoding": lambda: cn.NeuralField(None, cn.MLP(2, 1, width=1, depth=2, bias=True), output="float16"),
    "activations": lambda: cn.NeuralField(
        None,
        cn.Sequential(
            cn.Linear(2, 9, bias=False), cn.Sine(2.5), cn.Linear(-1, 9), cn.LeakyReLU(0.2), cn.Tanh(), cn.SiLU(),
            cn.Linear(-1, 4), cn.Softplus(), cn.Exp(), cn.Identity(), cn.ReLU(), cn.Sigmoid(),
        ),
    ),
    "nested": lambda: cn.NeuralField(
        cn.Sinusoidal(2, in_features=2),
        cn.Sequential(
            cn.Sequential(cn.Linear(-1, 12), cn.Sequential(cn.ReLU(), cn.Dropout(0.1, 8, stream=7))),
            cn.MLP(out_features=6, width=8, depth=1, dropout=0.5),
            cn.Dropout(0.2, 32),
            cn.Linear(),
            prefix="net",
        ),
    ),
    "drjit.nn": lambda: cn.NeuralField(
        cn.Triangular(2, in_features=2),
        cn.Sequential(
            drnn.Sequential(drnn.Linear(-1, 10), drnn.ReLU(), drnn.Linear(-1, 3, bias=False), drnn.Tanh(), prefix="a"),
            drnn.SinEncode(2, 0.25), cn.Linear(-1, 8), drnn.LeakyReLU(0.1), drnn.TriEncode(1), cn.Dropout(0.4),
            drnn.Sequential(drnn.Sequential(), drnn.Sequential(drnn.Linear(-1, 4), drnn.Exp()), drnn.Exp2()),
        ),
    ),
    "no parameters": lambda: cn.NeuralField(cn.Sinusoidal(1, in_features=2), cn.Sequential(cn.Tanh())),
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_round_trip(name, backend, ns, tmp_path):
    path = tmp_path / "f.safetensors"
    for precision in PRECISIONS[backend]:
        keys = (None, cn.Key(5, step=2))
        field = build(FIELDS[name](), backend, precision)
        expected = [evaluate(field, ns, key) for key in keys]
        io.save(path, field)
        again = io.load(path, backend, precision)
        assert again.precision == precision
        assert io.describe(again) == io.describe(field)
        assert list(again) == list(field)
        stored = st.load_file(path)
        io.save(path, again)
        assert st.load_file(path).keys() == stored.keys()
        for k, v in st.load_file(path).items():  # packed buffers have padding, which may differ
            np.testing.assert_array_equal(v, stored[k])
        for key, value in zip(keys, expected, strict=True):
            np.testing.assert_array_equal(evaluate(again, ns, key), value)
        np.testing.assert_array_equal(evaluate(field, ns), expected[0])  # saving changes nothing


def test_tensors_are_plain_matrices(backend, tmp_path):
    path = tmp_path / "f.safetensors"
    field = cn.NeuralField(
        cn.HashGrid(2, n_levels=2, hashmap_size=64), cn.Sequential(cn.Linear(-1, 3), cn.Linear(-1, 1))
    )
    unpacked = field.allocate(*cn.field.storage(backend, "half", "test"))
    expected = unpacked.network.layers[0].weights.numpy()
    io.save(path, field.build(backend, "half", seed=0))
    tensors = st.load_file(path)
    assert {k: (v.shape, v.dtype.name) for k, v in tensors.items()} == {
        "encoding.data": ((256,), "float32"),
        "network.layers.0.weights": ((3, 4), "float16"),
        "network.layers.0.bias": ((3,), "float16"),
        "network.layers.1.weights": ((1, 3), "float16"),
        "network.layers.1.bias": ((1,), "float16"),
    }
    np.testing.assert_array_equal(tensors["network.layers.0.weights"], expected)


def test_one_input(backend, ns, tmp_path):
    """A matrix of one column is one in the file, however a backend holds it."""
    path = tmp_path / "f.safetensors"
    layers = cn.Sequential(cn.Linear(2, 1), cn.Sine(), cn.Linear(1, 5), cn.Linear(5, 1))
    field = build(cn.NeuralField(None, layers), backend)
    io.save(path, field)
    assert st.load_file(path)["network.layers.2.weights"].shape == (5, 1)
    np.testing.assert_array_equal(evaluate(io.load(path, backend), ns), evaluate(field, ns))


def test_padding_of_a_backend():
    """Columns that were added are neither stored nor asked for."""
    from coopnet.nn.parameters import Parameter

    ns = cn.backend.namespace(cn.backend.available()[0])
    layer = cn.Linear(1, 3)
    layer.weights = ns.TensorXf(np.array([[1, 0], [2, 0], [3, 0]], np.float32))
    assert Parameter("w", layer, "weights").shape == (3, 1)
    np.testing.assert_array_equal(Parameter("w", layer, "weights").numpy("test"), [[1], [2], [3]])


def test_other_precision(backend, ns, tmp_path):
    path, back = tmp_path / "half.safetensors", tmp_path / "single.safetensors"
    half = build(FIELDS["hash grid"](), backend, "half")
    io.save(path, half)
    if backend == "cuda":
        with pytest.raises(ValueError, match=r"load: precision 'single' is not possible on CUDA"):
            io.load(path, backend, "single")
        return
    single = io.load(path, backend, "single")
    assert all(v.numpy().dtype == np.float32 for v in single.values())
    for k in half:
        np.testing.assert_array_equal(single[k].numpy(), half[k].numpy().astype(np.float32))
    np.testing.assert_allclose(evaluate(single, ns), evaluate(half, ns), atol=2e-2)
    io.save(back, single)
    again = io.load(back, backend, "half")  # exact: every value came from half precision
    np.testing.assert_array_equal(evaluate(again, ns), evaluate(half, ns))


def test_too_large_for_half(backend, file):
    weights = st.load_file(file)["network.layers.0.weights"].astype(np.float32)
    weights[0, 0] = 1e6
    rewrite(file, tensors={"network.layers.0.weights": weights})
    with pytest.raises(ValueError, match=r"network\.layers\.0\.weights reaches 1e\+06.*single"):
        io.load(file, backend, "half")


def test_other_backend(file):
    """A file means the same on every backend of this machine."""
    from coopnet import backend as backends

    results = [
        evaluate(io.load(file, name, "half"), backends.namespace(name), cn.Key(1)) for name in backends.available()
    ]
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], atol=2e-2)


def test_not_finite_weights_are_kept(backend, file):
    odd = np.full(8, np.nan, np.float32)
    odd[0] = -np.inf
    rewrite(file, tensors={"network.layers.0.bias": odd})
    io.save(file, io.load(file, backend, "half"))
    np.testing.assert_array_equal(st.load_file(file)["network.layers.0.bias"].astype(np.float32), odd)


def test_weights_with_gradients(backend, ns, tmp_path):
    path = tmp_path / "f.safetensors"
    field = build(FIELDS["hash grid"](), backend)
    expected = evaluate(field, ns)
    for value in field.values():
        dr.enable_grad(value)
    io.save(path, field)
    assert all(dr.grad_enabled(v) for v in field.values())
    again = io.load(path, backend)
    assert not any(dr.grad_enabled(v) for v in again.values())
    np.testing.assert_array_equal(evaluate(again, ns), expected)


def test_read(backend, tmp_path):
    path = tmp_path / "f.safetensors"
    field = build(small(), backend)
    matrix = np.arange(12, dtype=np.float64).reshape(3, 4).T  # not contiguous
    extra = {"m": matrix, "big": np.arange(3, dtype=">i4"), "scalar": np.float32(2), "flag": np.array([True])}
    metadata = {"steps": 12, "nested": {"a": [1, 2.5, None, "é"]}, "training": json.dumps({"x": float("nan")})}
    io.save(path, field, tensors=extra, metadata=metadata)
    architecture, found, tensors = io.read(path)
    assert architecture == io.describe(field)
    assert found == metadata
    assert {k for k in tensors if not k.startswith("train.")} == {
        "network.layers.0.weights",
        "network.layers.2.weights",
    }
    for name, value in extra.items():
        np.testing.assert_array_equal(tensors["train." + name], value)
        assert tensors["train." + name].shape == np.shape(value)
    assert list(io.load(path, backend)) == list(field)


# ---- architecture -------------------------------------------------------

_number = hs.floats(-100, 100)
_width = hs.one_of(hs.just(-1), hs.integers(1, 300))
_linear = [hs.builds(cls, _width, _width, hs.booleans()) for cls in (cn.Linear, drnn.Linear)]
_plain = [
    hs.builds(cls)
    for cls in (cn.ReLU, cn.Tanh, cn.Sigmoid, cn.Softplus, cn.SiLU, cn.Exp, cn.Identity, drnn.ReLU, drnn.Exp,
                drnn.Exp2, drnn.Tanh)
]  # fmt: skip
_layer = hs.one_of(
    *_linear,
    *_plain,
    hs.builds(cn.LeakyReLU, _number),
    hs.builds(drnn.LeakyReLU, _number),
    hs.builds(cn.Sine, _number),
    hs.builds(cn.Dropout, hs.floats(0, 0.9), hs.sampled_from([8, 16, 32]), hs.none() | hs.integers(0, 2**32 - 1)),
    hs.builds(cn.Dropout, hs.sampled_from([np.float32(0.1), np.float64(0.1)])),
    hs.builds(cn.Sinusoidal, hs.integers(1, 20), _number, _width),
    hs.builds(cn.Triangular, hs.integers(1, 20), _number, _width),
    hs.builds(drnn.SinEncode, hs.integers(1, 20), _number),
    hs.builds(drnn.TriEncode, hs.integers(1, 20), _number),
    hs.builds(cn.HashGrid, _width, hs.integers(1, 8), hs.sampled_from([1, 2, 4]), hs.sampled_from([64, 2**19])),
    hs.builds(cn.Embedding, hs.integers(1, 99), hs.integers(1, 99), check=hs.booleans(), prefix=hs.text(max_size=3)),
    hs.builds(cn.MLP, _width, _width, hs.integers(1, 64), hs.integers(0, 3), dropout=hs.sampled_from([0.0, 0.5])),
)
_stack = hs.recursive(
    _layer,
    lambda inner: hs.builds(
        lambda layers, cls, prefix: cls(*layers, prefix=prefix),
        hs.lists(inner, max_size=4),
        hs.sampled_from([cn.Sequential, drnn.Sequential]),
        hs.text(max_size=3),
    ),
    max_leaves=12,
)


@given(hs.none() | _layer, hs.none() | _stack, hs.sampled_from(["float32", "float16"]))
def test_architecture_round_trip(encoding, network, output):
    field = cn.NeuralField(encoding, network, output)
    description = io.describe(field)
    again = io.construct(json.loads(json.dumps(description, allow_nan=False)))
    assert io.describe(again) == description
    assert (again.encoding is None, again.network is None) == (encoding is None, network is None)


_json = hs.recursive(
    hs.none() | hs.booleans() | hs.integers() | hs.floats() | hs.text(max_size=5) | hs.just("coopnet.Linear"),
    lambda inner: hs.lists(inner, max_size=3) | hs.dictionaries(
        hs.sampled_from(["type", "layers", "prefix", "p", "bits", "stream", "in_features"]), inner, max_size=4
    ),
    max_leaves=8,
)  # fmt: skip


@given(_json, _json, _json, hs.data())
def test_random_json_is_an_error_or_a_field(network, value, top, data):
    """Never another exception, whatever the file says."""
    description = io.describe(FIELDS["nested"]())
    cases = [top, dict(description, network=network)]
    layers = description["network"]["layers"]
    spoiled = data.draw(hs.sampled_from([layers[0], layers[1], layers[2], layers[3], description]))
    spoiled[data.draw(hs.sampled_from(sorted(spoiled)))] = value
    for case in [*cases, description]:
        try:
            field = io.construct(case)
        except ValueError as error:
            assert str(error).startswith("construct: ") and len(str(error)) < 1000
        else:
            assert isinstance(field, cn.NeuralField)


def _set(*keys, value):
    def change(architecture):
        inner = architecture
        for k in keys[:-1]:
            inner = inner[k]
        inner[keys[-1]] = value

    return change


def _delete(*keys):
    def change(architecture):
        inner = architecture
        for k in keys[:-1]:
            inner = inner[k]
        del inner[keys[-1]]

    return change


_first = ("network", "layers", 0)
_drop = ("network", "layers", 2)
BAD_ARCHITECTURES = [
    (_set(*_first, "type", value="os.system"), r"network\.layers\.0 has the type 'os\.system'; accepted are coopnet"),
    (_set(*_first, "type", value="coopnet.NeuralField"), "has the type 'coopnet.NeuralField'"),
    (_set(*_first, "type", value="coopnet.MLP"), "has the type 'coopnet.MLP'"),
    (_set(*_first, "type", value=["coopnet.Linear"]), r"has the type \['coopnet.Linear'\]"),
    (_set(*_first, value={"type": "os.system", "command": "touch /tmp/x"}), "os.system"),
    (_set(*_first, value=None), r"network\.layers\.0 is None"),
    (_set(*_first, value="coopnet.ReLU"), r"network\.layers\.0 is 'coopnet.ReLU'"),
    (_set(*_first, "weights", value=3), "unknown 'weights'"),
    (_set(*_first, "self", value=3), "unknown 'self'"),
    (_delete(*_first, "bias"), r"network\.layers\.0 lacks bias"),
    (_delete(*_first, "type"), "has the type None"),
    (_set(*_first, "in_features", value="8"), r"in_features is '8'; accepted: int"),
    (_set(*_first, "in_features", value=True), "in_features is True; accepted: int"),
    (_set(*_first, "in_features", value=8.0), "in_features is 8.0; accepted: int"),
    (_set(*_first, "in_features", value=0), "in_features is 0"),
    (_set(*_first, "bias", value=1), "bias is 1; accepted: bool"),
    (_set(*_first, "bias", value=0), "bias is 0; accepted: bool"),
    (_set(*_first, "init", value=1), "init is 1; accepted: str"),
    (_set(*_first, "init", value=None), "init is None; accepted: str"),
    (_set(*_first, "gain", value="1"), "gain is '1'; accepted: float"),
    (_set(*_first, "gain", value=True), "gain is True; accepted: float"),
    (_set(*_first, "gain", value=None), "gain is None; accepted: float"),
    (_set(*_drop, "p", value="0.5"), "p is '0.5'; accepted: float"),
    (_set(*_first, "out_features", value=[8]), "out_features is a list"),
    (_set(*_first, "out_features", value=2**40), "path"),
    (_set(*_first, "out_features", value=9), "9"),
    (_set(*_drop, "p", value=1.5), "p is 1.5"),
    (_set(*_drop, "p", value=1e400), "Infinity is not JSON"),
    (_set(*_drop, "stream", value="0"), "stream is '0'"),
    (_set(*_drop, "stream", value=-1), "stream"),
    (_set(*_drop, "bits", value=13), "bits"),
    (_set("network", "layers", value={"0": 1}), "list 'layers'"),
    (_set("network", "layers", value=[]), "unknown network.layers.0.bias"),
    (_set("network", "prefix", value=None), "string 'prefix'"),
    (_set("network", value=None), "the field has no network"),
    (_set("network", value=7), "network is 7"),
    (_set("encoding", "octaves", value=0), "octaves is 0"),
    (_set("encoding", "octaves", value=3), "8"),
    (_set("output", value="float8"), "float8"),
    (_set("output", value=["float32"]), "output"),
    (_set("format", value="other"), "'format' must be 'coopnet.field'"),
    (_set("version", value=3), r"version 3, but this coopnet reads versions up to 2; install a newer one"),
    (_set("version", value="1"), "version is '1'"),
    (_delete("version"), "version is None"),
    (_set("extra", value=1), "unknown 'extra'"),
    (_delete("encoding"), "lacks encoding"),
]


@pytest.mark.parametrize("case", range(len(BAD_ARCHITECTURES)))
def test_bad_architecture(case, backend, file):
    change, message = BAD_ARCHITECTURES[case]
    rewrite(file, change)
    with pytest.raises(ValueError, match=str(file) if message == "path" else message) as caught:
        io.load(file, backend)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("name", ["format", "version", "output", "in_features", "network"])
def test_arrays_are_no_descriptions(ns, name):
    """Comparing them with a string raises, or says yes."""
    good = io.describe(cn.NeuralField(None, cn.MLP(2, 1)))
    for value in (np.zeros(3), np.array(good[name]), ns.Float(1, 2), ns.TensorXf([1], (1, 1)), [[]], {1: 2}):
        with pytest.raises(ValueError, match=r"^construct: no description|^construct: |^NeuralField: "):
            io.construct(good | {name: value})
        with pytest.raises(ValueError, match=r"^construct: no description of a field: 'format' must be"):
            io.construct(value)


def test_drjit_layers_are_checked(backend):
    for layer, message in (
        ({"type": "drjit.nn.Linear", "in_features": 0, "out_features": 2, "bias": True}, "in_features is 0"),
        ({"type": "drjit.nn.Linear", "in_features": 1, "out_features": 2, "bias": "yes"}, "bias is 'yes'"),
        ({"type": "drjit.nn.SinEncode", "octaves": -3, "shift": 0}, "octaves is -3"),
        ({"type": "drjit.nn.LeakyReLU", "negative_slope": None}, "negative_slope is None"),
    ):
        description = {
            "format": "coopnet.field",
            "version": 1,
            "encoding": None,
            "network": layer,
            "output": "float32",
            "in_features": -1,
        }
        with pytest.raises(ValueError, match=message):
            io.construct(description)


class Mix(cn.Module):
    """A layer of a user, with a number and a layer as arguments, a packed matrix and a packed vector."""

    DRJIT_STRUCT = {"start": float, "body": cn.Module, "matrix": object, "shift": object}

    def __init__(self, start: float = 1.0, body=None):
        self.start, self.body = start, body
        self.matrix = self.shift = None

    def __call__(self, x, key=None):
        return drnn.matvec(self.matrix, self.body(x, key), self.shift)

    def _alloc(self, dtype, size, rng):
        layer = Mix(self.start)
        layer.body, size = self.body._alloc(dtype, size, rng)
        layer.matrix, layer.shift = dr.full(dtype, self.start, (size, size)), dr.zeros(dtype, size)
        return layer, size


def test_layer_of_a_user(backend, ns, tmp_path, monkeypatch):
    from coopnet.io import architecture

    monkeypatch.setattr(architecture, "_TYPES", dict(architecture._TYPES))
    path = tmp_path / "f.safetensors"
    field = build(cn.NeuralField(None, cn.Sequential(cn.Linear(2, 4), Mix(2.0, cn.Tanh()))), backend)
    with pytest.raises(TypeError, match=r"network\.layers\.1 is a .*Mix; accepted are .*coopnet\.Dropout.*register"):
        io.save(path, field)
    assert not path.exists()
    assert io.register(Mix) is Mix
    io.save(path, field)
    np.testing.assert_array_equal(evaluate(io.load(path, backend), ns), evaluate(field, ns))
    del architecture._TYPES[f"{Mix.__module__}.Mix"]  # another program, which does not know it
    with pytest.raises(ValueError, match="Mix'; accepted are"):
        io.load(path, backend)


def test_layers_that_hold_fields_say_so(backend):
    class Two(cn.Module):
        DRJIT_STRUCT = {"first": cn.Module}

        def __init__(self, first=None):
            self.first = first

    field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build(backend)
    with pytest.raises(TypeError, match="Two holds a whole NeuralField, and only layers can be described"):
        pickle.dumps(Two(field))


def test_register_refuses():
    class Many(cn.Module):
        def __init__(self, *layers):
            pass

    for wrong in (int, Many, Many(), "Many"):
        with pytest.raises(TypeError, match="register: "):
            io.register(wrong)


def test_describe_refuses(backend):
    class Odd(cn.ReLU):
        pass

    class OddField(cn.NeuralField):
        pass

    with pytest.raises(TypeError, match=r"network\.layers\.0 is a .*Odd"):
        io.describe(cn.NeuralField(None, cn.Sequential(Odd())))
    for wrong in (cn.ReLU(), OddField(None, cn.ReLU()), None):
        with pytest.raises(TypeError, match="describe: field is a"):
            io.describe(wrong)
    with pytest.raises(ValueError, match=r"network\.negative_slope is a Float"):
        io.describe(cn.NeuralField(None, drnn.LeakyReLU(cn.backend.namespace(backend).Float(0.1))))
    with pytest.raises(ValueError, match=r"negative_slope is nan"):
        io.describe(cn.NeuralField(None, drnn.LeakyReLU(float("nan"))))


# ---- broken files -------------------------------------------------------


def test_truncated(backend, file):
    data = file.read_bytes()
    for n in [0, 1, 7, 8, 9, *range(10, len(data) - 1, 61), len(data) - 1]:
        file.write_bytes(data[:n])
        with pytest.raises(ValueError, match="not a safetensors file"):
            io.load(file, backend)
    file.write_bytes(data + b"\0")
    with pytest.raises(ValueError, match="not a safetensors file"):
        io.load(file, backend)


def test_flipped_bytes(backend, file):
    """Damage to the header is an error, or does no harm (in the caller's metadata, for one)."""
    data = file.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    rng = np.random.default_rng(0)
    faults = 0
    for position in [*range(8), *rng.choice(np.arange(8, header), 250, replace=False)]:
        spoiled = bytearray(data)
        spoiled[position] ^= 1 << int(rng.integers(8))
        file.write_bytes(spoiled)
        try:
            io.load(file, backend)
        except ValueError as error:
            assert str(file) in str(error)
            faults += 1
    assert faults > 150


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "it is empty"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "not a safetensors file"),
        (pickle.dumps({"weights": [1.0] * 100}), "not a safetensors file"),
        ((2**63).to_bytes(8, "little") + b"{}", "not a safetensors file"),
        ((2**20).to_bytes(8, "little") + b"{}", "not a safetensors file"),
        ((2).to_bytes(8, "little") + b"{}", "does not describe a field"),
        ((2).to_bytes(8, "little") + b"[]", "not a safetensors file"),
        (st.save({"a": np.zeros(3)}), "does not describe a field"),
        (st.save({"a": np.zeros(3)}, {"format": "pt"}), "does not describe a field"),
        (st.save({"a": np.zeros(3)}, {"coopnet": "{"}), "cannot be understood"),
        (st.save({"a": np.zeros(3)}, {"coopnet": "[" * 100_000}), "cannot be understood"),
        (st.save({"a": np.zeros(3)}, {"coopnet": "null"}), "cannot be understood"),
        (st.save({"a": np.zeros(3)}, {"coopnet": "1" * 5000}), "cannot be understood"),
        (st.save({}, {"coopnet": '{"format": "coopnet.field", "version": 1}', "user": "[]"}), "cannot be understood"),
        (
            st.save({}, {"coopnet": '{"format": "coopnet.field", "version": 1}'}),
            "lacks encoding, in_features, network, output",
        ),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else value,
)
def test_foreign(content, message, backend, tmp_path):
    path = tmp_path / "f.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        io.load(path, backend)
    assert str(path) in str(caught.value)
    if "lacks" not in message:
        with pytest.raises(ValueError, match=message):
            io.read(path)


def test_pickle_is_not_run(backend, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    path = tmp_path / "f.safetensors"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="not a safetensors file"):
        io.load(path, backend)
    assert not (tmp_path / "exploded").exists()


def test_deep_nesting(backend, tmp_path):
    layer = '{"type": "coopnet.Sequential", "prefix": "", "layers": ['
    text = '{"format": "coopnet.field", "version": 1, "encoding": null, "output": "float32", "network": %s}'
    path = tmp_path / "f.safetensors"
    for depth in (200, 400, 5000):
        st.save_file({}, path, {"coopnet": text % (layer * depth + "]}" * depth)})
        with pytest.raises(ValueError, match=str(path)):
            io.load(path, backend)


def test_tensors_that_do_not_belong(backend, file):
    good = st.load_file(file)
    data = file.read_bytes()
    name = "network.layers.0.weights"
    for value, message in (
        (good[name].ravel(), "has shape"),
        (good[name][:-1], "has shape"),
        (np.array(1, np.float32), r"has shape \(\)"),
        (np.zeros((0, 8), np.float32), "has shape"),
        (good[name].astype(np.int32), "holds int32; float16, float32 or float64 is needed"),
        (good[name].astype(bool), "holds bool"),
    ):
        file.write_bytes(data)
        rewrite(file, tensors={name: value})
        with pytest.raises(ValueError, match=message):
            io.load(file, backend)
    file.write_bytes(data)
    rewrite(file, tensors={name: good[name].astype(np.float64)})
    io.load(file, backend)
    rewrite(file, tensors={"network.layers.9.weights": good[name]})
    with pytest.raises(ValueError, match=r"has the unknown network\.layers\.9\.weights"):
        io.load(file, backend)
    file.write_bytes(data)
    rewrite(file, tensors={"train.more": good[name]})
    io.load(file, backend)
    meta = {"coopnet": json.dumps(io.read(file).architecture)}
    st.save_file({k: v for k, v in good.items() if k != name}, file, meta)
    with pytest.raises(ValueError, match=r"the file lacks network\.layers\.0\.weights; its"):
        io.load(file, backend)


@pytest.mark.parametrize(("n", "listed"), [(1, "a0"), (4, "a0, a1, a2, a3"), (5, "a0, a1, a2, a3 and 1 more"),
                                           (9, "a0, a1, a2, a3 and 5 more")])  # fmt: skip
def test_names_of_tensors_in_errors(n, listed, backend, file):
    rewrite(file, tensors={f"a{i}": np.zeros(1, np.float32) for i in range(n)})
    with pytest.raises(ValueError, match=rf"': the file has the unknown {listed}; its tensors don't belong"):
        io.load(file, backend)


def test_conversion_of_tensors():
    """Of the same type, a tensor is taken as it is; another is rounded once, and infinities stay."""
    value = np.array([1 / 3, np.inf, np.nan], np.float32)
    assert converted(value, np.float32) is value
    for dtype in (np.float16, np.float64):
        result = converted(value, dtype)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, value.astype(dtype))
    half = converted(value.astype(np.float16), np.float32)
    assert half.dtype == np.float32 and half[0] == np.float16(1 / 3)


def test_tensors_that_are_too_large(backend, file):
    name = "network.layers.0.weights"
    value = st.load_file(file)[name].astype(np.float64)
    value[0, :3] = -70000, 3, np.inf
    rewrite(file, tensors={name: value})
    with pytest.raises(ValueError, match=rf"': {name} reaches 70000, too large for float16; use .*'single'\.$"):
        io.load(file, backend, "half")
    value[0, 0] = 1e39
    rewrite(file, tensors={name: value})
    if backend == "llvm":
        with pytest.raises(ValueError, match=rf"{name} reaches 1e\+39, too large for float32\.$"):
            io.load(file, backend, "single")


def test_long_errors_are_cut():
    for n, end in ((800, "a"), (801, "...")):
        message = str(checkpoint._bad("load", "x", "a" * n))
        assert len(message) == len("load: 'x': ") + 800 and message.endswith(end)


def test_types_unknown_to_numpy(backend, file):
    data = file.read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + n].decode()
    assert '"I64"' in header
    header = header.replace('"I64","shape":[5]', '"BF16","shape":[20]').rstrip().encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + n :])
    io.load(file, backend)  # the state of a training is not looked at
    with pytest.raises(ValueError, match=r"train\.moment has the type BF16"):
        io.read(file)


def test_paths(backend, tmp_path, file):
    for call in (lambda p: io.load(p, backend), io.read):
        with pytest.raises(FileNotFoundError, match="missing"):
            call(tmp_path / "missing")
        with pytest.raises(IsADirectoryError, match=tmp_path.name):
            call(tmp_path)
    if os.path.exists("/dev/null"):
        with pytest.raises(ValueError, match="not a regular file"):
            io.load("/dev/null", backend)
    if hasattr(os, "geteuid") and os.geteuid():
        file.chmod(0)
        with pytest.raises(PermissionError, match=r"field\.safetensors"):
            io.load(file, backend)
    field = build(small(), backend)
    with pytest.raises(FileNotFoundError, match="missing"):
        io.save(tmp_path / "missing" / "f.safetensors", field)
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        io.save(tmp_path, field)
    with pytest.raises(NotADirectoryError):
        io.save(file / "f.safetensors", field)


def test_names_that_show_nothing(backend, file):
    """Strings whose class has methods of its own: what a file holds is read, and missed, as by any other."""

    class Odd(str):
        __str__ = __repr__ = __format__ = None

    assert io.load(Odd(file), backend).precision
    tensors = io.read(file).tensors
    tensors.pop("network.layers.0.weights")
    lacking = file.with_name("lacking.safetensors")
    st.save_file(tensors, lacking, {"coopnet": json.dumps(io.read(file).architecture)})
    with pytest.raises(ValueError, match=r"^load: '.*lacking\.safetensors': the file lacks"):
        io.load(Odd(lacking), backend)


def test_arguments(backend, ns, tmp_path, file):
    path = tmp_path / "new"
    field = build(small(), backend)
    with pytest.raises(TypeError, match="save: field is a Linear"):
        io.save(path, cn.Linear(2, 2))
    with pytest.raises(ValueError, match="not built yet"):
        io.save(path, small())
    with pytest.raises(TypeError, match=r"tensors\['a'\] holds"):
        io.save(path, field, tensors={"a": np.array([object()])})
    with pytest.raises(TypeError, match="names must be strings"):
        io.save(path, field, tensors={1: np.zeros(3)})
    with pytest.raises(TypeError, match="names in metadata"):
        io.save(path, field, metadata={1: 2})
    with pytest.raises(TypeError, match="metadata must be something JSON can hold"):
        io.save(path, field, metadata={"a": object()})
    with pytest.raises(ValueError, match="metadata must be something JSON can hold"):
        io.save(path, field, metadata={"a": float("nan")})
    with pytest.raises(ValueError, match="load: precision is 'double'"):
        io.load(file, backend, "double")
    with pytest.raises(ValueError, match="backend"):
        io.load(file, "metal")

    @dr.freeze
    def frozen(x):
        io.save(path, field)
        return x + 1

    with pytest.raises(RuntimeError) as caught:
        frozen(dr.arange(ns.Float, 4))
    assert "save: called while" in str(caught.value.__cause__)
    assert not path.exists()


def test_missing_package(backend, file, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for call in (lambda: io.load(file, backend), lambda: io.read(file), lambda: io.save(file, build(small(), backend))):
        with pytest.raises(ImportError, match=r"pip install safetensors, or coopnet\[train\]"):
            call()


def test_rounds_of_dropout(backend, ns, tmp_path):
    """They come back; files from before there was a choice mean ten."""
    path = tmp_path / "field.safetensors"
    field = build(small(dropout=cn.Dropout(0.4, bits=8, rounds=7)), backend)
    layers = [layer for layer in field.network.layers if isinstance(layer, cn.Dropout)]
    assert [(layer.p, layer.bits, layer.stream, layer.rounds) for layer in layers] == [(0.4, 8, 0, 7)]
    key = cn.Key(1, step=2)
    cn.save(path, field)
    np.testing.assert_array_equal(evaluate(cn.load(path, backend), ns, key), evaluate(field, ns, key))

    def older(architecture):
        text = json.dumps(architecture)
        assert text.count('"rounds": 7') == 1
        architecture |= json.loads(text.replace(', "rounds": 7', "").replace('"rounds": 7, ', ""))

    rewrite(path, older)
    loaded = cn.load(path, backend)
    assert next(layer for layer in loaded.network.layers if isinstance(layer, cn.Dropout)).rounds == 10
    assert (evaluate(loaded, ns, key) != evaluate(field, ns, key)).any()
