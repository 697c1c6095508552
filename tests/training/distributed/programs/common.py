"""What the programs share: a field and a batch for it, and a way to tell what came of it."""

import hashlib
import json
import os
import sys

if sys.argv[1] == "cuda" and not sys.argv[0].endswith("shared_gpu.py"):  # a GPU each, before Dr.Jit is imported
    local, visible = os.environ.get("LOCAL_RANK", "0"), os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[int(local)] if visible else local

import drjit as dr
import numpy as np

import coopnet as cn

RANK = int(os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
BACKEND = sys.argv[1]
ns = cn.backend.namespace(BACKEND)
dr.set_thread_count(1)  # processes side by side share the processors


def make_field(grid=True, seed=0, width=16):
    encoding = cn.HashGrid(2, n_levels=4, hashmap_size=2**10) if grid else cn.Sinusoidal(3, in_features=2)
    return cn.NeuralField(encoding, cn.MLP(out_features=2, width=width, depth=2, dropout=0.1)).build(BACKEND, seed=seed)


def batch(key):
    x, y = cn.uniform(2, key, ns.Float, 501)
    return [x, y], [dr.sin(6 * x) * y, x * y]


@cn.training.by_index(501)
def indexed(key):
    x, y = cn.uniform(2, key, ns.Float)
    return [x, y], [dr.sin(6 * x) * y, x * y]


def hashed(values):
    return hashlib.sha256(b"".join(np.array(dr.detach(v).numpy()).tobytes() for v in values)).hexdigest()


def tell(value):
    # in one piece: lines of several processes would run into each other
    os.write(1, (json.dumps([RANK, value]) + "\n").encode())
