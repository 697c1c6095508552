"""Arguments that cannot be meant: refused with a clear message before anything is traced, allocated or changed."""

from __future__ import annotations

import copy
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import drjit as dr
import drjit.nn as drnn
import numpy as np
import pytest
from drjit import scalar
from support.machines import run

import coopnet as cn
from coopnet import checks
from coopnet.audit import _twin
from coopnet.checks import memory, messages, sizes


def field_of(backend, **options):
    return cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1, **options)).build(backend)


# ---- Values in messages ------------------------------------------------------------------------------------


class Broken:
    def __repr__(self):
        raise RuntimeError("no repr")


def test_long_values_are_cut():
    """A message repeats 60 characters of a value at most, and the last 200 of a path."""
    assert messages.shown("a" * 58) == repr("a" * 58)
    assert messages.shown("a" * 59) == "'" + "a" * 56 + "..."
    assert messages.shown(b"a" * 57) == repr(b"a" * 57)
    assert messages.shown(b"a" * 99) == "b'" + "a" * 55 + "..."
    assert messages.shown(2**199 - 1) == str(2**199 - 1) and messages.shown(2**199) == "an int of 200 bits"
    assert messages.shown(np.zeros(8)) == repr(np.zeros(8)) and messages.shown(np.zeros(9)).startswith("a NumPy array")
    assert messages.shown(np.array(["a"])) == "a NumPy array of <U1 and shape (1,)"
    path = "".join(str(i % 10) for i in range(203))
    assert messages.shown_path(path[:200]) == path[:200]
    assert messages.shown_path(path) == "..." + path[6:] and messages.shown_path(Path("a\nb")) == "a b"


def test_values_are_shown_in_a_line(ns):
    cyclic = []
    cyclic.append(cyclic)
    for value, text in (
        ("x", "'x'"), (3, "3"), (0.5, "0.5"), (None, "None"), (True, "True"), ([1, "a"], "[1, 'a']"),
        (np.float32(0.5), repr(np.float32(0.5))), (np.array([1, 2]), "array([1, 2])"), (Broken, None),
        (cyclic, "[[[[...]]]]"), (10**5000, "an int of 16610 bits"), (ns.Float(1, 2), "a Float"),
        ([ns.Float(1)], "[a Float]"), (cn.ReLU(), "a ReLU"), (np.zeros(99), "a NumPy array of float64 and shape (99,)"),
        ("a\nb", r"'a\nb'"),
    ):  # fmt: skip
        shown = messages.shown(value)
        assert text is None or shown == text
        assert len(shown) <= messages.LINE and "\n" not in shown
    for value in (
        "a" * 10**6,
        list(range(10**6)),
        {i: "a" * 99 for i in range(99)},
        b"a" * 10**6,
        Broken(),
        [Broken()],
    ):
        assert len(messages.shown(value)) <= messages.LINE
    # what is not evaluated yet stays so
    lazy = dr.arange(ns.Float, 3) * 2
    messages.shown([lazy])
    assert lazy.state == dr.VarState.Unevaluated


@pytest.mark.parametrize("value", ["a" * 5000, 10**400, [0] * 10**5, Broken(), np.zeros((50, 50))], ids=range(5))
def test_messages_are_short_whatever_they_echo(value):
    for call in (
        lambda: cn.Linear(value, 2), lambda: cn.MLP(activation=value), lambda: cn.MLP(init=value),
        lambda: cn.Key(value),
        lambda: cn.MLP(width=value), lambda: cn.Sine(value), lambda: cn.Dropout(value), lambda: cn.Dropout(0.5, value),
        lambda: cn.Grid(storage=value), lambda: cn.Fourier(seed=value), lambda: cn.SparseProjection(density=value),
        lambda: cn.NeuralField(output=value), lambda: cn.from_config(value, 1, {}),
        lambda: cn.Embedding(prefix=[value]),
        lambda: cn.from_config(1, 1, {"network": {"activation": value}}), lambda: cn.Composite([], value),
        lambda: cn.philox4x32((value, 0, 0, 0), (0, 0)), lambda: cn.backend.require(value),
        lambda: cn.seeded_dropout(np.ones(3), 0.5, 1, convention=value),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError)) as caught:
            call()
        assert len(str(caught.value)) < 400


# ---- Checks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, more, good, bad, message",
    [
        ("type", (cn.Key | None, "a Key"), None, 3, "f: x is a int; a Key is needed."),
        ("type", (Callable, "a function"), print, 3, "f: x is a int; a function is needed."),
        ("module", (), cn.ReLU(), 3, "f: x is a int; a Module instance is needed."),
        ("int", (2,), 2, 1, "f: x is 1; an int of at least 2 is needed."),
        ("int", (2, 8), 8, 9, "f: x is 9; an int from 2 to 8 is needed."),
        ("int", (0,), 1, True, "f: x is True; an int of at least 0 is needed."),
        ("positive", (), 1, 0, "f: x is 0; a positive int is needed."),
        ("unsigned", (8,), np.uint8(255), 256, "f: x is 256; an int in [0, 2^8) is needed."),
        ("number", (), -1e9, np.inf, "f: x is inf; a finite number is needed."),
        ("number", (2,), 2, 1.5, "f: x is 1.5; a number of at least 2 is needed."),
        ("number", (), 1, 10**999, "f: x is an int of 3319 bits; a finite number is needed."),
        ("above", (), 1e-9, 0, "f: x is 0; a positive number is needed."),
        ("text", (), "a", b"a", "f: x is b'a'; a string is needed."),
        ("choice", (("a", "b"),), "b", "c", "f: x is 'c'; accepted are 'a', 'b'."),
        ("samples", (5,), 5, 2, "f: x has 2 entries for 5 samples; one, or one for each, is needed."),
        ("samples", (1,), 1, 0, "f: x has 0 entries for 1 samples; one is needed."),
    ],
)
def test_checks(name, more, good, bad, message):
    """What fits is let through, and what does not is named with what is needed."""
    check = getattr(checks, f"check_{name}")
    assert check("f", "x", good, *more) in (None, good)
    with pytest.raises(TypeError if " is a int" in message else ValueError) as caught:
        check("f", "x", bad, *more)
    assert str(caught.value) == message


# ---- Flags -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["no", 0, 1, None, np.bool_(True)], ids=repr)
def test_flags_are_bools(bad, backend):
    field = field_of(backend)
    for name, call in (
        ("Linear: bias", lambda: cn.Linear(2, 2, bias=bad)),
        ("MLP: bias", lambda: cn.MLP(2, 2, bias=bad)),
        ("MLP: zero_last", lambda: cn.MLP(2, 2, zero_last=bad)),
        ("Fourier: trained", lambda: cn.Fourier(trained=bad)),
        ("Embedding: check", lambda: cn.Embedding(check=bad)),
        ("Embedding: deterministic", lambda: cn.Embedding(deterministic=bad)),
        ("NeuralField.explain: frozen", lambda: field.explain(8, frozen=bad)),
        ("deterministic: enabled", lambda: cn.deterministic(bad).__enter__()),
    ):
        with pytest.raises(ValueError, match=f"{name} is .*; True or False is needed"):
            call()


# ---- Precision ---------------------------------------------------------------------------------------------


def test_fields_refuse_double_precision(ns, backend):
    field = field_of(backend)
    p = ns.Array2f([0.25, 0.5], [0.1, 0.2])
    wide = ns.Array2f64(p)
    tensor = ns.TensorXf64(np.ones((2, 3)))
    for call in (
        lambda: field(wide), lambda: field([ns.Float64(1), ns.Float64(2)]), lambda: field(tensor),
        lambda: field(drnn.CoopVec(ns.Float64(1), ns.Float64(2))), lambda: field.value_and_grad(wide),
        lambda: field.jacobian(wide), lambda: field.jvp(wide, wide), lambda: field.jvp(p, wide),
        lambda: field.audit(wide), lambda: cn.numerical_gradient(field, wide, 0.1),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=r"Float64, but fields compute in single precision; convert them, as in"):
            call()
    # layers keep double precision
    assert type(cn.Frequency(2, 2)([ns.Float64(0.1), ns.Float64(0.2)])[0]) is ns.Float64
    assert type(cn.Tanh()(ns.Float64(0.1))) is ns.Float64


def test_directions_that_do_not_fit(ns, backend):
    field, p = field_of(backend), ns.Array2f([0.25, 0.5], [0.1, 0.2])
    one, two, three = ([ns.Float(1)] * n for n in (1, 2, 3))
    for v, components in ((one, 1), (three, 3), (ns.Array3f(1), 3)):
        with pytest.raises(ValueError, match=f"NeuralField.jvp: v has {components} components, but p has 2"):
            field.jvp(p, v)
    with pytest.raises(ValueError, match=r"NeuralField.jvp: p and v have different numbers of samples"):
        field.jvp(p, ns.Array2f([1, 2, 3], 1))
    x = drnn.CoopVec(list(p))
    for point, v, kind in (
        (x, drnn.CoopVec([ns.Float64(1)] * 2), ""), (ns.TensorXf(p), ns.TensorXf64(np.ones((2, 2))), ""),
        (p, [ns.Float64(1)] * 2, ""), (x, p, "v is arrays of .* and p CoopVec"), (p, x, "v is CoopVec of .* and p arr"),
        (p, np.ones((2, 2)), "v is NumPy of"), (p, ns.TensorXf(p), "v is tensor of"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=f"NeuralField.jvp: {kind or 'v: .*Float64, but fields compute in single'}"):
            field.jvp(point, v)
    assert field.jvp(p, two)[1].numpy().shape == (1, 2)


# ---- Mappings ----------------------------------------------------------------------------------------------


def cyclic_list():
    found = []
    found.append(found)
    return found


def test_update_and_assignment_refuse_what_is_no_parameter(ns, backend):
    field = field_of(backend)
    name = "network.weights"
    before = field[name].numpy().copy()
    for bad in ("", "x", 5, None, b"", [1], [("a",)], ns.UInt32(), np.zeros(3), 1.5):
        with pytest.raises(TypeError, match=r"NeuralField.update: got .*; a mapping, or pairs of name and value"):
            field.update(bad)
    for bad in ("x", 5, None, object(), ["x"], cyclic_list(), np.array(["x"]), dr.zeros(ns.Bool, before.size), {},
                ns.Complex2f(1), ns.Matrix2f(1), scalar.Array3f(1), np.ones(before.size, complex)):  # fmt: skip
        with pytest.raises(TypeError, match=r"NeuralField: parameter 'network.weights'.* real numbers"):
            field[name] = bad
        with pytest.raises(TypeError, match="real numbers"):
            field.update({name: bad})
    with pytest.raises(ValueError, match=rf"has shape \({before.size},\), but the new value has shape \(3,\)"):
        field[name] = [1, 2, 3]
    for call in (lambda: field["weights"], lambda: field.update([("weights", 1)]), lambda: field.update(weights=1)):
        with pytest.raises(KeyError, match=r"NeuralField: there is no parameter 'weights'; the network has network.w"):
            call()
    for bad in (ns.Float(1), 3, None, np.zeros(3), "a" * 5000):
        assert bad not in field
        with pytest.raises(KeyError, match="there is no parameter") as caught:
            field[bad]
        assert len(str(caught.value)) < 400
    with pytest.raises(TypeError, match="parameters cannot be deleted"):
        del field[name]
    assert np.array_equal(field[name].numpy(), before)
    # what is meant still works
    for good in (before, before.tolist(), type(field[name])(before)):
        field[name] = good
    field.update([(name, before)])
    field.update({name: before, "another": "x"})
    field.update()
    field.update({})
    with pytest.raises(TypeError, match=r"set_matrix: the new value of .* is \[\[\[\[...\]\]\]\]; real numbers"):
        field.set_matrix("layers.0.weights", cyclic_list())


def test_layers_are_compared_by_identity():
    a, b = cn.ReLU(), cn.Tanh()
    assert a == a and a != b and len({a, b, a}) == 2 and b in [a, b]


# ---- Networks that contain themselves ----------------------------------------------------------------------


def cyclic_networks():
    chain = cn.Sequential(cn.ReLU())
    chain.layers = (cn.Sequential(chain),)
    residual, skip = cn.Residual(cn.ReLU()), cn.Skip(cn.ReLU())
    residual.body = cn.Sequential(residual)
    skip.body = skip
    heads = cn.Heads(None, {"a": cn.ReLU()})
    heads.layers[-1].heads = (heads,)
    return [chain, residual, skip, heads]


@pytest.mark.parametrize("i", range(4))
def test_networks_that_contain_themselves(i, ns, backend):
    net = cyclic_networks()[i]
    assert "..." in repr(net)
    x = drnn.CoopVec(ns.Float(1), ns.Float(2))
    for call in (
        lambda: net.alloc(ns.TensorXf, 2), lambda: len(net), lambda: net.report(), lambda: net.matrix("a"),
        lambda: cn.NeuralField(None, net, in_features=2).build(backend), lambda: net(x), lambda: net.jvp(x, [x]),
        lambda: net.update({}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"contains itself|contain themselves"):
            call()
    with pytest.raises(ValueError, match="activation is a "):  # the message does not print it
        cn.MLP(activation=net)


# ---- Sizes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: cn.Linear(10**10, 2), r"Linear: in_features is 1.0e10; a vector has at most 65535 features"),
        (lambda: cn.Linear(2, 2**16), r"Linear: out_features is 65536; a vector has at most 65535 features"),
        (lambda: cn.MLP(depth=2**32), r"MLP: depth is 4.3e9, which makes 8.6e9 layers; a network has at"),
        (lambda: cn.MLP(depth=10**7), r"MLP: depth is 10000000, which makes 20000001 layers"),
        (lambda: cn.MLP(width=10**400), r"MLP: width is an int of 1329 bits; a vector has at most"),
        (lambda: cn.SIREN(depth=10**7), r"SIREN: depth is 10000000, which makes 20000001 layers"),
        (lambda: cn.SIREN(width=10**7), r"SIREN: width is 10000000; a vector has at most"),
        (lambda: cn.Sequential(*[cn.ReLU()] * 4097), r"Sequential: the number of layers is 4097; a network has at"),
        (lambda: cn.Fourier(2**25), r"Fourier: n_frequencies is 33554432, which makes 67108864 features; a vector has"),
        (lambda: cn.Frequency(2**25), r"Frequency: n_frequencies is 33554432; at most 128 are possible"),
        (lambda: cn.TriangleWave(2000), r"TriangleWave: n_frequencies is 2000; at most 128"),
        (lambda: cn.Sinusoidal(2000), r"Sinusoidal: octaves is 2000; at most 128"),
        (lambda: cn.Triangular(10**10), r"Triangular: octaves is 10000000000; at most 128"),
        (lambda: cn.OneBlob(2**20), r"OneBlob: n_bins is 1048576, which makes 1048576 features"),
        (lambda: cn.OneBlob(1000, 1000), r"OneBlob: n_bins is 1000, which makes 1000000 features"),
        (lambda: cn.HashGrid(2, 2**20), r"HashGrid: n_levels is 1048576, which makes 2097152 features"),
        (lambda: cn.HashGrid(2, hashmap_size=2**32), r"HashGrid: hashmap_size is 4294967296; fewer than"),
        (lambda: cn.Embedding(2**30, 8), r"Embedding: 1073741824 x 8 entries, 8.6e9 numbers, are more than an array"),
        (lambda: cn.Embedding(2, 2**17), r"Embedding: width is 131072; a vector has at most"),
        (lambda: cn.SparseProjection(2**32), r"SparseProjection: in_features is 4294967296; fewer than 2\^32"),
        (lambda: cn.SparseProjection(2, 2**32), r"SparseProjection: out_features is 4.3e9; a vector has at most"),
        (lambda: cn.Frequency(100, 1000), r"Frequency: n_frequencies is 100, which makes 200000 features"),
        (lambda: cn.TriangleWave(100, 1000), r"TriangleWave: n_frequencies is 100, which makes 100000 features"),
        (lambda: cn.Sinusoidal(100, in_features=1000), r"Sinusoidal: octaves is 100, which makes 200000 features"),
        (lambda: cn.Composite([cn.Identity()] * 4097), r"Composite: the number of encodings is 4097; a network has"),
        (lambda: cn.Composite([cn.Identity()], in_features=2**16), r"Composite: in_features is 65536; a vector"),
        (lambda: cn.Composite([cn.Identity()] * 2, [2**15] * 2), r"Composite: in_features is 65536; a vector"),
        (lambda: cn.Composite([cn.Identity()], [2**40]), r"Composite: n_dims_to_encode is 1.1e12; a vector"),
        (lambda: cn.NeuralField(in_features=2**40), r"NeuralField: in_features is 1.1e12; a vector has at most"),
        (lambda: cn.philox4x32((0,) * 4, (0, 0), 2**40), r"philox4x32: rounds is 1099511627776; an int of at least 1"),
        (lambda: cn.dropout_mask(2**40, 0.5, cn.Key(1, 0)), r"dropout_mask: 1.1e12 x 1 masks, 1.1e12 numbers"),
        (lambda: cn.from_config(2**40, 1, {}), r"from_config: n_in is 1.1e12; a vector has at most 65535"),
    ],
)  # fmt: skip
def test_sizes_are_bounded_before_anything_is_made(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_allocation_is_bounded(ns, backend, monkeypatch):
    monkeypatch.setattr(memory, "memory_left", lambda: {memory.MEMORY: 1 << 30})
    deep = cn.Sequential(*[cn.Linear(4000, 4000) for _ in range(20)])
    for net, size, message in [
        (cn.Linear(60000, 60000), -1, r"Linear: 60000 x 60000 weights, 3.6e9 numbers, do not fit: twice 13.4"),
        (cn.Linear(-1, 65535), 65535, r"Linear: 65535 x 65535 weights, 4.3e9 numbers, do not fit"),
        (deep, -1, r"Sequential.alloc: 320080000 parameters do not fit: twice 1.2 GiB, but 1.0 GiB of memory"),
        (cn.Embedding(2**28, 1), -1, r"Embedding: 268435456 x 1 entries, 2.7e8 numbers, do not fit"),
        (cn.Grid(3, "dense", 1, base_resolution=512), -1, r"Grid: 134217728 x 2 features in 1 levels, .* do not fit"),
        (cn.Grid(3, "dense", 1, base_resolution=4096), -1, r"Grid: 6.9e10 x 2 .* more than an array can"),
        (cn.Fourier(32767), 2000, r"Fourier: 32767 x 2000 frequencies, 6.6e7 numbers, do not fit"),
        (cn.OneBlob(60000), 2, r"OneBlob: in_features is 2, which makes 120000 features"),
        (cn.Permutohedral(), 65, r"Permutohedral: in_features is 65; at most 64"),
        (cn.Frequency(), 2**20, r"Frequency: in_features is 1048576; a vector has at most"),
    ]:  # fmt: skip
        if backend == "cuda" and "not fit" in message and "frequencies" not in message:
            continue  # how much room a GPU has is not asked
        with pytest.raises(ValueError, match=message):
            net.alloc(ns.TensorXf, size)
    layers = cn.Sequential(*[cn.Sequential(*[cn.ReLU()] * 3000)] * 2)
    with pytest.raises(ValueError, match=r"Sequential.alloc: the number of layers is 6000; a network has at most 4096"):
        layers.alloc(ns.TensorXf, 2)
    for bad in (5, "x", np.random.default_rng(), ns.Float(1)):
        with pytest.raises(TypeError, match=r"Linear.alloc: rng is a .*; dr.rng\(seed\), or None, is needed"):
            cn.Linear(2, 2).alloc(ns.TensorXf, rng=bad)
    assert cn.Linear(64, 64).alloc(ns.TensorXf).weights.shape == (64, 64)


GIB = 1 << 30


@pytest.mark.parametrize("left, fits", [(2 * 2**31, True), (2 * 2**31 - 1, False), (None, True)])
def test_how_much_memory_is_needed(monkeypatch, left, fits):
    """Twice the numbers in single precision, rounded up to a power of two; small arrays are let through."""
    asked = []
    monkeypatch.setattr(memory, "memory_left", lambda: asked.append(1) or {})
    sizes.check_entries("f", "weights", (2**23 - 1,))
    assert not asked  # from 64 MiB on
    monkeypatch.setattr(memory, "memory_left", lambda: {} if left is None else {memory.ADDRESSES: left})
    for shape in ((2**28 + 1,), (2**15, 2**14)):
        if fits:
            sizes.check_entries("f", "weights", shape)
        else:
            with pytest.raises(ValueError, match=r"^f: .* weights.* do not fit: twice [12]\.0 GiB, but 4\.0 GiB"):
                sizes.check_entries("f", "weights", shape)
    sizes.check_entries("f", "weights", (2**29,), on_host=False)
    sizes.check_entries("f", "weights", (2**15, 2**14), itemsize=2)
    if not fits:
        with pytest.raises(ValueError, match="do not fit"):
            sizes.check_entries("f", "weights", (2**24,), itemsize=256)
    sizes.check_entries("f", "weights", (2**32 - 1,), on_host=False)
    with pytest.raises(ValueError, match=r"f: 4294967296|f: 4\.3e9"):
        sizes.check_entries("f", "weights", (2**32,), on_host=False)


def test_numbers_and_sizes_in_messages():
    assert sizes._count(2**32 - 1) == "4294967295" and sizes._count(2**32) == "4.3e9"
    assert [sizes._rough(n) for n in (15, 10**12, 10**300)] == ["1.5e1", "1.0e12", "1.0e300"]
    assert sizes._rough(10**400) == "an int of 1329 bits"
    counts = (0, 2**20 - 1, 2**20, 2**30 - 2**20, 2**30, 5 * 2**39)
    texts = ["0 bytes", "1024.0 KiB", "1.0 MiB", "1023.0 MiB", "1.0 GiB", "2560.0 GiB"]
    assert [checks.shown_bytes(n) for n in counts] == texts


def system(root, **files):
    """The system's files below the folder ``root``, by short names."""
    paths = {
        "meminfo": "proc/meminfo", "statm": "proc/self/statm", "limits": "proc/self/limits",
        "cgroup": "proc/self/cgroup",
    }  # fmt: skip
    for name, text in files.items():
        path = root / paths.get(name, f"sys/fs/cgroup/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_memory_of_the_machine(tmp_path, monkeypatch):
    root = system(tmp_path, meminfo="MemTotal:  99 kB\nMemFree:  1 kB\nMemAvailable:   32 kB\nBuffers: 5 kB\n")
    assert memory.memory_left(root) == {memory.MEMORY: 32 << 10}
    monkeypatch.setattr(memory.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    for text in ("MemTotal: 99 kB\n", "MemAvailable:\n", "MemAvailable: many kB\n"):
        assert memory.memory_left(system(tmp_path, meminfo=text)) == {memory.MEMORY: 4096 * 1000}
    assert memory.memory_left(tmp_path / "nothing") == {memory.MEMORY: 4096 * 1000}
    monkeypatch.delattr(memory.os, "sysconf")
    assert memory.memory_left(tmp_path / "nothing") == {}


def test_limits_of_the_address_space(tmp_path):
    line = "Max address space         {}           {}            bytes     \n"
    limits = f"Limit                     Soft Limit           Hard Limit           Units     \n{line}"
    root, page = system(tmp_path, statm="100 50 20 1 0 30 0\n"), os.sysconf("SC_PAGE_SIZE")
    for soft, left in [(GIB, GIB - 100 * page), (99 * page, 0), ("unlimited", None)]:
        found = memory.memory_left(system(root, limits=limits.format(soft, 2 * GIB)))
        assert found.get(memory.ADDRESSES) == left
    (root / "proc/self/statm").unlink()
    assert memory.ADDRESSES not in memory.memory_left(system(root, limits=limits.format(GIB, GIB)))


STAT = "anon 7\ninactive_file 30\nactive_file 4\n"
NEW = {"memory.max": "1000\n", "memory.current": "600\n", "memory.stat": STAT}
OLD = {"memory/memory.limit_in_bytes": "2000\n", "memory/memory.usage_in_bytes": "100\n", "memory/memory.stat": "a 7\n"}
INNER = {"cgroup": "0::/a/b\n", "a/memory.max": "500\n", "a/memory.current": "90\n", "a/memory.stat": "anon 7\n"}
INNER_1 = {
    "cgroup": "9:name=systemd:/\n4:cpu,memory:/a\n0::/\n", "memory/a/memory.limit_in_bytes": "300",
    "memory/a/memory.usage_in_bytes": "200", "memory/a/memory.stat": "inactive_file 3\ntotal_inactive_file 9\n",
}  # fmt: skip


@pytest.mark.parametrize("files, left", [
    (NEW, 434),
    (OLD, 1900),
    (NEW | OLD, 434),
    (NEW | {"memory.max": "max\n"}, None),  # no limit
    (NEW | {"memory.max": "max\n"} | OLD, 1900),
    (NEW | {"memory.stat": "active_file 4\n"}, 404),
    (NEW | {"memory.stat": "inactive_file 30\n"}, 430),
    (NEW | {"memory.stat": "anon 7\n"}, 400),
    (NEW | {"memory.current": "2000\n"}, 0),
    ({"memory.max": "1000"}, None),
    ({}, None),
    (INNER, 410),  # of a group around the own one, which has no limit
    (NEW | INNER, 410),
    (NEW | INNER | {"memory.max": "620"}, 54),
    (NEW | {"cgroup": "0::/seen/from/outside\n"}, 434),
    (NEW | {"cgroup": "nonsense\n\n::\n"}, 434),
    (OLD | INNER_1, 109),
])  # fmt: skip
def test_limits_of_containers(tmp_path, files, left):
    assert memory.memory_left(system(tmp_path, **files)).get(memory.CONTAINER) == left


def test_each_limit_counts(monkeypatch):
    """Memory as it is used, addresses as Dr.Jit takes them: in powers of two."""
    parts, count = {"numbers": [3 * GIB, GIB / 2], "more": [], "little": [5.0]}, 7 * GIB // 2 + 5
    cases = ((memory.MEMORY, count), (memory.CONTAINER, count), (memory.ADDRESSES, 9 * GIB // 2 + 8))
    for what, needed in cases:
        for left in (needed, needed - 1):
            monkeypatch.setattr(memory, "memory_left", lambda what=what, left=left: {what: left})
            if left == needed:
                memory.check_room("f: a step", parts, "Cure")
                continue
            with pytest.raises(memory.NoRoom) as found:
                memory.check_room("f: a step", parts, "Cure")
            shown = messages.shown_bytes(left)
            start = f"f: a step takes 3.5 GiB more memory, 3.5 GiB for numbers; but {shown} of {what}"
            assert str(found.value) == f"{start} are left. Cure."


def test_memory_is_asked():
    assert all(1 << 20 < left < 1 << 64 for left in memory.memory_left().values())


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of the address space")
def test_a_process_with_little_memory_survives():
    """A Linear layer beyond the memory limit used to end the process."""
    code = """
import resource
import coopnet as cn
from drjit.llvm.ad import TensorXf

cn.backend.require("llvm")
cn.Linear(4, 4).alloc(TensorXf)
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
for make in (
    lambda: cn.Linear(60000, 60000).alloc(TensorXf),
    lambda: cn.NeuralField(None, cn.MLP(3, 3, width=30000, depth=2)).build("llvm"),
    lambda: cn.NeuralField(cn.Embedding(2**29, 2), cn.MLP(2, 3)).build("llvm"),
    lambda: cn.NeuralField(cn.HashGrid(3, hashmap_size=2**26), cn.MLP(-1, 3)).build("llvm"),
):
    try:
        make()
        print("made")
    except ValueError as error:
        print(error)
"""
    pytest.importorskip("resource")
    if "llvm" not in cn.backend.available():
        pytest.skip("needs LLVM")
    done = run(code)
    assert done.returncode == 0, done.stderr[-500:]
    lines = done.stdout.splitlines()
    starts = ("Linear: 60000 x 60000", "Linear: 30000 x 30000", "Embedding: 536870912 x 2", "HashGrid: ")
    assert len(lines) == 4
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start) and "of the address space of this process (ulimit -v) are left" in line


# ---- Keys --------------------------------------------------------------------------------------------------


def test_keys_take_any_unsigned_type(ns):
    x = [dr.zeros(ns.Float, 5) + 1 for _ in range(6)]
    index = np.arange(5)

    def mask(*key):
        return np.stack([v.numpy() for v in cn.dropout(x, 0.5, cn.Key(*key))])

    expected = mask(200, index, 7)
    for seed in (ns.UInt8(200), ns.UInt32(200), ns.UInt64(200), np.uint8(200), np.uint64(200)):
        for step in (ns.UInt8(7), ns.UInt32(7), np.uint16(7)):
            assert np.array_equal(mask(seed, ns.UInt8(index), step), expected)
    assert type(cn.Key(ns.UInt32(3)).seed) is ns.UInt64 and type(cn.Key(0, ns.UInt8(3)).index) is ns.UInt32
    assert np.array_equal(cn.Key(ns.UInt32(2**32 - 1)).seed.numpy(), [2**32 - 1])
    for name, bad in (("step", ns.UInt64(1)), ("index", ns.UInt64(1)), ("seed", ns.Int(1)), ("step", ns.Bool(True))):
        with pytest.raises(TypeError, match=f"Key: {name} is a Dr.Jit .*; a UInt"):
            cn.Key(**{"seed": 1, name: bad})
    with pytest.raises(TypeError, match="Key: index is a NumPy array of timedelta64"):
        cn.Key(1, np.zeros(2, "m8[s]"))


# ---- Coordinates that all samples share --------------------------------------------------------------------

ENCODINGS = {
    "Sinusoidal": lambda: cn.Sinusoidal(3), "Triangular": lambda: cn.Triangular(3, 0.1),
    "Frequency": lambda: cn.Frequency(3),
    "TriangleWave": lambda: cn.TriangleWave(3), "OneBlob": lambda: cn.OneBlob(4), "Fourier": lambda: cn.Fourier(4, 1.0),
    "trained Fourier": lambda: cn.Fourier(4, 1.0, trained=True), "Identity": lambda: cn.Identity(2.0, 1.0),
    "hash": lambda: cn.Grid(-1, "hash", 2, 2, 64, 4, init_scale=1.0),
    "dense": lambda: cn.Grid(-1, "dense", 2, 2, 64, 4, init_scale=1.0),
    "tiled": lambda: cn.Grid(-1, "tiled", 2, 2, 64, 4, init_scale=1.0),
    "HashGrid": lambda: cn.HashGrid(-1, 2, 2, 64, 4, init_scale=1.0),
    "Permutohedral": lambda: cn.Permutohedral(-1, 2, 2, 64, 4, init_scale=1.0),
    "projection": lambda: cn.SparseProjection(-1, 4, 1.0),
    "Composite": lambda: cn.Composite([cn.Frequency(2), cn.OneBlob(4)], [1, 1]), "none": lambda: None,
}  # fmt: skip


@pytest.mark.parametrize("name", ENCODINGS)
def test_gradient_of_a_coordinate_that_all_samples_share(name, ns, backend):
    """It is the sum over samples; against central differences in double precision."""
    net = cn.Linear(-1, 1) if name != "none" else cn.Linear(2, 1)
    field = cn.NeuralField(ENCODINGS[name](), net, in_features=2).build(backend)
    u, t = np.linspace(0.03, 0.9, 7), 0.4375
    wide, narrow = ns.Float(u), dr.opaque(ns.Float, t)
    dr.enable_grad(wide, narrow)
    for v in field.values():
        dr.enable_grad(v)
    dr.backward(field([wide, narrow])[0])

    w = field.network.matrix("weights").astype(np.float64)

    def total(t):
        x = np.stack([u, np.full_like(u, t)])
        return float((w @ (x if field.encoding is None else _twin(field.encoding, x, None, len(u)))).sum())

    expected = (total(t + 1e-6) - total(t - 1e-6)) / 2e-6
    tolerance = 2e-2 if field.precision == "half" else 1e-4
    assert dr.width(dr.grad(narrow)) == 1 and dr.width(dr.grad(wide)) == len(u)
    assert abs(dr.grad(narrow)[0] - expected) < tolerance * (abs(expected) + np.abs(w).sum())
    if name not in ("none", "Identity"):  # the layer by itself, and its features packed by hand
        wide, narrow = ns.Float(u), dr.opaque(ns.Float, t)
        dr.enable_grad(wide, narrow)
        dr.backward(sum(list(drnn.CoopVec(field.encoding([wide, narrow])))))
        assert dr.width(dr.grad(narrow)) == 1


def test_shared_coordinates_in_frozen_functions(ns, backend):
    field = field_of(backend, activation="tanh")

    @dr.freeze
    def slope(wide, narrow):
        dr.enable_grad(narrow)
        dr.backward(field([wide, narrow])[0])
        return dr.grad(narrow)

    for n in (5, 9, 17):
        u = np.linspace(0.1, 0.9, n)
        x = [ns.Float(u), dr.opaque(ns.Float, 0.4, n)]
        dr.enable_grad(x[1])
        dr.backward(field(x)[0])
        expected = dr.grad(x[1]).numpy().sum()
        assert abs(slope(ns.Float(u), dr.opaque(ns.Float, 0.4))[0] - expected) < 1e-2 * abs(expected)


# ---- NumPy's other arrays ----------------------------------------------------------------------------------


def test_masked_arrays_and_matrices_are_refused():
    for bad in (np.ma.ones((2, 3)), np.matrix([[1.0]])):
        for call in (lambda: cn.dropout(bad, 0.5, cn.Key(1)), lambda: cn.SparseProjection(2, 2)(bad)):  # noqa: B023
            with pytest.raises(TypeError, match=f"{type(bad).__name__}; accepted are"):
                call()


# ---- Numbers and strings that cannot be printed ------------------------------------------------------------


def _no_text(self, *_):
    raise KeyError("this method raises")


class Number(int):
    __repr__ = __str__ = __format__ = _no_text


class Text(str):
    __repr__ = __str__ = __format__ = _no_text


@pytest.mark.parametrize(
    "call",
    [
        lambda ns: cn.Linear(3, 2).alloc(ns.TensorXf, Number(2)),
        lambda ns: cn.Frequency(2, in_features=Number(3)).alloc(ns.TensorXf, 2),
        lambda ns: cn.Linear(Number(2**70), 2),
        lambda ns: cn.MLP(2, 1, depth=Number(10**6)),
        lambda ns: cn.HashGrid(n_features_per_level=Number(5), hashmap_size=Number(7)),
        lambda ns: cn.from_config(2, Number(2), {"loss": {"otype": "RelativeL2Luminance"}}),
    ],
)
def test_numbers_that_cannot_be_printed(ns, call):
    with pytest.raises(ValueError, match=r"^[\w.]+: .*\d"):
        call(ns)


def test_strings_that_cannot_be_printed(ns, backend, tmp_path):
    field = field_of(backend)
    written = cn.export(field, "c", Text(tmp_path / "f.c"), name=Text("wave"))
    assert "void wave(" in written.source.read_text()
    x = ns.Float(1, 2)
    cn.fit(field, lambda key: ([x, x], [x]), 1, checkpoint=Text(tmp_path / "f.safetensors"), progress=False)
    assert (tmp_path / "f.safetensors").exists()


# ---- Lists that cannot be read -----------------------------------------------------------------------------


class Unreadable(list):
    def __iter__(self):
        raise KeyError("this method raises")

    __len__ = __getitem__ = __iter__


@pytest.mark.parametrize(
    "call",
    [
        lambda bad: cn.Composite(nested=bad),
        lambda bad: cn.Composite([cn.Frequency(2)], n_dims_to_encode=bad),
        lambda bad: cn.Composite([cn.Frequency(2)], dims_to_encode_begin=bad),
        lambda bad: cn.interop.export.View(region=bad),
        lambda bad: cn.fit_many(bad, lambda key, job: None, 1, progress=False),
        lambda bad: cn.to({"a": bad}, "numpy"),
        lambda bad: cn.with_backend("llvm", print, bad),
    ],
)
def test_lists_that_cannot_be_read(call):
    with pytest.raises(TypeError, match=r"^\w+: [\w ]+ is a Unreadable that cannot be read: "):
        call(Unreadable([1]))


#: Calls that read or write arrays, which is impossible while Dr.Jit records; what opens their errors.
OUTSIDE = {
    "copy.deepcopy of a NeuralField": lambda ns, field, path: copy.deepcopy(field),
    "NeuralField.matrix": lambda ns, field, path: field.matrix("layers.0.weights"),
    "NeuralField.set_matrix": lambda ns, field, path: field.set_matrix("layers.0.weights", np.ones((8, 2))),
    "NeuralField.build": lambda ns, field, path: cn.NeuralField(cn.HashGrid(2), cn.MLP(out_features=1)).build(),
    "load": lambda ns, field, path: cn.load(path),
    "save": lambda ns, field, path: cn.save(path, field),
    "Cameras": lambda ns, field, path: cn.render.Cameras(np.eye(4)[:3], 2, 2, 40.0),
    "calibrate": lambda ns, field, path: cn.calibrate(field, ([ns.Float(1, 2)] * 2, [ns.Float(1, 2)])),
    "fit": lambda ns, field, path: cn.fit(field, lambda key: None, 1, progress=False),
}
#: Calls with matrices, which symbolic loops cannot contain; frozen functions can, but for the last one.
NOT_SYMBOLIC = {
    "l2_penalty": cn.training.l2_penalty,
    "l1_penalty": cn.training.l1_penalty,
    "decay_weights": lambda net: cn.training.decay_weights(net, 0.1),
    "clip_weights": lambda net: cn.training.clip_weights(net, 0.1),
    "spectral_norms": cn.training.spectral_norms,
}


@pytest.mark.parametrize(("where", "name"), [
    *itertools.product(["frozen function", "loop", "batch"], OUTSIDE), *(("loop", name) for name in NOT_SYMBOLIC),
])  # fmt: skip
def test_what_cannot_be_called_while_dr_jit_records(ns, backend, tmp_path, name, where):
    """The errors say so; some of these calls ended the process."""
    field = cn.NeuralField(None, cn.MLP(2, 1, width=8)).build(backend)
    path = tmp_path / "field.safetensors"
    cn.save(path, field)

    def call():
        return NOT_SYMBOLIC[name](field) if name in NOT_SYMBOLIC else OUTSIDE[name](ns, field, path)

    def batch(key):
        call()
        return cn.uniform(2, key, ns.Float, 8), [ns.Float(0, 1)]

    with pytest.raises(Exception) as caught:
        if where == "frozen function":
            dr.freeze(lambda x: (call(), x * 1)[1])(ns.Float(1, 2))
        elif where == "loop":
            start = ns.UInt32(0), ns.Float(1, 2)
            dr.while_loop(start, lambda i, x: i < 2, lambda i, x: (call(), (i + 1, x))[1], mode="symbolic")
        else:
            other = cn.NeuralField(None, cn.MLP(2, 1, width=8)).build(backend)
            cn.fit(other, batch, 1, progress=False)
    first = caught.value
    while first.__cause__ is not None:
        first = first.__cause__
    recorded = "called inside a symbolic loop" if name in NOT_SYMBOLIC else "called while Dr.Jit records"
    assert isinstance(first, RuntimeError) and str(first).startswith(f"{name}: {recorded}")
