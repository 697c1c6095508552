"""Exchanges, ends, and says which communicators are left when Python ends."""

import atexit


def left():
    from torch.distributed import distributed_c10d as c10d

    common.tell(len([group for group in c10d._world.pg_map if group is not c10d.GroupMember.WORLD]))


atexit.register(left)  # functions registered later come earlier: those of coopnet, too

import common  # noqa: E402

import coopnet as cn  # noqa: E402

group = cn.training.TorchGroup(common.BACKEND)
for step in range(20):
    group.gather(("step", step))
