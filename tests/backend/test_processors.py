"""The same numbers from whatever processor kernels are compiled for."""

import ast
from pathlib import Path

import pytest
from support.machines import ROOT, run

RUN = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import conftest  # sets the target
import drjit as dr
import coopnet as cn
from drjit.llvm.ad import Float

def batch(key):
    x, y = cn.uniform(2, key, Float, 1000)
    return [x, y], [dr.sin(7 * x) * y]

net = cn.MLP(out_features=1, width=24, depth=2, activation="silu", dropout=0.2, bias=True)
for encoding in (cn.Sinusoidal(4, in_features=2), cn.HashGrid(2, n_levels=3, base_resolution=4)):
    field = cn.NeuralField(encoding, net).build("llvm", seed=1)
    print([v.hex() for v in cn.fit(field, batch, 5, lr=1e-2, seed=3, progress=False).losses])
"""


def losses(target):
    done = run(RUN.format(tests=str(ROOT / "tests")), COOPNET_TARGET=target)
    assert done.returncode == 0, done.stderr
    return [[float.fromhex(v) for v in ast.literal_eval(line)] for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_training_is_the_same(backend):
    """Masks, samples and the first loss to the bit; later ones as sums over samples in another order round."""
    if backend == "cuda":
        pytest.skip("about processors")
    info = Path("/proc/cpuinfo")
    wide = info.exists() and "avx512vl" in info.read_text()
    narrow, other = losses("haswell:8"), losses("skylake-avx512:16" if wide else "")
    assert len(narrow) == 2
    for a, b in zip(narrow, other, strict=True):
        assert a[0] == b[0] and a == pytest.approx(b, rel=1e-5)
