"""Examples of the documentation run as they stand, but smaller, and what it names exists."""

from __future__ import annotations

import re

import pytest
from support.machines import ONE_THREAD, ROOT, python

#: Files that commands in the documentation write.
WRITTEN = ["benchmarks/results/threads-llvm.json"]


#: What the pages take for granted, by page and by the name with which a block begins.
BEFORE = {
    "rendering": {
        "with": """
import coopnet as cn, drjit as dr
from drjit.llvm.ad import Array3f, Float, UInt32
field = cn.NeuralField(None, cn.MLP(1, 1, width=8, depth=1)).build("llvm")
dr.enable_grad(field["network.weights"])
state = UInt32(0), dr.linspace(Float, 0, 1, 100)
more = lambda i, s: i < 4
def turn(i, s):
    dr.backward(field([s])[0])
    return i + 1, s
""",
        "traced": """
assert dr.any(dr.grad(field["network.weights"]) != 0)
sdf = lambda p: dr.norm(p) - 1
o, d = Array3f(dr.linspace(Float, -2, 2, 8), 0, -3), Array3f(0, 0, 1)
""",
        "grid": """
assert dr.allclose(traced.t[3], 2, atol=0.1) and dr.any(hit) and seen[4] > 0.99 and seen[0] < 0.01
field = cn.NeuralField(None, cn.MLP(3, 4, width=8, depth=1)).build("llvm")
o, d, key = Array3f(0.5, 0.5, -1), Array3f(0, 0, 1), cn.Key(1)
""",
    },
    "mitsuba": {
        "wood": """
import numpy as np
mi.util.write_bitmap("wood.png", mi.TensorXf(np.random.default_rng(0).random((8, 8, 3), np.float32)), write_async=False)
""",
        "params": """
view = mi.ScalarTransform4f().look_at([0, -4, 3], [0, 0, 0], [0, 0, 1])
net = cn.MLP(-1, 3, width=8, depth=1, dropout=0.1, output_activation="sigmoid")
texture = cn.mitsuba.NeuralTexture(cn.mitsuba.build(cn.NeuralField(cn.Sinusoidal(2, in_features=2), net)))
scene = mi.load_dict({
    "type": "scene", "integrator": {"type": "path", "max_depth": 3}, "light": {"type": "constant"},
    "sensor": {"type": "perspective", "to_world": view, "film": {"type": "hdrfilm", "width": 6, "height": 6}},
    "ground": {"type": "rectangle", "bsdf": {"type": "diffuse", "reflectance": texture}},
    "sphere": {"type": "sphere", "radius": 0.5, "bsdf": found.bsdf},
})
target, decoder = mi.render(scene, spp=4), found.bsdf.decoder
ray = mi.Ray3f([0, 0, 3], [0, 0, -1])
small = cn.mitsuba.build(cn.NeuralField(None, cn.MLP(16, 3, width=8, depth=1)))
""",
    },
}

#: Pages whose blocks go on where those of another page end.
CONTINUED = {"mitsuba": ["neural_path", "mitsuba_light"]}

#: Numbers of the pages that would take long.
SMALLER = {
    "steps=2000": "steps=2, samples=64", "base_resolution=257": "base_resolution=9", "range(100)": "range(2)",
    "1000, ": "2, progress=False, ", '"max_depth": 6': '"max_depth": 3', "300, samples=2**12": "2, samples=64",
    "n_features_per_level=8": "n_features_per_level=2", "Sinusoidal(4,": "Sinusoidal(1,",
    "RadianceCache(scene)": "RadianceCache(scene, small)",
    "fit_bsdf(None,": "fit_bsdf(cn.NeuralField(None, cn.MLP(-1, 3, width=8, depth=1), in_features=10),",
    "samples=32": "samples=2", "spp=64": "spp=1", "MLP(-1, 3, output": "MLP(-1, 3, width=8, depth=1, output",
    "n_levels=6)": "n_levels=2)", "MLP(-1, 1, output": "MLP(-1, 1, width=8, depth=1, output",
    '{"type": "perspective"}': '{"type": "perspective", "film": {"type": "hdrfilm", "width": 6, "height": 6}}',
}  # fmt: skip


@pytest.mark.parametrize("page", BEFORE)
def test_pages(page, tmp_path):
    if page == "mitsuba":
        pytest.importorskip("mitsuba")
    files = [ROOT / "docs" / f"{name}.md" for name in [page, *CONTINUED.get(page, [])]]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    blocks, before = re.findall(r"```python\n(.*?)```", text, re.DOTALL), dict(BEFORE[page])
    code = "".join(before.pop(re.match(r"\w*", block)[0], "") + block for block in blocks)
    for number, smaller in SMALLER.items() if page == "mitsuba" else ():
        assert number in code, number
        code = code.replace(number, smaller)
    # the program is one of LLVM's, and a grid lives on a GPU where there is one
    code = code.replace("lower=0, upper=1)", 'lower=0, upper=1, backend="llvm")')
    done = python("-c", ONE_THREAD + code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(blocks) >= 4 and not before


def test_example(tmp_path):
    """It needs Dr.Jit and NumPy alone: packages of extras are missing where it runs.

    Its figures are compared where it is on another page (``test_the_landing_page_keeps_its_word``).
    """
    for package in ("tqdm", "safetensors", "PIL"):
        (tmp_path / f"{package}.py").write_text("raise ImportError")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert f"```python\n{code}```" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    done = python("-c", f"import sys\nsys.path.insert(0, '.')\n{ONE_THREAD}{code}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fit: step 500 of 500, loss " in done.stderr  # in place of a bar
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["truth", "field", "dropout"]


def test_files_and_tests_that_the_documentation_names():
    texts = {p.name: p.read_text(encoding="utf-8") for p in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
    tests = [p for p in (ROOT / "tests").rglob("*.py")]
    functions = {name for p in tests for name in re.findall(r"^def (test_\w+)", p.read_text(encoding="utf-8"), re.M)}
    known = functions | {p.stem for p in tests}
    places = r"(?:benchmarks|coopnet|docs|examples|scripts|tests)"
    files, names = 0, 0
    for name, text in texts.items():
        for path in re.findall(rf"\b{places}/[\w./-]*\.(?:py|md|json)\b", text):
            assert (ROOT / path).exists() or path in WRITTEN, (name, path)
            files += 1
        for test in re.findall(r"\btest_\w+", text):
            assert test in known, (name, test)
            names += 1
    assert files > 30 and names > 30  # it does find them
