"""Meshes as fields: learn the signed distance of a mesh, and draw such a field.

=================  ================================================
:mod:`.files`      mesh files
:mod:`.distances`  points around a mesh, and their signed distances
:mod:`.learn`      learning them
:mod:`.view`       pictures of surfaces
=================  ================================================
"""

from .distances import Samples, draw_samples
from .files import Mesh, load
from .learn import MeshFit, fit_mesh, load_surface, make_field
from .view import render

__all__ = [
    "Mesh", "MeshFit", "Samples", "draw_samples", "fit_mesh", "load", "load_surface", "make_field", "render",
]  # fmt: skip
