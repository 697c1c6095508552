"""How the site is built: ``make docs``."""

from pathlib import Path

import coopnet

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
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["tutorials"]

sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",  # all of them run
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
}

html_theme = "furo"
html_title = "coopnet"
html_static_path = [name for name in ["_static"] if Path(__file__).with_name(name).is_dir()]
