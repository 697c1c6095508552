"""Images as fields: learn an image from some of its pixels, draw it at any size, compare the results.

================  =========================================
:mod:`.files`     image files, and their quality
:mod:`.learn`     learning an image from some of its pixels
:mod:`.folder`    fits whose results go to a folder
:mod:`.evaluate`  drawing fields
:mod:`.plots`     figures
================  =========================================
"""

from .evaluate import pixels, render, render_mc
from .files import load, psnr, save
from .learn import ImageFit, fit_image, make_field, training_pixels

__all__ = [
    "ImageFit", "fit_image", "load", "make_field", "pixels", "psnr", "render", "render_mc", "save", "training_pixels",
]  # fmt: skip
