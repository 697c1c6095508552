"""Trains in a group of MPI's; then one process fails."""

from common import BACKEND, batch, hashed, make_field, tell

import coopnet as cn

group = cn.training.MPIGroup(chunks=2)
field = make_field()
result = cn.fit(field, batch, 10, lr=1e-2, progress=False, distributed=group)
tell([result.losses, hashed(field.values())])


def rate(step):
    if step == 5 and group.rank == 1:
        raise ValueError("no such step")
    return 1e-2


try:
    cn.fit(make_field(), batch, 100, lr=rate, progress=False, distributed=group)
except (RuntimeError, ValueError) as error:
    tell(f"{BACKEND}: {error}")
