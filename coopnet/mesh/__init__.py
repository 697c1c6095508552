"""Meshes as fields: learn the signed distance of a mesh, draw such a field, and make a mesh of it.

=================  ================================================
:mod:`.files`      mesh files
:mod:`.distances`  points around a mesh, and their signed distances
:mod:`.learn`      learning them
:mod:`.view`       pictures of surfaces
:mod:`.triangles`  surfaces as triangles
=================  ================================================
"""

from .distances import Samples, draw_samples
from .files import Mesh, load, save
from .learn import MeshFit, fit_mesh, load_surface, make_field
from .triangles import extract
from .view import render

__all__ = [
    "Mesh", "MeshFit", "Samples", "draw_samples", "extract", "fit_mesh", "load", "load_surface", "make_field", "render",
    "save",
]  # fmt: skip
