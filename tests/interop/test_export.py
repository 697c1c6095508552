"""Exported fields, run: C by the system's compiler, and NumPy, against the fields themselves."""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
import runpy
import shutil
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest
from nn.test_contracts import EXAMPLES
from support.exported import (
    DROPOUTS,
    SAMPLES,
    VARIANTS,
    Library,
    agree,
    case,
    evaluated,
    imported,
    make,
    masked,
    run_numpy,
)

import coopnet as cn
from coopnet.interop.export.derivative import with_jacobian
from coopnet.interop.export.export import check_name
from coopnet.interop.export.language import F32, LinearMap, Routine, Var, Vec
from coopnet.interop.export.reserved import reserved
from coopnet.interop.export.weights import WeightFile, fingerprint

TOLERANCE = {"single": 1e-5, "half": 1e-3}
SUFFIX = {"c": ".c", "glsl": ".glsl", "wgsl": ".wgsl", "slang": ".slang", "slang-coopvec": ".slang", "numpy": ".py"}


@pytest.fixture(scope="module", params=["single", "half"])
def exported(request, backend, tmp_path_factory):
    """Every layer's field, exported to C: precision, cases, directory, the library."""
    if backend == "cuda" and request.param == "single":
        pytest.skip("CUDA's cooperative vectors are half precision only")
    directory = tmp_path_factory.mktemp("exported")
    cases = {}
    for name, example in EXAMPLES.items():
        cases[name] = case(make(name, example.size), backend, request.param, example.ids)
        cn.export(cases[name].field, "c", directory / f"{name}.c", **_options(name))
    # what optimization sees, and may warn of, is seen once
    again = request.param == "half" and backend == "llvm"
    library = Library([directory / f"{name}.c" for name in cases], directory, *(["-O0"] if again else []))
    return request.param, cases, directory, library


def _options(name: str) -> dict:
    """Every other field has its weights in the source."""
    return {"name": f"f_{name}", "derivatives": True, "inline": list(EXAMPLES).index(name) % 2 == 1}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("target", ["c", "numpy"])
def test_every_layer_gives_its_values_and_derivatives(exported, name, target):
    precision, cases, directory, library = exported
    c, source = cases[name], directory / f"{name}{SUFFIX[target]}"
    if target == "c":
        weights = None if _options(name)["inline"] else directory / f"{name}.c.weights"
        (y,) = library.run(f"f_{name}", weights, c.x, (len(c.y),))
        both = library.run(f"f_{name}_jacobian", weights, c.x, (len(c.y), len(c.jacobian)))
    else:
        weights = cn.export(c.field, target, source, **_options(name)).weights
        (y,) = run_numpy(source, f"f_{name}", weights, c.x)
        both = run_numpy(source, f"f_{name}_jacobian", weights, c.x)
    agree(y, c.y, TOLERANCE[precision])
    agree(y, c.own, 10 * TOLERANCE[precision])  # as half precision rounds every layer
    agree(both[0], c.y, TOLERANCE[precision])
    assert np.abs(c.jacobian).max() > 0 or name == "Embedding"
    agree(both[1], c.jacobian, TOLERANCE[precision])


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_of_layers(tmp_path, name):
    c = case(VARIANTS[name](), "llvm", "single")
    for target, suffix in SUFFIX.items():
        written = cn.export(c.field, target, tmp_path / f"f{suffix}", derivatives=True, inline=False)
    sizes = len(c.y), len(c.jacobian)
    for y, jacobian in (
        Library([tmp_path / "f.c"], tmp_path, "-O0").run("field_jacobian", written.weights, c.x, sizes),
        run_numpy(tmp_path / "f.py", "field_jacobian", written.weights, c.x),
    ):
        agree(y, c.y, 1e-5)
        agree(jacobian, c.jacobian, 1e-5)


@pytest.mark.parametrize(
    "name", [n for n in EXAMPLES if isinstance(EXAMPLES[n].make(), cn.Encoding) and n != "Identity"]
)
def test_activations_overwrite_what_encodings_give(tmp_path, name):
    field = cn.NeuralField(EXAMPLES[name].make(), cn.Tanh(), in_features=EXAMPLES[name].size).build("llvm")
    source = cn.export(field, "c", tmp_path / "f.c", inline=False).source.read_text()
    assert "tanhf(encoding[" in source and "network[" not in source


def test_the_derivative_of_the_only_coordinate_is_no_factor(tmp_path):
    """It is 1."""
    field = cn.NeuralField(cn.Frequency(2, in_features=1), cn.Tanh()).build("llvm")
    assert " d_phase[0] = 0.5f;" in cn.export(field, "c", tmp_path / "f.c", derivatives=True).source.read_text()


def test_derivatives_of_a_part_of_a_vector():
    """They lie behind those of what comes before the part, three of each entry for three coordinates."""
    x, y = Var("x", F32, 3), Var("y", F32, 4)
    body = [LinearMap(Vec(y, 1, 2), Vec(x, 2, 1), None, None)]
    both = with_jacobian(Routine("f", (x,), (y,), body), "f_jacobian").body
    (moved,) = (s for s in both if isinstance(s, LinearMap) and s.y.array != y)
    assert [(v.start, v.size) for v in (moved.y, moved.x)] == [(3, 6), (6, 3)]


# ---- Dropout -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DROPOUTS)
@pytest.mark.parametrize("target", ["c", "numpy"])
def test_masks_are_equal_to_the_bit(kind, target, tmp_path):
    field, x, key, expected = masked(kind)
    written = cn.export(field, target, tmp_path / f"f{SUFFIX[target]}", name="f", dropout=True)
    if target == "c":
        (y,) = Library([written.source], tmp_path).run("f", written.weights, x, (len(x),), key)
    else:
        (y,) = run_numpy(written.source, "f", written.weights, x, key)
    if kind == "GaussianDropout":
        agree(y, expected, 1e-5)
    else:
        assert len({0.0, float(expected.max())} | set(expected.ravel().tolist())) == 2  # dropped, or scaled
        assert y.tobytes() == expected.tobytes()


def test_derivatives_see_the_same_masks(tmp_path):
    net = cn.MLP(out_features=2, width=24, depth=2, dropout=0.3, activation="tanh")
    field = cn.NeuralField(cn.Frequency(3, in_features=2), net).build("llvm")
    rng = np.random.default_rng(2)
    index = rng.integers(0, 2**32, SAMPLES, np.uint32)
    c = evaluated(field, rng.random((2, SAMPLES)).astype(np.float32), "llvm", cn.Key(7, index, 3))
    key = np.stack(
        [np.full(SAMPLES, 7, np.uint32), np.zeros(SAMPLES, np.uint32), index, np.full(SAMPLES, 3, np.uint32)]
    )
    written = cn.export(field, "c", tmp_path / "f.c", dropout=True, derivatives=True)
    library = Library([written.source], tmp_path)
    y, jacobian = library.run("field_jacobian", written.weights, c.x, (2, 4), key)
    agree(y, c.y, 1e-5)
    agree(jacobian, c.jacobian, 1e-5)


# ---- Files -------------------------------------------------------------------------------------------------


def small(precision: str = "single", **options: object) -> cn.NeuralField:
    options = {"out_features": 1, "width": 8, "depth": 1, "bias": True} | options
    return cn.NeuralField(cn.OneBlob(4, in_features=2), cn.MLP(**options)).build("llvm", precision)


def test_the_file_of_weights_is_what_it_is_documented_to_be(tmp_path):
    field = cn.NeuralField(cn.Grid(2, n_levels=2, base_resolution=4), cn.MLP(out_features=3, width=10, depth=1))
    field = field.build("llvm", "half")
    written = cn.export(field, "glsl", tmp_path / "f.glsl", grids="uint8", inline=False)
    data = written.weights.read_bytes()
    numbers = np.frombuffer(data, "<u4", 14)
    assert data[:8] == b"coopnet\0" and numbers[2] == 1 and numbers[3] * 4 == len(data)
    assert data[16:48] == hashlib.sha256(data[64:]).digest()
    table, start = json.loads(data[64 : 64 + numbers[12]]), int(numbers[13]) * 4
    assert table["field"] == fingerprint(field) and table["field"][:32] in written.source.read_text()
    names = ["encoding.data", "network.layers.0.weights", "network.layers.2.weights"]
    assert [a["name"] for a in table["arrays"]] == names
    assert [a["type"] for a in table["arrays"]] == ["uint8", "float16", "float16"]
    for a in table["arrays"][1:]:
        rows, columns = a["shape"]
        assert (start + a["offset"]) % 64 == 0 and a["stride"] * 2 % 16 == 0
        flat = np.frombuffer(data, a["type"], rows * a["stride"], start + a["offset"])
        assert np.array_equal(flat.reshape(rows, -1)[:, :columns], field.matrix(a["name"]))


def test_every_target_reads_the_same_file(tmp_path):
    files = set()
    for target, suffix in SUFFIX.items():
        written = cn.export(small("half"), target, tmp_path / f"f{suffix}", inline=False)
        files.add(written.weights.read_bytes())
    assert len(files) == 1


def test_files_never_meet(tmp_path):
    """Other targets, precisions and versions beside a program leave its weights alone; the same path replaces them."""
    field, written = small(), {}
    for path, target, precision in [
        ("sdf.py", "numpy", "single"), ("sdf.glsl", "glsl", "half"), ("net.v1", "c", "single"), ("net.v2", "c", "half"),
        ("sdf", "c", "half"),
    ]:  # fmt: skip
        written[path] = cn.export(field, target, tmp_path / path, precision=precision, inline=False)
    files = [path for pair in written.values() for path in pair]
    assert len({*files}) == len(files) == len(list(tmp_path.iterdir())) == 10
    assert written["net.v1"].weights == tmp_path / "net.v1.weights"
    x = np.random.default_rng(0).random((2, SAMPLES))
    before = run_numpy(tmp_path / "sdf.py", "field", written["sdf.py"].weights, x)[0]
    other = small()
    other.set_matrix("layers.0.bias", np.ones(8))
    again = cn.export(other, "numpy", tmp_path / "sdf.py", inline=False)
    assert again == written["sdf.py"] and len(list(tmp_path.iterdir())) == 10
    assert np.abs(run_numpy(tmp_path / "sdf.py", "field", again.weights, x)[0] - before).max() > 1e-3


def test_shapes_are_checked_in_numpy(tmp_path):
    field = small(dropout=0.5)
    for options in ({"dropout": True, "derivatives": True}, {"dropout": True, "inline": False}):
        written = cn.export(field, "numpy", tmp_path / "f.py", name="f", **options)
        module, x, key = imported(written.source), np.zeros((2, 5)), np.zeros((4, 5), np.uint32)
        first = [] if written.weights is None else [module.f_load(written.weights)]
        assert module.f(*first, list(x), list(key)).shape == (1, 5)
        assert module.f(*first, x[:, :0], key[:, :0]).shape == (1, 0)
        functions = [module.f, *([module.f_jacobian] if "derivatives" in options else [])]
        for function in functions:
            for wrong in (x.T, np.zeros((3, 5)), np.zeros((1, 5)), np.zeros(2), 0.5, np.zeros((2, 5, 1))):
                shape = str(np.shape(wrong)).replace("(", r"\(").replace(")", r"\)")
                with pytest.raises(ValueError, match=rf"f: x has the shape {shape}; \(2, samples\) is needed"):
                    function(*first, wrong, key)
            for wrong in (key.T, key[:, :4], key[:, :1], key[:3], key[:, 0]):
                with pytest.raises(ValueError, match=r"f: key has the shape .*; \(4, 5\) is needed"):
                    function(*first, x, wrong)


def test_fingerprints_are_those_of_checkpoints(tmp_path):
    field = small("half")
    cn.save(tmp_path / "f.safetensors", field)
    assert fingerprint(cn.load(tmp_path / "f.safetensors", "llvm", "single")) == fingerprint(field)
    other = cn.load(tmp_path / "f.safetensors", "llvm", "half")
    other.set_matrix("layers.0.bias", np.ones(8))
    assert fingerprint(other) != fingerprint(field)


@pytest.mark.parametrize(
    "width, inside",
    [
        (8, {"c", "glsl", "slang", "numpy", "wgsl"}),
        (16, {"c", "glsl", "numpy", "wgsl"}),
        (28, {"c", "numpy", "wgsl"}),
        (48, set()),
    ],
)
def test_tiny_weights_stand_in_the_source(tmp_path, width, inside):
    field = cn.NeuralField(None, cn.MLP(2, 1, width=width, depth=2)).build("llvm")
    found = {
        t for t in ("c", "glsl", "wgsl", "slang", "numpy") if cn.export(field, t, tmp_path / f"f.{t}").weights is None
    }
    assert found == inside


def test_large_weights_in_the_source_are_warned_of(tmp_path):
    field = cn.NeuralField(None, cn.MLP(2, 3, width=528, depth=2)).build("llvm")
    with pytest.warns(UserWarning, match=r"inline puts \d+ bytes of weights into the source, 3 MiB of text") as said:
        cn.export(field, "c", tmp_path / "f.c", inline=True)
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cn.export(field, "c", tmp_path / "f.c")
        cn.export(field, "c", tmp_path / "f.c", precision="half", inline=True)  # less than 1 MiB


def test_files_of_weights_have_an_end():
    for end in (2**33 - 64, 2**33):
        weights = WeightFile()
        weights.end = end  # of those before
        with pytest.raises(ValueError, match=rf"the weights take {end + 64} bytes; fewer than 2\^33 can be exported"):
            weights.add("one more", np.zeros(16), "single")
    weights.end = 2**33 - 128
    assert weights.add("the last", np.zeros(16), "single").offset == 2**33 - 128


def test_programs_refuse_other_weights(tmp_path):
    field, other = small(), small()
    other.set_matrix("layers.0.bias", np.ones(8))
    written = cn.export(field, "c", tmp_path / "f.c", inline=False)
    cn.export(field, "numpy", tmp_path / "f.py", inline=False)
    library, module = Library([written.source], tmp_path), imported(tmp_path / "f.py")
    wrong = cn.export(other, "c", tmp_path / "g.c", inline=False).weights.read_bytes()
    right = written.weights.read_bytes()
    assert library.functions.field_fits(right, len(right)) == 1
    damaged = [right[:i] + bytes([right[i] ^ 1]) + right[i + 1 :] for i in (0, 4, 8, 20, 50, 60, 70, len(right) - 1)]
    for data in (wrong, right[:-4], *damaged):
        (tmp_path / "bad.weights").write_bytes(data)
        with pytest.raises(ValueError, match="not the weights that belong"):
            module.field_load(tmp_path / "bad.weights")
    assert library.functions.field_fits(wrong, len(wrong)) == 0 and library.functions.field_fits(right, 60) == 0


def test_grids_of_8_bits(tmp_path):
    """Within half a step of the values of every level."""
    grid = cn.HashGrid(2, n_levels=4, base_resolution=4, hashmap_size=2**8, init_scale=1.0)
    field = cn.NeuralField(grid, cn.Linear(-1, 8, bias=False)).build("llvm")
    field.set_matrix("network.weights", np.eye(8))
    x = np.random.default_rng(0).random((2, SAMPLES)).astype(np.float32)
    c = evaluated(field, x, "llvm")
    written = cn.export(field, "c", tmp_path / "f.c", grids="uint8")
    (y,) = Library([written.source], tmp_path).run("field", written.weights, x, (8,))
    assert 1e-4 < np.abs(y - c.y).max() < 1.01 / 255
    y = run_numpy(cn.export(field, "numpy", tmp_path / "f.py", grids="uint8").source, "field", written.weights, x)[0]
    agree(y, run_numpy(tmp_path / "f.py", "field", written.weights, x)[0], 0)
    field["encoding.data"] = field["encoding.data"] * np.nan
    with pytest.raises(ValueError, match=r"encoding: it has parameters that are not finite"):
        cn.export(field, "c", tmp_path / "f.c", grids="uint8")


def test_a_real_hash_grid(tmp_path):
    """16 levels, of which the finest have a million cells a side."""
    field = cn.NeuralField(cn.HashGrid(3, init_scale=1.0), cn.MLP(out_features=4, width=64, depth=2)).build("llvm")
    x = np.random.default_rng(0).random((3, SAMPLES)).astype(np.float32)
    c = evaluated(field, x, "llvm")
    written = cn.export(field, "c", tmp_path / "f.c", derivatives=True)
    library = Library([written.source], tmp_path)
    y, jacobian = library.run("field_jacobian", written.weights, x, (4, 12))
    agree(y, c.y, 1e-5)
    agree(jacobian, c.jacobian, 1e-5)


def test_levels_that_are_not_shown(tmp_path):
    grid = cn.Grid(2, n_levels=4, base_resolution=4, init_scale=1.0, max_level=1)
    field = cn.NeuralField(grid, cn.MLP(out_features=2, width=8, depth=1)).build("llvm")
    c = evaluated(field, np.random.default_rng(0).random((2, SAMPLES)).astype(np.float32), "llvm")
    written = cn.export(field, "c", tmp_path / "f.c")
    agree(Library([written.source], tmp_path).run("field", written.weights, c.x, (2,))[0], c.y, 1e-5)


_HALVES = """
#include "f.c"
void all(const uint32_t *weights, float *one, float *row) {
    for (uint32_t i = 0u; i < 65536u; ++i) one[i] = f_half(weights, i);
    for (uint32_t i = 0u; i < 65536u; i += 8u) f_row(weights + i / 2u, row + i, 8u);
}
"""


@pytest.mark.parametrize("instructions", ["", "f16c", "avx512f"])
def test_all_numbers_in_half_precision(tmp_path, instructions):
    """As NumPy converts them, one by one and by rows, whatever the processor has for it."""
    flags = [f"-m{v}" for v in ("f16c", instructions)] if instructions else []
    if instructions and instructions not in _cpu():
        pytest.skip(f"this processor has no {instructions}")
    grid = cn.Grid(2, n_levels=2, base_resolution=4)
    field = cn.NeuralField(grid, cn.MLP(out_features=3, width=10, depth=1)).build("llvm", "half")
    cn.export(field, "c", tmp_path / "f.c", name="f")
    (tmp_path / "all.c").write_text(_HALVES)
    library = Library([tmp_path / "all.c"], tmp_path, *flags)
    halves = np.arange(65536, dtype=np.uint16)
    one, row = np.zeros((2, 65536), np.float32)
    library.functions.all(*(ctypes.c_void_p(v.ctypes.data) for v in (halves, one, row)))
    with np.errstate(invalid="ignore"):
        expected = halves.view(np.float16).astype(np.float32)
    real = ~np.isnan(expected)
    for found in (one, row):
        assert np.array_equal(found[real].view(np.uint32), expected[real].view(np.uint32))
        assert np.isnan(found[~real]).all()


# ---- Hostile input -----------------------------------------------------------------------------------------

EVIL = '*/ #error x\n"""\n\\\nimport os  # // ??/ \u202e é\0'


@pytest.mark.parametrize("inline", [False, True])
def test_names_and_numbers_stay_in_their_places(tmp_path, inline):
    """Names of heads, prefixes and tables; NaN and infinities among the weights."""
    trunk = cn.Sequential(cn.Linear(3, 8), prefix=EVIL)
    net = cn.Heads(trunk, {EVIL: cn.Linear(-1, 1), "b": cn.Linear(-1, 2)})
    encoding = cn.Composite([cn.Embedding(4, 1, prefix=EVIL), cn.Identity()], [1, 2])
    field = cn.NeuralField(encoding, net).build("llvm")
    field.set_matrix("layers.1.heads.1.bias", [np.nan, -np.inf])
    x = np.ones((3, SAMPLES), np.float32)
    expected = np.stack([v.numpy() for v in field([cn.backend.namespace("llvm").Float(v) for v in x])])
    for target, suffix in SUFFIX.items():
        written = cn.export(field, target, tmp_path / f"f{suffix}", inline=inline and target != "slang-coopvec")
        text = written.source.read_text()
        assert text.isascii() and "#error" not in text
        for line in text.splitlines():
            assert "*/" not in line.replace(" */", "") and not line.endswith("\\") and "??/" not in line
    (y,) = Library([tmp_path / "f.c"], tmp_path).run("field", written.weights if not inline else None, x, (3,))
    assert np.array_equal(y[1:], expected[1:], equal_nan=True)
    agree(y[:1], expected[:1], 1e-5)
    (y,) = run_numpy(tmp_path / "f.py", "field", written.weights if not inline else None, x)
    assert np.array_equal(y[1:], expected[1:], equal_nan=True)


def test_coordinates_that_are_not_finite(tmp_path):
    """Read nothing outside the tables, and give NaN."""
    for encoding in (cn.HashGrid(2, n_levels=4), cn.Permutohedral(2, n_levels=4), cn.OneBlob(4, in_features=2)):
        field = cn.NeuralField(encoding, cn.Linear(-1, 1)).build("llvm")
        written = cn.export(field, "c", tmp_path / "f.c", derivatives=True)
        x = np.array([[np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9, -5.0], [0.5] * 7], np.float32)
        flags = ["-fsanitize=undefined,float-cast-overflow", "-fno-sanitize-recover=all"]
        y = Library([written.source], tmp_path, *flags).run("field", written.weights, x, (1,))[0][0]
        assert np.isnan(y[:3]).all() or isinstance(encoding, cn.OneBlob)
        assert np.isfinite(y[3:]).all()
        numpy = cn.export(field, "numpy", tmp_path / "f.py")
        with warnings.catch_warnings(), np.errstate(all="raise"):
            warnings.simplefilter("error")
            z = run_numpy(numpy.source, "field", numpy.weights, x)[0][0]
        assert np.isnan(z[:3]).all() or isinstance(encoding, cn.OneBlob)


@pytest.mark.parametrize("target", SUFFIX)
def test_names_of_placeholders_are_names(tmp_path, target):
    """Texts of the sources have words in capitals, which a function may be called, too."""
    field, texts = small("half"), {}
    for name in ("sdf", "PASSED", "GIVEN", "HEAD", "NAME", "UPPER", "KIND"):
        text = cn.export(field, target, tmp_path / "f", name=name, inline=False).source.read_text()
        texts[name] = text.replace(name, "sdf").replace("SDF", "sdf")
    assert len({*texts.values()}) == 1


class Own(cn.Module):
    """Somebody's layer."""

    DRJIT_STRUCT: dict = {}

    def __call__(self, x, key=None):
        return x * 2


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"target": "hlsl"}, ValueError, "export: target is 'hlsl'; accepted are 'c', 'glsl', 'wgsl', 'slang'"),
        ({"precision": "double"}, ValueError, "export: precision is 'double'; accepted"),
        ({"grids": "int4"}, ValueError, "export: grids is 'int4'; accepted are 'auto', 'half', 'single', 'uint8'"),
        ({"name": "a b"}, ValueError, "export: name is 'a b'; a name of letters, digits and single underscores"),
        ({"name": "x; }"}, ValueError, "export: name is"),
        ({"name": "float"}, ValueError, "export: name is 'float'"),
        ({"name": "a__b"}, ValueError, "export: name is"),
        ({"name": 3}, ValueError, "export: name is 3"),
        ({"inline": 1}, ValueError, "export: inline is 1; True, False or None is needed"),
        ({"dropout": 1}, ValueError, "export: dropout is 1; True or False is needed"),
        ({"dropout": True}, ValueError, "export: dropout is True, but the field has no dropout"),
        ({"grids": "uint8"}, ValueError, "export: grids is 'uint8', but the field has no grids; leave it out"),
        ({"target": "slang-coopvec", "precision": "single"}, ValueError, "cooperative vectors have half precision"),
        ({"target": "slang-coopvec", "inline": True}, ValueError, "reads weights from a buffer"),
        ({"path": "f.weights"}, ValueError, "but .weights is the suffix of files of weights"),
        ({"path": 3}, TypeError, "export: path is a int"),
        ({"path": "missing/f.c"}, FileNotFoundError, "missing"),
        ({"field": small}, TypeError, "export: field is a function; a NeuralField or a material is needed"),
        ({"field": cn.NeuralField(None, cn.MLP(2, 1))}, ValueError, "export: the field is not built yet"),
        ({"field": ("layer", Own())}, TypeError, r"export: network.layers.1 is a .*Own, which cannot be exported"),
        ({"field": ("layer", cn.LeakyReLU(1e300))}, ValueError, "network.layers.1: the constant 1e\\+300 is too large"),
        ({"field": ("large", None), "precision": "half"}, ValueError, "network.layers.0.weights has numbers too large"),
    ],
)  # fmt: skip
def test_what_is_refused_writes_nothing(tmp_path, monkeypatch, options, error, match):
    monkeypatch.chdir(tmp_path)
    options = {"target": "c", "path": "f.c", "field": small()} | options
    if isinstance(options["field"], tuple):
        kind, layer = options["field"]
        net = cn.Sequential(cn.Linear(2, 2), cn.ReLU() if layer is None else layer)
        options["field"] = cn.NeuralField(None, net).build("llvm")
        if kind == "large":
            options["field"].set_matrix("layers.0.weights", np.full((2, 2), 1e6))
    with pytest.raises(error, match=match):
        cn.export(**options)
    assert list(tmp_path.iterdir()) == []


def test_schedules_are_exported_as_they_are_now(tmp_path):
    ns = cn.backend.namespace("llvm")
    field = small(dropout=0.5)
    layer = next(m for m in field.network.layers if isinstance(m, cn.Dropout))
    layer.p = ns.Float(0.25)
    assert "16384" in cn.export(field, "c", tmp_path / "f.c", dropout=True).source.read_text()
    layer.rate.value = ns.Float(0.25, 0.5)
    with pytest.raises(ValueError, match=r"network.layers.2: p has 2 entries, one for each sample; one is needed"):
        cn.export(field, "c", tmp_path / "f.c", dropout=True)


#: Some of every language and header.
NAMES = """
fmaf powf sqrtl tan tanl sincosf lgamma_r lgammaf_r exp10 fmaximum_numf f32addf64 HUGE_VAL HUGE_VALF NAN INFINITY M_PI
M_2_SQRTPI FP_INFINITE MATH_ERRNO math_errhandling UINT32_C INT_FAST8_MAX SIZE_MAX uint_least16_t double_t max_align_t
strdup strtold mempcpy memccpy wcslen offsetof NULL labs div index j0 y1f signgam
co_await char8_t nullptr alignas and_eq wchar_t typeof_unqual
exp2 hypot fmax sinh printf mat2x2 ivec4 f16vec2 dmat3x4 external superp texelFetch texelFetchOffset sampler2DRect
usamplerCubeArray image2DMSArray textureGatherOffsets imageAtomicCompSwap subgroupInclusiveAdd packSnorm2x16 dFdxFine
gl_Position atomic_uint interpolateAtSample bitfieldReverse umulExtended roundEven noise3 matrixCompMult
vec3f mat4x3h texture_storage_2d_array sampler_comparison arrayLength bitcast countOneBits quantizeToF16
workgroupBarrier pack4x8unorm atomicCompareExchangeWeak const_assert override binding_array
float4x4 min16float3 RWStructuredBuffer ByteAddressBuffer SamplerState asfloat mad lerp rcp saturate clip ddx_coarse
InterlockedAdd WaveActiveSum bwd_diff CoopVec cbuffer groupshared associatedtype
isinf modf ref get set self use mut final macro meta enable require trait range open bytes len lambda np match case
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_names_that_mean_something_are_refused(name):
    with pytest.raises(ValueError, match="export: name is"):
        check_name(name)


@pytest.mark.parametrize("name", ["numpy", "wave"])
def test_python_files_hide_no_module(tmp_path, llvm, name):
    field = cn.NeuralField(None, cn.MLP(2, 1, width=8, depth=1)).build("llvm")
    with pytest.raises(ValueError, match=rf"name is '{name}', and a Python file of that name would hide"):
        cn.export(field, "numpy", tmp_path / "a.py", name=name)
    assert cn.export(field, "glsl", tmp_path / "a.glsl", name=name)


def test_the_rest_of_the_names_is_free():
    free = "field sdf albedo radiance net_v2 image_field texture_albedo waves wavelet color_map color2 tangent integers"
    for name in [*free.split(), "m_net"]:
        check_name(name)


COMPILERS = [
    ["cc", "-std=c99"], ["cc", "-std=gnu17", "-D_GNU_SOURCE"], ["c++", "-std=gnu++17"],
]  # fmt: skip


@pytest.mark.parametrize("compiler", COMPILERS, ids=" ".join)
def test_what_compilers_refuse_is_refused(compiler, tmp_path):
    """Every name in the headers, as a function beside them."""
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"there is no {compiler[0]}")
    written = cn.export(small("half"), "c", tmp_path / "f.c")
    kind = "c++" if compiler[0] == "c++" else "c"
    command = [*compiler, "-x", kind, "-mf16c"] if "f16c" in _cpu() else [*compiler, "-x", kind]
    lines = written.source.read_text().splitlines()
    head = [line for line in lines if line.startswith(("#include <", "#ifdef __F16C__", "#endif"))]
    head = head[: head.index("#include <immintrin.h>") + 2]  # and no further #endif
    (tmp_path / "head.h").write_text("\n".join(head) + "\n")
    seen = [_run([*command, "-E", flag, str(tmp_path / "head.h")]).stdout for flag in ("-dD", "-dM")]
    words = sorted(set(re.findall(r"\b[A-Za-z]\w*", "".join(seen))))
    names = [w for w in words if re.fullmatch(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*", w)]
    assert len(names) > 300
    c = 'extern "C" ' if kind == "c++" else ""
    functions = [f"{c}void {name}(const float x[1], float y[1]) {{ y[0] = x[0]; }}" for name in names]
    (tmp_path / "all.c").write_text("\n".join([*head, *functions, ""]))
    said = _run([*command, "-fsyntax-only", str(tmp_path / "all.c")]).stderr
    bad = {int(n) for n in re.findall(r"all\.c:(\d+):\d+: (?:error|warning)", said)}
    refused = {name for line, name in enumerate(names, len(head) + 1) if line in bad}
    assert len(refused) > 150 and "fmaf" in refused
    assert [name for name in sorted(refused) if not reserved(name)] == []


def _run(command: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "tanh", "softplus", "silu"])
def test_nan_stays_nan(tmp_path, activation):
    """As in the field; NumPy's and C's maximum of NaN and 0 is 0."""
    layer = cn.MLP(2, 1, width=8, depth=1, activation=activation, bias=True)
    field = cn.NeuralField(None, layer).build("llvm", seed=1)
    x = [np.array([np.nan, 0.3], np.float32), np.array([0.0, 0.5], np.float32)]
    ns = cn.backend.namespace("llvm")
    expected = np.isnan(field([ns.Float(v) for v in x])[0].numpy())
    written = cn.export(field, "numpy", tmp_path / "f.py", inline=True, derivatives=True)
    program = runpy.run_path(str(written.source))
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error")
        y, jacobian = program["field_jacobian"](np.stack(x))
        assert np.array_equal(y, program["field"](np.stack(x)), equal_nan=True)
        program["field"](np.float32([[3e38, -np.inf], [3e38, 0]]))  # overflows
        assert np.geterr()["over"] == "warn"
    assert np.array_equal(np.isnan(np.ravel(y)), expected) and np.isfinite(jacobian[:, 1]).all()


def test_far_from_the_unit_square(tmp_path):
    field = cn.NeuralField(cn.HashGrid(2, n_levels=4, hashmap_size=2**10), cn.MLP(-1, 1, width=8, depth=1))
    field = field.build("llvm", seed=1)
    x = np.array([[1000.3, -999.7], [0.3, 1000.1]], np.float32)
    ns = cn.backend.namespace("llvm")
    expected = field([ns.Float(v) for v in x])[0].numpy()
    written = cn.export(field, "numpy", tmp_path / "f.py", inline=True)
    y = np.ravel(runpy.run_path(str(written.source))["field"](x))
    np.testing.assert_allclose(y, expected, atol=1e-5 * np.abs(expected).max())
