"""Calls of a PyTorch module with dropout are counted, and a call that is computed again gets the same masks."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from ..checks import ensure

if TYPE_CHECKING:
    import torch

#: Largest number of calls that are remembered.
REMEMBERED = 4096


class Calls:
    """The counted calls that may be computed again: ``torch.utils.checkpoint`` calls functions a second time.

    In the backward pass, a call is recognized by its input, of which a fingerprint is kept. Copies of a module remember
    no calls.

    Args:
        matter: does the module have dropouts?
    """

    def __init__(self, matter: bool):
        self._matter = matter
        self._known: deque[_Known] = deque(maxlen=REMEMBERED)

    def __reduce__(self) -> tuple:
        return Calls, (self._matter,)

    def counted(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """The number of the call at ``x``: ``step``, which is increased by one, or the number that it had the first
        time.

        In the backward pass, raises ``RuntimeError`` if no call, or several, had this input.
        """
        import torch

        if torch._C._current_graph_task_id() != -1:
            return self._repeated(x) if self._matter else step.clone()
        # a tensor, so that Python does not wait for the GPU, and a copy, for the backward pass
        number = step.clone()
        step += 1
        if self._matter and _repeatable():
            for call in [k for k in self._known if k.used]:
                self._known.remove(call)
            self._known.append(_Known(_fingerprint(x), number))
        return number

    def over(self, number: torch.Tensor | None) -> None:
        """The call of this ``number`` has been differentiated."""
        for call in [k for k in self._known if k.number is number]:
            call.used = True

    def _repeated(self, x: torch.Tensor) -> torch.Tensor:
        import torch

        fingerprint, device = _fingerprint(x), x.device
        prints = [k.fingerprint.to(device) for k in self._known]
        same = (torch.stack(prints) == fingerprint).tolist() if prints else []
        calls = [k for k, equal in zip(self._known, same, strict=True) if equal]
        calls = [k for k in calls if not k.used] or calls
        count = f"{len(calls)} calls" if calls else "no call"
        problem = (
            f"torch.Module: dropouts are computed again in the backward pass, as by torch.utils.checkpoint, but {count}"
        )
        advice = "give each call a key of its own, module(x, coopnet.Key(seed, step=i))"
        ensure(len(calls) == 1, f"{problem} had this input, so that their masks are not known; {advice}.", RuntimeError)
        calls[0].used = True
        return calls[0].number


class _Known:
    def __init__(self, fingerprint: torch.Tensor, number: torch.Tensor):
        self.fingerprint, self.number, self.used = fingerprint, number, False


def _repeatable() -> bool:
    """May the call be computed again? ``torch.utils.checkpoint`` turns gradients off, or hooks into saved tensors."""
    import torch

    hooks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return not torch.is_grad_enabled() or hooks is None or hooks(True) is not None


def _fingerprint(x: torch.Tensor) -> torch.Tensor:
    """A number of 64 bits for the numbers in ``x``."""
    import torch

    bits = x.detach().to(torch.float32).contiguous().view(-1).view(torch.int32).to(torch.int64)
    mixed = (bits + torch.arange(bits.numel(), device=x.device) * 0x1E3779B97F4A7C15) * 0x3F58476D1CE4E5B9
    return ((mixed ^ (mixed >> 29)) * 0x14D049BB133111EB).sum()
