"""A process that hangs or is killed in the middle of a run; another tells the error it has."""

import os
import signal
import sys
import time

from common import BACKEND, RANK, batch, make_field, tell

import coopnet as cn

group = cn.training.TorchGroup(BACKEND, timeout=3)
how = {"hangs": lambda: time.sleep(6), "killed": lambda: os.kill(os.getpid(), signal.SIGKILL)}


def rate(step):
    if step == 20 and RANK == 1:
        how[sys.argv[2]]()
    return 1e-2


try:
    cn.fit(make_field(), batch, 1000, lr=rate, progress=False, distributed=group)
except RuntimeError as error:
    if RANK == 0:
        tell(f"RuntimeError: {error}")
os._exit(0)
