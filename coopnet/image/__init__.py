"""Images as fields: learn one from some of its pixels, draw one at any size, show what came out."""

from .evaluate import pixels, render, render_mc
from .fit_image import ImageFit, fit_image, make_field, training_pixels
from .files import load, psnr, save

__all__ = [
    "ImageFit",
    "fit_image",
    "load",
    "make_field",
    "pixels",
    "psnr",
    "render",
    "render_mc",
    "save",
    "training_pixels",
]
