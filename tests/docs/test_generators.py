"""What the site is made of by scripts: tables, drawings, and what checks it."""

from __future__ import annotations

import re
import sys

import pytest
from support.machines import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import check_links
from pages import GENERATED, diagram

DOCS = ROOT / "docs"
WITHOUT_TYPER = [n for n in GENERATED if n not in ("usage", "commands", "layers")]


def test_pages_ask_for_what_there_is_and_for_all_of_it():
    pages = [p for p in DOCS.rglob("*") if p.suffix in (".md", ".rst") and "gallery" not in p.parts]
    text = "\n".join(p.read_text(encoding="utf-8") for p in pages)
    asked = set(re.findall(r"(?:\{generated\}|generated::) (\w+)", text))
    assert asked == set(GENERATED)


@pytest.mark.parametrize("name", WITHOUT_TYPER)
def test_tables_have_equally_many_cells(name):
    text = GENERATED[name]()
    for table in re.findall(r"(?:^\|.*\n?)+", text, re.M):
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table.strip().splitlines()}
        assert len(cells) == 1, table
    assert not re.search(r"\b(None|nan|inf)\b", text)


def test_every_extra_that_is_not_for_development_is_in_the_table():
    text = (
        (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("optional-dependencies]")[2].partition("\n[")[0]
    )
    for extra in set(re.findall(r"^(\w+) = ", text, re.M)) - {"dev", "docs", "export", "mutants"}:
        assert f'"coopnet[{extra}]"' in GENERATED["extras"]()


def test_rows_where_a_peer_is_faster_are_all_there():
    from pages import performance

    for name, value in (("networks-llvm", "wall_ms"), ("networks-cuda", "kernel_ms")):
        text = performance.behind(name, value)
        rows = [float(r) for r in re.findall(r"([\d.]+)× \|$", text, re.M)]
        slower = [r for r in performance.ratios(name, value) if r["ratio"] < 0.97]
        assert len(rows) == len(slower) > 0 and rows == sorted(rows)
        assert {r["peer"] for r in slower} <= {"drjit-coop", "drjit-tensor", "torch", "torch-compile"}


def test_every_result_names_its_machine_and_script():
    from pages import performance

    rows = performance.sources().splitlines()[2:]
    assert len(rows) == len(list(performance.RESULTS.glob("*.json"))) > 30
    assert all(re.search(r"Dr\.Jit 1\.5.*; 20\d\d-\d\d-\d\d \| `[\w/]+\.py` \|$", row) for row in rows)


def test_commands_are_those_of_the_application():
    pytest.importorskip("typer")
    from pages import command_line

    text = command_line.commands()
    assert "Commands:" in command_line.usage()
    assert {"info", "fit", "render"} <= set(command_line.names())
    assert all(f"## coopnet {name}\n" in text for name in command_line.names())
    assert "--mc-samples" in text and not re.search(r"\x1b|[ \t]$", text, re.M)
    assert max(map(len, text.splitlines())) <= command_line.WIDTH


def test_flowcharts_are_drawn():
    picture = diagram.svg("flowchart TD\n    a --> b\n    b --> c\n    a --> c\n", "letters")
    assert picture.count("<rect") == 3 and picture.count("marker-end") == 3
    assert diagram.depths(diagram.edges("a --> b\nb --> c\na --> c")) == {"a": 0, "b": 1, "c": 2}
    with pytest.raises(ValueError, match="'a --- b' is no arrow"):
        diagram.edges("a --- b")
    with pytest.raises(ValueError, match="circle"):
        diagram.depths([("x", "a"), ("a", "b"), ("b", "a")])


def test_boxes_of_the_house_do_not_overlap():
    text = re.search(r"```mermaid\n(.*?)```", (DOCS / "architecture.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    boxes = re.findall(r'<rect x="([\d.-]+)" y="([\d.-]+)"', diagram.svg(text, "rooms"))
    places = [(float(x), float(y)) for x, y in boxes]
    for i, (x, y) in enumerate(places):
        assert x >= 0 and y >= 0
        for a, b in places[:i]:
            assert abs(x - a) >= diagram.WIDTH or abs(y - b) >= diagram.HEIGHT


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(
        '<a id="here"></a><a href="#here">1</a><a href="#gone">2</a><a href="sub/other.html#x">3</a>'
        '<a href="missing.html">4</a><a href="https://example.org/a">5</a><a href="https://nonsense">6</a>'
        '<img alt="a" src="https://example.org/picture.png"><a href="../out.html">7</a><a href="sub/">8</a>'
    )
    (tmp_path / "sub" / "other.html").write_text('<p id="x"><a href="../index.html#here">back</a>')
    (tmp_path / "sub" / "index.html").write_text("")
    found = check_links.faults(tmp_path)
    assert [line.split(": ")[1] for line in found] == [
        "#gone", "missing.html", "https://nonsense", "https://example.org/picture.png", "../out.html",
    ]  # fmt: skip


def test_pictures_without_words_are_found(tmp_path):
    (tmp_path / "a.png").touch()
    (tmp_path / "index.html").write_text('<img src="a.png" alt="a ball"><img src="a.png" alt=" "><img src="a.png">')
    assert check_links.faults(tmp_path) == ["index.html: a.png: no alternative text"] * 2


def test_stale_tutorials_are_those_whose_library_has_changed(tmp_path, monkeypatch):
    """A comment or docstring, or a package that the script never names, makes nothing stale."""
    from pages import stale

    library, tutorials, gallery = (tmp_path / name for name in ("coopnet", "tutorials", "gallery"))
    for place, text in (
        ("__init__.py", "x = 1\n"), ("mitsuba/__init__.py", "y = 1\n"), ("cli.py", "z = 1\n"),
    ):  # fmt: skip
        (library / place).parent.mkdir(parents=True, exist_ok=True)
        (library / place).write_text(text)
    tutorials.mkdir()
    (tutorials / "plot_01.py").write_text("import coopnet\n")
    (tutorials / "plot_02.py").write_text("import coopnet, mitsuba\n")
    monkeypatch.setattr(stale, "ROOT", tmp_path)
    monkeypatch.setattr(stale, "__file__", str(tmp_path / "stale.py"))
    (tmp_path / "themes.py").write_text("")

    def ran():
        stale.code.cache_clear()
        names = stale.forget(tutorials, gallery)
        assert all((gallery / f"{n}.py.md5").exists() != (n in names) for n in ("plot_01", "plot_02"))
        for name in ("plot_01", "plot_02"):
            (gallery / f"{name}.py.md5").touch()  # as sphinx-gallery does after a run
        return names

    gallery.mkdir()
    for name in ("plot_01", "plot_02"):
        (gallery / f"{name}.py.md5").touch()
    assert ran() == ["plot_01", "plot_02"] and ran() == []
    (library / "__init__.py").write_text('"""Words."""\n\nx = 1  # more words\n')
    (library / "cli.py").write_text("z = 2\n")
    assert ran() == []
    (library / "mitsuba" / "__init__.py").write_text("y = 2\n")
    assert ran() == ["plot_02"]
    (library / "__init__.py").write_text("x = 2\n")
    assert ran() == ["plot_01", "plot_02"]
