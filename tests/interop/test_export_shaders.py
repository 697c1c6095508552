"""Exported shaders, run: WGSL by wgpu and a browser, GLSL by Vulkan, Slang by slangpy.

``make test-export`` installs what they need; without that they are skipped.
"""

from __future__ import annotations

import numpy as np
import pytest
from nn.test_contracts import EXAMPLES
from nn.test_every_coordinate import GRIDS, WAVES, points
from support.exported import DROPOUTS, VARIANTS, agree, case, evaluated, make, masked, words
from support.shaders import Chromium, Slang, SlangVulkan, Vulkan, Wgpu

import coopnet as cn
from coopnet.nn.lattice import Lattice

TOLERANCE = {"single": 1e-5, "half": 1e-3}
RUNNERS = {
    "wgpu": (Wgpu, "wgsl"),
    "chromium": (Chromium, "wgsl"),
    "vulkan": (Vulkan, "glsl"),
    "slang": (Slang, "slang"),
    "slang, vulkan": (SlangVulkan, "slang"),
}


@pytest.fixture(scope="module", params=RUNNERS)
def runner(request):
    """What runs sources, and their target."""
    kind, target = RUNNERS[request.param]
    if reason := kind.missing():
        pytest.skip(reason)
    made = kind()
    yield made, target
    if hasattr(made, "close"):
        made.close()


@pytest.fixture(scope="module", params=["single", "half"])
def precision(request):
    return request.param


@pytest.fixture(scope="module")
def cases(precision):
    """Every layer's field on the CPU."""
    return {name: case(make(name, e.size), "llvm", precision, e.ids) for name, e in EXAMPLES.items()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_layer_gives_its_values_and_derivatives(runner, precision, cases, name, tmp_path):
    made, target = runner
    c, inline = cases[name], list(EXAMPLES).index(name) % 2 == 0
    if isinstance(made, SlangVulkan) and inline:
        inline = None  # only few: see Slang.tiny
    written = cn.export(c.field, target, tmp_path / "f.txt", name="f", derivatives=True, inline=inline)
    calls = [("f", (len(c.y),)), ("f_jacobian", (len(c.y), len(c.jacobian)))]
    y, again, jacobian = made.run(written.source.read_text(), calls, words(written), c.x)
    agree(y, c.y, TOLERANCE[precision])
    agree(again, c.y, TOLERANCE[precision])
    agree(jacobian, c.jacobian, TOLERANCE[precision])


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_of_layers(runner, name, tmp_path):
    made, target = runner
    c = case(VARIANTS[name](), "llvm", "single")
    written = cn.export(c.field, target, tmp_path / "f.txt", name="f", derivatives=True)
    calls = [("f_jacobian", (len(c.y), len(c.jacobian)))]
    y, jacobian = made.run(written.source.read_text(), calls, words(written), c.x)
    # where fma() rounds twice, as in software, so do places in the cells of a fine grid
    tolerance = 1e-4 if isinstance(c.field.encoding, Lattice) else 1e-5
    agree(y, c.y, tolerance)
    agree(jacobian, c.jacobian, tolerance)


@pytest.mark.parametrize("name", EXAMPLES)
def test_cooperative_vectors_give_values_in_half_precision(name, tmp_path):
    if reason := Slang.missing():
        pytest.skip(reason)
    c = case(make(name, EXAMPLES[name].size), "llvm", "half", EXAMPLES[name].ids)
    written = cn.export(c.field, "slang-coopvec", tmp_path / "f.slang", name="f", derivatives=True)
    calls = [("f", (len(c.y),)), ("f_jacobian", (len(c.y), len(c.jacobian)))]
    y, again, jacobian = Slang.run(written.source.read_text(), calls, words(written), c.x)
    agree(y, c.own, 1e-2)
    agree(y, c.y, 1e-2)
    agree(again, c.y, 1e-2)
    assert np.quantile(np.abs(jacobian - c.jacobian), 0.9) < 1e-2 * max(1, np.abs(c.jacobian).max())  # but for kinks


@pytest.mark.parametrize("kind", DROPOUTS)
def test_masks_are_equal_to_the_bit(runner, kind, tmp_path):
    made, target = runner
    field, x, key, expected = masked(kind)
    written = cn.export(field, target, tmp_path / "f.txt", name="f", dropout=True)
    (y,) = made.run(written.source.read_text(), [("f", (len(expected),))], words(written), x, key)
    agree(y, expected, 0 if kind != "GaussianDropout" else 1e-5)


@pytest.mark.parametrize("name", [*WAVES, *GRIDS])
def test_waves_and_grids_at_every_coordinate(runner, name, tmp_path):
    """Kinks, huge and tiny ones; what is not finite, compilers of shaders may take for anything."""
    made, target = runner
    layer = (GRIDS[name] if name in GRIDS else WAVES[name][0])()
    field = cn.NeuralField(layer, cn.Identity(), in_features=2 if name in GRIDS else 1).build("llvm", seed=2)
    x = points([])
    # between, devices whose fma() rounds twice find other cells of the same size as the rounding
    x = x[:, (np.isfinite(x) & ((np.abs(x) < 2**18) | (np.abs(x) >= 2**31) | (name in WAVES))).all(axis=0)]
    c = evaluated(field, x[: field.in_features], "llvm")
    written = cn.export(field, target, tmp_path / "f.txt", name="f", derivatives=True, inline=False)
    calls = [("f_jacobian", (len(c.y), len(c.jacobian)))]
    y, jacobian = made.run(written.source.read_text(), calls, words(written), c.x)
    tolerance = 1e-6 if name in WAVES else 1e-4
    np.testing.assert_allclose(y, c.y, rtol=0, atol=tolerance)
    scale = np.maximum(1, np.abs(c.jacobian).max(axis=1, keepdims=True))
    np.testing.assert_allclose(jacobian / scale, c.jacobian / scale, rtol=0, atol=3 * tolerance)


#: A function beside the field that says whether the weights fit it.
CHECKS = {
    "glsl": "void check(float x[2], out float y[1]) { y[0] = f_fits() ? 1.0 : 0.0; }",
    "wgsl": "fn check(x: array<f32, 2>, y: ptr<function, array<f32, 1>>) { (*y)[0] = select(0.0, 1.0, f_fits()); }",
    "slang": "void check(ByteAddressBuffer words, float x[2], out float y[1]) { y[0] = f_fits(words) ? 1.0f : 0.0f; }",
}


@pytest.mark.parametrize("own", [False, True])
def test_sources_know_their_weights(runner, own, tmp_path):
    made, target = runner
    if own and target != "glsl":
        pytest.skip("words are read by one's own macro in GLSL")
    field = cn.NeuralField(None, cn.MLP(2, 3, width=16, depth=1)).build("llvm")
    written = cn.export(field, target, tmp_path / "f.txt", name="f", inline=False)
    source, right = written.source.read_text() + CHECKS[target], words(written)
    if own:
        source = (
            f"layout(std430, binding = 0) readonly buffer Own {{ uint own[]; }};\n#define F_WORD(i) own[i]\n{source}"
        )
    wrong = right.copy()
    wrong[11] ^= 1 << 31  # of the checksum
    newer = right.copy()
    newer[2] += 1
    given = {"the file": right, "a longer buffer": np.append(right, right[:64]), "another": wrong, "newer": newer}
    if not own:  # whose length is not known
        given |= {"a part": right[:-16], "the head": right[:16], "little": right[:1]}
    fits = []
    for name, some in given.items():
        if made.run(source, [("f", (3,)), ("check", (1,))], some, np.zeros((2, 40), np.float32))[1].all():
            fits.append(name)
    assert fits == ["the file", "a longer buffer"]
