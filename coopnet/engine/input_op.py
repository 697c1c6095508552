"""The gradient with respect to the input on a CPU, if the weights need none."""

from __future__ import annotations

from ..jit.lanes import live, only
from .network_op import NetworkOp


class InputOp(NetworkOp):
    """Goes back with the multipliers of weight gradients. Dr.Jit's own derivative reads matrices against their order.

    The surrounding kernel contains both passes.
    """

    def pull_back(self, dys: list, samples: int) -> tuple[list, list | None]:
        # masked lanes have cotangents of 0, but their derivatives may be infinite
        return only(live(dys), self.plan.pullback(self.taped(), dys, self.key, lambda *_: None)), None
