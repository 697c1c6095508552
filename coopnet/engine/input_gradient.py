"""The gradient of a network's output with respect to its input, where nobody is going to differentiate it.

One vector goes back through the layers instead of a tangent forward for every coordinate. Bundles remain for gradients
that are differentiated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr

from ..jit.constants import vector
from ..jit.masks import unmasked
from ..random.key import Key
from .evaluate import situation_of
from .multipliers import copying
from .network_op import Plan, in_room
from .ops import Op, multiplied, pullback
from .situation import Situation
from .store import slopes
from .strategies import SLOPES, choose, worth_copies


def input_gradient(ops: Sequence[Op], x: Any, key: Key | None) -> tuple[Any, list] | None:
    """The output of ``ops`` and the gradient of its only component, or ``None`` where tangents are faster.

    :data:`~.strategies.SLOPES` tells where.

    Args:
        ops: a network with one output.
        x: its input, a ``CoopVec`` or :class:`~coopnet.jit.kinds.UnpackedVector`.
    """
    # nobody wants gradients: of weights, there may be some that are not asked for now
    s = situation_of(ops, [x])._replace(weights=False)
    with unmasked(x.type):
        way, _ = choose(SLOPES, s)
        if way in ("between kernels", "kernels"):
            found = slopes(Plan(ops, s.network.buffers, s._replace(inputs=True)), x, key)
            if found is not None:
                return found
            way, _ = choose(SLOPES, s._replace(room=False))
        return _in_kernel(ops, x, key, s) if way == "kernel" else None


def _in_kernel(ops: Sequence[Op], x: Any, key: Key | None, s: Situation) -> tuple[Any, list]:
    if worth_copies(s):
        own = s.network.layers
        copies = copying(own, [True] * len(own), [True] * len(own))
        ops = ops if copies is None else multiplied(ops, copies)
    tape = in_room(ops, [x], key)
    one = dr.full(x.type, 1, s.samples)  # a lane for each sample: dropout would take one lane for one sample
    dx = pullback(tape, [vector([one], list(x))], key, True, lambda *_: None)
    assert dx is not None
    return tape.y[0], list(dx[0])
