"""What a run shows as it goes: a bar that counts steps, by tqdm, and beside it the last loss and metric."""

from __future__ import annotations

import math
import time
from typing import Any

from . import limits


def progress_bar(name: str, **options: Any) -> Any:
    """A bar that counts steps, for the function ``name``."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        cure = "run pip install 'coopnet[train]', or pass progress=False"
        raise ImportError(f"{name}: progress=True needs tqdm; {cure}.") from None
    return tqdm(unit="step", dynamic_ncols=True, **options)


class Progress:
    """The bar of one run, or none: then nothing is shown."""

    def __init__(self, bar: Any = None):
        self.bar, self.shown = bar, -math.inf  # and when it last said the loss

    def count(self, steps: int) -> None:
        if self.bar is not None:
            self.bar.update(steps)

    def say(self, run: Any, due: bool) -> None:
        """Say the last loss of ``run``: at first, when ``due``, and twice a second, for it waits for the device."""
        if self.bar is None or not (due or time.monotonic() - self.shown >= limits.PROGRESS_SECONDS):
            return
        self.shown = time.monotonic()
        loss = run.step.losses.numpy()[(run.result.steps - 1) % limits.WINDOW_STEPS]
        metric = f", metric {run.result.metrics[-1][1]:.4g}" if run.result.metrics else ""
        self.bar.set_postfix_str(f"loss {loss:.3g}{metric}")

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
