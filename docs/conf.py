"""How the site is built: ``make docs``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scripts"))

import mitsuba  # noqa: E402
from docutils import nodes  # noqa: E402
from docutils.statemachine import StringList  # noqa: E402
from latex2mathml.converter import convert as mathml  # noqa: E402
from pages import GENERATED, diagram, stale, themes  # noqa: E402
from PIL import Image  # noqa: E402
from sphinx.transforms import SphinxTransform  # noqa: E402
from sphinx.util.docutils import SphinxDirective  # noqa: E402

import coopnet  # noqa: E402

mitsuba.set_variant("llvm_ad_rgb")  # classes of coopnet.mitsuba belong to a variant

project = "coopnet"
author = copyright = "The coopnet authors"
release = version = coopnet.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_block"]
myst_heading_anchors = 3
exclude_patterns = ["tutorials"]
suppress_warnings = ["config.cache"]  # sphinx-gallery keeps a function in its configuration

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # methods of plugins have those of Mitsuba
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_maximum_signature_line_length = 88
# `field` in single backquotes is code, in docstrings as in Markdown
default_role = "code"

sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",  # all of them run
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "remove_config_comments": True,
    "image_scrapers": (themes.scrape,),
    "thumbnail_size": themes.CARD,
    "write_computation_times": False,  # each page says its own; the page of all would load scripts from elsewhere
}

html_theme = "furo"
html_title = "coopnet"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e4f", "color-brand-content": "#0b6e4f"},
    "dark_css_variables": {"color-brand-primary": "#5fd3a5", "color-brand-content": "#5fd3a5"},
    "navigation_with_keys": True,
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
html_math_renderer = "mathml"  # below: browsers draw it by themselves, without a network


class Generated(SphinxDirective):
    """What ``scripts/pages`` makes of the code and of results of benchmarks: ```` ```{generated} layers ````."""

    required_arguments = 1
    has_content = False

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        if name not in GENERATED:
            raise self.error(f"generated: {name!r} is not one of {', '.join(GENERATED)}.")
        container = nodes.container(classes=["generated", f"generated-{name.replace('_', '-')}"])
        lines = StringList(GENERATED[name]().splitlines(), source=f"scripts/pages, {name}")
        # sections go to the page, whose table of contents has them; all else stays here
        sections = any(line.startswith("## ") for line in lines)
        self.state.nested_parse(lines, self.content_offset, container, match_titles=sections)
        return container.children if sections else [container]


def inline_math(translator: Any, node: nodes.math) -> None:
    """A formula in a line, as MathML."""
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def block_math(translator: Any, node: nodes.math_block) -> None:
    """A formula by itself."""
    translator.body.append(f'<div class="math">{mathml(node.astext(), "block")}</div>')
    raise nodes.SkipNode


class Flowcharts(SphinxTransform):
    """Blocks of Mermaid become pictures."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        for block in list(self.document.findall(nodes.literal_block)):
            if block.get("language") == "mermaid":
                picture = diagram.svg(block.astext(), "Packages of coopnet, and which of them import which")
                block.replace_self(nodes.raw("", f'<div class="flowchart">{picture}</div>', format="html"))


#: Width over height beyond which a picture is too small to read on a phone: one with several panels in a row, and a
#: plot, whose labels are smaller.
WIDE, WIDE_PLOT = 2.6, 1.7


class Themes(SphinxTransform):
    """Pictures with a version for dark pages, ``X-dark.png``, are shown in that of the page; cards get words.

    On a phone, wide pictures are scrolled (``site.css``).
    """

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        for picture in list(self.document.findall(nodes.image)):
            card = re.search(r"thumb/sphx_glr_(\w+)_thumb", picture["uri"])
            if card:
                script = HERE / "tutorials" / f"{card[1]}.py"
                picture["alt"] = script.read_text(encoding="utf-8").split("\n")[1]
            place = Path(self.env.relfn2path(picture["uri"])[1])
            if place.suffix == ".png" and place.exists() and not card:
                with Image.open(place) as opened:
                    width, height = opened.size
                if width > (WIDE_PLOT if themes.dark(place).exists() else WIDE) * height:
                    picture["classes"].append("wide")
                    if not isinstance(picture.parent, nodes.TextElement):  # a paragraph is what scrolls
                        paragraph = nodes.paragraph()
                        picture.replace_self(paragraph)
                        paragraph += picture
            other = themes.dark(place)
            if other.exists() and not any(c.startswith("only-") for c in picture["classes"]):
                dark = picture.deepcopy()
                dark["uri"] = str(themes.dark(Path(picture["uri"])))
                picture["classes"].append("only-light")
                dark["classes"].append("only-dark")
                picture.parent.insert(picture.parent.index(picture) + 1, dark)


def endings(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Makes reST of what docstrings may be written like: endings behind code, and names of pages.

    reST wants a mark where ```` ``dr.freeze``d ```` goes on, and ``docs/precision.md`` is a link here.
    """

    def marked(match: re.Match[str]) -> str:
        code, ending = match.groups()
        page = re.fullmatch(r"``docs/(\w+)\.md``", code)
        code = f":doc:`{page[1]} </{page[1]}>`" if page else code
        return code + ("\\ " + ending if ending else "")

    # every piece of code is matched, so that what stands between two is taken for none
    code = r"(``(?:[^`\n]|\n(?!\s*\n))+``|:[\w:]+:`[^`\n]+`)([A-Za-z])?"
    lines[:] = re.sub(code, marked, "\n".join(lines)).split("\n")


def other_anchors(app: Any, domain: str, objtype: str, content: nodes.Element) -> None:
    """viewcode's links back name a module by the first of its names that is documented, often as ``coopnet.X``."""
    signature = content.parent[0]
    module, name = signature.get("module") or "", signature.get("fullname")
    if domain == "py" and name and module.startswith("coopnet.") and not module.startswith("coopnet.reference"):
        signature["ids"].append(f"coopnet.{name}")


def before_gallery(app: Any) -> None:
    stale.forget(HERE / "tutorials", HERE / "gallery")


def after_gallery(app: Any) -> None:
    themes.lay_cards(HERE / "gallery" / "images")


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", before_gallery, priority=400)  # sphinx-gallery's has 500
    app.connect("builder-inited", after_gallery, priority=600)
    app.add_directive("generated", Generated)
    app.connect("autodoc-process-docstring", endings)
    app.connect("object-description-transform", other_anchors)
    app.add_transform(Flowcharts)
    app.add_transform(Themes)
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
