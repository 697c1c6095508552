"""Programs on the site's pages run as they stand, but for smaller numbers."""

from __future__ import annotations

import json
import re
import sys

import drjit as dr
import pytest
from support.machines import ROOT

from coopnet import backend as backends

sys.path.insert(0, str(ROOT / "scripts"))

from pages import notebook

DOCS = ROOT / "docs"

NOTEBOOK = json.loads((DOCS / "ten_minutes.ipynb").read_text(encoding="utf-8"))
#: Pages whose blocks are one program, and pages whose blocks are programs of their own.
WHOLE = ["drjit_in_five_minutes"]
EACH = [
    "coming_from/drjit_nn", "coming_from/tiny_cuda_nn", "coming_from/pytorch", "coming_from/slangpy", "faq",
    "your_data", "why_training_fails",
]  # fmt: skip
#: Numbers that would take long.
SMALLER = {
    "steps=2000": "steps=4", ", 2000)": ", 4)",
    "steps=1000": "steps=4", ", 1000)": ", 4)", "steps=300": "steps=2", "(1e-3, 300)": "(1e-3, 2)",
    "(1e-2, 200)": "(1e-2, 2)", "steps=500": "steps=4", ", 500)": ", 4)", "1 << 14": "1 << 8", "range(200)": "range(2)",
    "range(100)": "range(2)", "range(10)": "range(2)", "steps=200": "steps=2", "steps=100": "steps=2",
    "(field, batch, 200": "(field, batch, 2", "SIZE = 256": "SIZE = 16", "batch, 20,": "batch, 2,",
    "n_levels=8, i": "n_levels=2, i", "1 << 12": "1 << 6", "width=64": "width=16",
    "Linear(2, 64)": "Linear(2, 16)", "Linear(64, 64)": "Linear(16, 16)", "Linear(64, 1)": "Linear(16, 1)",
    "1, 64, 2, omega": "1, 8, 1, omega",
    'out_features=1, activation="softplus"': 'out_features=1, width=8, depth=1, activation="softplus"',
    "MLP(out_features=1)": "MLP(out_features=1, width=8, depth=1)", "n_levels=6": "n_levels=2",
    "MLP(out_features=3, o": "MLP(out_features=3, width=8, depth=1, o", "Fourier(32,": "Fourier(4,",
}  # fmt: skip


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)


def cells_of_code():
    return ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def programs():
    yield pytest.param("\n".join(cells_of_code()), id="ten_minutes")  # as its notebook
    for page in WHOLE:
        yield pytest.param("\n".join(blocks(page)), id=page)
    for page in EACH:
        for i, block in enumerate(blocks(page)):
            yield pytest.param(block, id=f"{page}-{i}")


@pytest.mark.parametrize("code", list(programs()))
def test_programs_run(code, backend, tmp_path, monkeypatch):
    if backend == "cuda" and ("TensorXf" in code or "llvm" in code):
        pytest.skip("single precision in cooperative vectors: LLVM only")
    if backend == "llvm" and "drjit.auto" in code and len(backends.available()) > 1:
        pytest.skip("drjit.auto is CUDA here")
    for number, smaller in SMALLER.items():
        code = code.replace(number, smaller)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "<page>", "exec"), {"__name__": "page"})


def test_the_landing_page_keeps_its_word(capsys):
    """In full: as near to the truth, and as unsure outside the data, as it says."""
    (code,) = blocks("index")
    assert "within 2 %" in code and "about 0.05" in code and "over 0.15" in code
    exec(compile(code.replace("(1e-2, 500)", "(1e-2, 500), progress=False"), "<page>", "exec"), {"__name__": "page"})
    truth, field, masks = capsys.readouterr().out.splitlines()
    truth, field, mean, deviation = (
        [float(n) for n in re.findall(r"-?\d+\.\d+", text)] for text in (truth, field, *masks.split("+-"))
    )
    assert truth == pytest.approx([-0.909, 0.909, 0.989], abs=1e-3)
    assert field[:2] == pytest.approx(truth[:2], rel=0.02) and mean[:2] == pytest.approx(truth[:2], rel=0.02)
    assert deviation[:2] == pytest.approx([0.05, 0.05], abs=0.02) and deviation[2] > 0.15 < abs(field[2] - truth[2])


def test_the_page_on_uncertainty_keeps_its_word(capsys):
    """In full: what it prints is what its comments say."""
    code = blocks("uncertainty")[0].replace("batch, 300)", "batch, 300, progress=False)")
    assert "about 0.01 and 0.01; 0.4 and 0.05" in code and "over 0.98" in code
    exec(compile(code, "<page>", "exec"), {"__name__": "page"})
    data, none, area = ([float(n) for n in re.findall(r"\d+\.\d+", v)] for v in capsys.readouterr().out.splitlines())
    assert max(data) < 0.015 and none == pytest.approx([0.4, 0.05], rel=0.15) and area[0] > 0.98


def test_noise_that_varies_is_learned(capsys):
    (code,) = (block for block in blocks("uncertainty") if "gaussian_nll" in block)
    assert "0.9, within 0.02" in code and "below 0.1" in code
    exec(compile(code, "<page>", "exec"), {"__name__": "page"})
    inside, off = (float(n) for n in re.findall(r"\d+\.\d+", capsys.readouterr().out))
    assert abs(inside - 0.9) < 0.02 and off < 0.1


def test_two_passes_of_the_page_on_dropout():
    """What its first program adds up is the gradient of one pass."""
    names: dict = {}
    exec(compile(blocks("dropout")[0], "<page>", "exec"), names)
    field, x, key, truth = (names[name] for name in ("field", "x", "key", "truth"))
    two = [dr.grad(v).numpy() for v in field.values()]
    dr.clear_grad(*field.values())
    dr.backward(dr.mean(dr.square(field(x, key)[0] - truth)))
    for v, found in zip(field.values(), two, strict=True):
        one = dr.grad(v).numpy()
        assert abs(found - one).max() <= 0.02 * abs(one).max()  # on the CPU 0


def test_the_notebook_is_that_of_the_page():
    page = DOCS / "ten_minutes.md"
    assert (DOCS / "ten_minutes.ipynb").read_text(encoding="utf-8") == notebook.written(page), (
        "run python scripts/pages/notebook.py"
    )
    assert "\n".join(c for c in cells_of_code() if c != notebook.PICTURE) == "\n".join(
        block.strip("\n") for block in blocks("ten_minutes")
    )
    assert NOTEBOOK["nbformat"] == 4 and len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    words = "".join("".join(c["source"]) for c in NOTEBOOK["cells"] if c["cell_type"] == "markdown")
    assert "](" not in words and "{download}" not in words  # nothing that leads nowhere without the site


def test_there_are_programs():
    assert all(blocks(page) for page in [*WHOLE, *EACH])


def test_one_place_says_how_to_install():
    """What a release changes: no other page has a command that installs coopnet."""
    command = re.compile(r"pip install [^\n]*(?:coopnet|\.\[)")
    for path in [ROOT / "README.md", *(p for p in DOCS.rglob("*.md") if "gallery" not in p.parts)]:
        text = path.read_text(encoding="utf-8")
        code = re.findall(r"```.*?```|^ {4}\S.*$", text, re.DOTALL | re.MULTILINE)
        assert any(command.search(block) for block in code) == (path == DOCS / "installation.md"), path


def test_messages_that_the_page_on_installation_explains():
    """Clauses of coopnet's own messages stand in the code as the page quotes them."""
    text = (DOCS / "installation.md").read_text(encoding="utf-8")
    source = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "coopnet").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # strings over several lines
    quoted = re.findall(r"^(?:pip: )?`([^`]+)`.*\n: ", text, re.M)
    theirs = ("Fatal Python error", "because these package versions", "RecordThreadState")
    clauses = [
        c for q in quoted if not q.startswith(theirs) for c in re.split(r"[.,;:(){}\d]|'\.\.\.'| before |DRJIT_\w+", q)
    ]
    clauses = [
        c.strip().removeprefix("names ").removeprefix("Jit ")
        for c in clauses
        if len(c.strip()) > 12 and "cuda" not in c
    ]
    assert len(clauses) > 15
    for clause in clauses:
        assert clause in source, clause


def test_every_example_is_described():
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert [p.name for p in (ROOT / "examples").glob("*.py") if f"`{p.name}`" not in text] == []
