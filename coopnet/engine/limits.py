"""Every measured constant of the engine: its unit, what it limits, and the benchmark that measured it.

:mod:`.strategies` compares the constants that decide between strategies. The others limit how much is done at a time.
All are read from this module at every use, so that tests can set them. Strategies of matrices are cached: call
``strategies.strategy_of.cache_clear()`` after setting one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TypeVar

from ..jit import registers

T = TypeVar("T")


def by_lanes(entries: Mapping[int, T], lanes: int) -> T:
    """The entry for a CPU whose vectors have so many ``lanes``: the one with the largest key up to ``lanes``."""
    return entries[max((n for n in entries if n <= lanes), default=min(entries))]


# ---- Wide layers on CPUs: products between kernels (benchmarks/networks.py) --------------------------------------

#: Components, by the lanes that a CPU stores at a time. Layers are products between kernels if a matrix of the network
#: has at least so many rows and columns. The first number is for piecewise linear activations, the second for others,
#: which are slow on vectors that exceed the registers.
WIDE_TRAINED = {8: (48, 48), 16: (72, 72)}
#: The same if the caller of a frozen function multiplies over samples by a library, as :func:`coopnet.fit` does.
WIDE_FITTED = {8: (72, 56), 16: (160, 96)}
#: The same if weights need no gradient.
WIDE_EVALUATED = {8: (96, 64), 16: (160, 96)}
#: Fewest components of a layer for which such a product pays.
WIDE_LAYER = 32
#: Fewest samples for which several kernels instead of one pay.
WIDE_SAMPLES = 1 << 11
#: Bytes of vectors in memory at a time if no gradient is needed.
WIDE_BYTES = 1 << 28

# ---- Products in kernels on CPUs (benchmarks/networks.py) --------------------------------------------------------

#: Bytes of a line of the first-level cache, and number of its sets.
CACHE_LINE_BYTES, CACHE_SETS = 64, 64
#: By the lanes of a CPU's vectors. First number: blocks of rows are faster if the entries of a column fall into at most
#: so many sets of the first-level cache. Second: the most rows of a block.
ROW_BLOCKS = {8: (4, 32), 16: (16, 40)}
#: Fewest lanes for which blocks of rows are faster than panels.
WIDE_LANES = 16
#: Bytes of a first-level cache. Larger matrices are copied to panels.
PANELS_BYTES = 48 << 10
#: Fewest rows of a matrix in panels, and most rows of a panel.
PANELS_ROWS, PANEL_ROWS = 16, 64
#: By the lanes of a CPU's vectors: most multiplications for a sample in a network whose matrices are unrolled in
#: recorded functions, if it is evaluated, and, forward and back together, if it is differentiated. The first number is
#: for piecewise linear activations. Some thousands compile in a second. Longer code gains nothing, or takes too long.
UNROLLED_EVALUATED = {8: (12_000, 12_000), 16: (40_000, 40_000)}
UNROLLED_TRAINED = {8: (20_000, 12_000), 16: (20_000, 20_000)}
#: Fewest samples for which unrolling pays, and fewest in all runs of a function together, where their number is known.
UNROLLED_SAMPLES, UNROLLED_RUNS = 1 << 11, 1 << 25
#: By the lanes of a CPU's vectors: outputs that are summed in registers at a time.
UNROLLED_ROWS = {8: 12, 16: 16}
#: Most bytes that a thread holds where its lanes sum up gradients. They are part of its stack, which has 8 MiB on
#: Linux, and as little as 512 KiB elsewhere.
LANE_BYTES = 1 << 20 if sys.platform == "linux" else 256 << 10
#: Fewest lanes of a CPU's vectors, and fewest samples, for which this is faster than products
#: (benchmarks/own_steps.py). With 8 lanes, it is no faster at most widths.
LANE_WIDTH, LANE_SUM_SAMPLES = 16, 1 << 13
#: Most lanes among which the samples of a batch are divided.
LANES = 1024
#: Fewest samples of a lane.
LANE_TURNS = 64
#: Samples of which a lane keeps activations at a time.
LANE_SAMPLES = 8
#: Fewest samples for which copying a network's matrices pays.
COPIES_SAMPLES = 512

# ---- Kernels on GPUs (benchmarks/training_steps.py, benchmarks/input_gradient.py) ---------------------------------

#: For longer vectors, Dr.Jit lets a GPU's threads use all registers, and one vector fills most of them.
LONG_VECTOR = registers.LONG
#: For longer vectors, a few kernels forward and back are faster than one that computes tangents.
TANGENT_VECTOR = 96
#: Most bytes of the matrices of one kernel if activations are kept. The second number is for networks with dropout.
KERNEL_WEIGHT_BYTES = (104 << 10, 44 << 10)
#: Most layers of a network whose activations are evaluated again in the backward pass. The number of evaluations grows
#: with the square of the number of layers.
EVALUATED_AGAIN = 6
#: Longest vectors whose outer products compile in a second or two.
OUTER_PRODUCTS = 32
#: Longest vectors whose outer products are worth compiling in a function of unknown runs. The second number is for
#: networks with dropout.
BANK_VECTOR = (96, 64)
#: The same for networks in which dropout multiplies elements by numbers of their own. With 64 elements, OptiX compiled
#: a kernel for both passes for minutes.
FACTOR_VECTOR = 32
#: Samples in all runs of a function together. With fewer, compiling outer products takes longer than they save. The
#: second number is for networks with dropout, which compile for longer.
COMPILED_SAMPLES = (1 << 34, 3 << 33)
#: Storing and reading so many samples takes as long as calling a library between two recorded functions
#: (benchmarks/whole_jobs.py).
LIBRARY_CALL_SAMPLES = 1 << 21
#: Fewest samples for which several kernels instead of one pay.
LAUNCHES_SAMPLES = 1 << 16

# ---- Gradient banks (benchmarks/outer_products.py, benchmarks/scopes.py) ------------------------------------------

#: Up to so many samples, one bank is enough. Beyond, tracing banks outside ``dr.freeze`` costs more than they save.
ONE_BANK_SAMPLES = 1024
#: Samples per bank in batches of up to ``BANK_SAMPLES * BANKS_SMALL``. With fewer, fewer threads wait for the same
#: address (benchmarks/whole_jobs.py), and the errors of several banks average out.
BANK_SAMPLES, BANKS_SMALL = 256, 128
#: Samples per bank in larger batches, which have enough banks anyway.
BANK_SAMPLES_LARGE = 4096
#: Most banks: tracing more costs more than they save.
BANKS = 512
#: Most banks in loops whose iterations are differentiated separately, and share the banks.
BANKS_TURNS = 1024
#: Assumed iterations of a symbolic loop, whose gradients add up. While tracing, the true number is unknown.
LOOP_TURNS = 8
#: Sets of banks. Uses of a network in a loop take them in turns: sums get shorter, and no more code is traced.
BANK_SETS = 2
#: With more samples, half-precision sums in the single buffer of the strategy "builtin" may stall.
STALL_SAMPLES = 1 << 15

# ---- Products over samples (benchmarks/products.py) ---------------------------------------------------------------

#: Most bytes of activations that are kept for the backward pass, or spilled at a time. On a GPU, it is this share of
#: its memory if that is more, since pieces of a batch leave no products to a library in a frozen function.
KEPT_BYTES, KEPT_SHARE = 2 << 30, 1 / 8
#: Samples of a partial product. One long sum would drift, because equal increments are all rounded the same way.
PIECE_SAMPLES = 1024
#: Longest vectors of which a GPU's rows hold two. For longer ones, products are not bound by memory.
PAIRED_VECTOR = 256
#: Fewest multiplications in all products of a network for which a frozen step is cut in two around a library's call.
CUT_MULTIPLICATIONS = 1 << 26
#: Samples that BLAS, and tensor cores, sum in single precision at a time.
BLAS_SAMPLES, TENSOR_CORE_SAMPLES = 2048, 1 << 13
#: Fewest multiplications for which another thread pays.
SLICE_MULTIPLICATIONS = 1 << 23
#: With more bytes of partial products, layers are multiplied one after the other.
SLICES_BYTES = 1 << 28
#: Products with fewer columns take as long as with this many, because BLAS copies the other matrix first.
BLAS_COLUMNS = 16
