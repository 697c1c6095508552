"""A field of positions whose box lies somewhere in the world."""

from __future__ import annotations

from typing import Any

import drjit as dr
import mitsuba as mi
import numpy as np

from ... import bounds
from ...checks import ensure
from ...jit.unpacked import Traversed
from ...random.key import Key
from ...render.box import slab
from ..fields import check_field, sizes
from ..transforms import applied, rows

#: The attribute ``field`` of plugins whose attribute ``placed`` is a :class:`PlacedField`.
of_placed = property(lambda self: self.placed.field, doc="The field.")


class PlacedField(Traversed):
    """``field`` in a box of the world.

    The field's own box is that of its ``bounds``, or the unit cube.

    Args:
        field: a built field of ``inputs`` coordinates (one of the numbers given) with one of the numbers of
            ``outputs``. Of six inputs, the last three are a direction, in the world.
        to_world: an affine transform that maps the unit cube to the box in the world. With ``None``, the field is
            evaluated at positions of the world as they are.
        where: opens error messages.
    """

    def __init__(self, field: Any, to_world: Any, where: str, inputs: tuple[int, ...], outputs: tuple[int, ...]):
        self.count = check_field(field, where, inputs, outputs)
        self.field, self.sizes = field, sizes(field)
        low, high = (side[:3] for side in bounds.corners(field.bounds, field.in_features))
        box = np.eye(4)
        box[:3, :3], box[:3, 3] = np.diag(high - low), low
        matrix = box
        if to_world is not None:
            matrix = np.eye(4)
            matrix[:3] = rows(where, "to_world", to_world, "an affine mi.ScalarTransform4f", 4)
            full = np.linalg.matrix_rank(matrix[:3, :3]) == 3
            ensure(full, f"{where}: to_world makes the box flat; a transform that can be inverted is needed.")
        self.matrix = matrix
        inverse = np.linalg.inv(matrix)
        self._local, self._coordinates = inverse[:3].tolist(), (box @ inverse)[:3].tolist()
        self._box = box[:3].tolist()

    def __call__(self, p: Any, direction: Any, key: Key | None, active: Any) -> tuple[list, Any]:
        """The outputs at ``p`` in the world, and the mask of active points in the box: only those are evaluated.

        ``direction`` is for fields of six inputs.
        """
        inside = mi.Bool(active)
        for x in applied(self._local, p):
            inside &= (x >= 0) & (x <= 1)
        return self._asked(applied(self._coordinates, p), direction, key, inside), inside

    def in_unit_cube(self, u: list, direction: Any = None) -> list:
        """The outputs at points of the unit cube, which the box is mapped to; without derivatives."""
        with dr.suspend_grad():
            return self._asked(applied(self._box, u), direction, None, True)

    def _asked(self, point: list, direction: Any, key: Key | None, active: Any) -> list:
        if self.field.in_features == 6:
            point = [*point, *direction]
        return [mi.Float(v) for v in self.field(point, key, active)]

    def crossed(self, ray: Any) -> tuple:
        """Mask of rays that meet the box, and where they enter and leave it."""
        o = applied(self._local, ray.o)
        d = [x * ray.d.x + y * ray.d.y + z * ray.d.z for x, y, z, _ in self._local]
        near, far = slab([0] * 3, [1] * 3, o, d)
        return near <= far, near, far

    def transform(self) -> list[list[float]]:
        """``to_world``, as a matrix."""
        return self.matrix.tolist()

    def bounding_box(self) -> Any:
        """The smallest box along the axes that holds it."""
        corners = np.array([[x, y, z, 1] for x in (0, 1) for y in (0, 1) for z in (0, 1)]) @ self.matrix.T
        return mi.ScalarBoundingBox3f(corners[:, :3].min(0).tolist(), corners[:, :3].max(0).tolist())
