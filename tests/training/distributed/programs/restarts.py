"""Trains with a checkpoint, and kills itself at the steps that a file names: torchrun starts all processes again.

Of every line "process step seconds", a process is killed once, so many seconds after that step has begun.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from common import RANK, batch, hashed, make_field, tell

import coopnet as cn

folder = Path(sys.argv[2])
kills = [line.split() for line in (folder / "kills").read_text().splitlines()]


def rate(step):
    for number, (rank, at, seconds) in enumerate(kills):
        done = folder / f"killed-{number}"
        if int(rank) == RANK and int(at) <= step and not done.exists():
            done.touch()
            threading.Timer(float(seconds), os.kill, (os.getpid(), signal.SIGKILL)).start()
    return 1e-2 * 0.99**step


field = make_field()
ema = cn.training.EMA(field, 0.9)
options = dict(checkpoint=folder / "run.safetensors", checkpoint_every=0, resume=True, progress=False)
options |= dict(metric=lambda field: float(cn.io.describe(field)["version"]), metric_every=50, clip_norm=1.0)
result = cn.fit(field, batch, 400, lr=rate, ema=ema, distributed="auto", **options)
tell([result.steps, result.losses[-5:], hashed(field.values()), hashed(ema.average.values()), len(result.metrics)])
