"""Every measured constant of the engine: its unit, what it limits, and the benchmark that it was measured with.

Those that decide between ways are compared in :mod:`.strategies` alone. The others limit how much is
done at a time. They are read from this module at every use, so that tests can set them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ..jit import registers

T = TypeVar("T")


def by_lanes(entries: Mapping[int, T], lanes: int) -> T:
    """The entry for a CPU whose vectors have so many ``lanes``: that of the widest vectors no wider than those."""
    return entries[max((n for n in entries if n <= lanes), default=min(entries))]


# ---- Wide layers on CPUs: products between kernels (benchmarks/networks.py) --------------------------------------

#: Components, by the lanes that a CPU stores at a time: the narrower side of a network's largest matrix from which on
#: its layers are products between kernels. First where all functions are linear in pieces, then where others are, which
#: take time on vectors that do not fit into registers. Those for 8 lanes are from benchmarks/own_steps.py on a Zen 4.
WIDE_TRAINED = {8: (48, 48), 16: (160, 96)}
#: The same where no gradient of weights is wanted.
WIDE_EVALUATED = {8: (96, 64), 16: (160, 96)}
#: Components from which on a layer of such a network is worth a product of its own.
WIDE_LAYER = 32
#: Samples from which on several kernels in place of one are worth their launches.
WIDE_SAMPLES = 1 << 11
#: Bytes of vectors in memory at a time where no gradient is wanted.
WIDE_BYTES = 1 << 28

# ---- Products in kernels on CPUs (benchmarks/networks.py) --------------------------------------------------------

#: Bytes of a line of the first cache, and sets in it.
CACHE_LINE_BYTES, CACHE_SETS = 64, 64
#: By the lanes of a CPU's vectors: sets of the first cache that a column of a matrix shares from which on blocks of
#: rows are faster, and rows of such a block at most. Outputs of 16 lanes need twice the room of those of 8.
ROW_BLOCKS = {8: (4, 32), 16: (16, 40)}
#: Lanes of vectors from which on matrices in blocks of rows are faster than panels.
WIDE_LANES = 16
#: Bytes beyond which a matrix is copied to panels: those of a first cache.
PANELS_BYTES = 48 << 10
#: Rows of a matrix in panels at least, and of a panel at most.
PANELS_ROWS, PANEL_ROWS = 16, 64
#: By the lanes of a CPU's vectors: multiplications of a sample's vectors, there and back, up to which the entries of
#: matrices stand in the code of a recorded function one by one. 3,000 compile in a second, and three times as many in
#: 20. With 8 lanes, code is twice as long for each multiplication, and more than 1,000 gain nothing.
UNROLLED = {8: 1000, 16: 3000}
#: Samples from which on that pays.
UNROLLED_SAMPLES = 1 << 11
#: By the lanes of a CPU's vectors: outputs at a time that are summed up in registers.
UNROLLED_ROWS = {8: 12, 16: 16}
#: Samples from which on evaluating a network is worth copying its matrices.
COPIES_SAMPLES = 512

# ---- Kernels on GPUs (benchmarks/training_steps.py, benchmarks/derivatives.py) ------------------------------------

#: Components of a vector beyond which Dr.Jit gives a GPU's threads all registers, and one vector fills most of them.
LONG_VECTOR = registers.LONG
#: Components of vectors beyond which a kernel that goes forward and back at once is slower than two, and takes minutes
#: to compile.
FORWARD_AND_BACK = 96
#: Components of vectors up to which outer products compile in a second or two.
OUTER_PRODUCTS = 32
#: Samples, in all runs of a function, up to which compiling outer products takes longer than they would save: without
#: dropout, and with it, whose masks are compiled once more with each of them.
COMPILED_SAMPLES, COMPILED_SAMPLES_MASKED = 1 << 32, 1 << 34
#: Samples that take as long to store and to read back as calling a library takes.
LIBRARY_CALL_SAMPLES = 1 << 19
#: Samples from which on several kernels in place of one are worth their launches.
LAUNCHES_SAMPLES = 1 << 16

# ---- Gradient banks (benchmarks/outer_products.py, benchmarks/scopes.py) ------------------------------------------

#: Samples up to which one bank is enough, and tracing more outside ``dr.freeze`` costs more than they save.
ONE_BANK_SAMPLES = 1024
#: Samples that share a bank in batches of up to ``BANK_SAMPLES * BANKS_SMALL``: the fewer, the fewer threads wait for
#: an address (benchmarks/whole_jobs.py), and the errors of several banks average out.
BANK_SAMPLES, BANKS_SMALL = 256, 128
#: Samples that share a bank in larger batches, where there are enough banks for that anyway.
BANK_SAMPLES_LARGE = 4096
#: Banks at most: beyond, tracing them costs more than they save.
BANKS = 512
#: Banks at most where each turn of a loop is differentiated separately, so that turns share them.
BANKS_TURNS = 1024
#: Turns that a symbolic loop is taken to have: its gradients add up, and their number is unknown while tracing.
LOOP_TURNS = 8
#: Sets of banks that uses of a network in one loop take in turns: sums get shorter, and nothing more is traced.
BANK_SETS = 2
#: Samples beyond which half-precision sums in the one buffer of the built-in way may stall.
STALL_SAMPLES = 1 << 15

# ---- Products over samples (benchmarks/products.py) ---------------------------------------------------------------

#: Bytes of activations that are kept for the backward pass, and of those that are spilled at a time.
KEPT_BYTES = 2 << 30
#: Samples that one partial product sums over. One long sum would drift: equal increments all round the same way.
PIECE_SAMPLES = 1024
#: Multiplications in all products of a network for which a frozen step is cut in two around a library's products.
CUT_MULTIPLICATIONS = 1 << 26
#: Samples that BLAS sums up in single precision at a time, and tensor cores.
BLAS_SAMPLES, TENSOR_CORE_SAMPLES = 2048, 1 << 13
#: Multiplications of a slice below which another thread is not worth starting.
SLICE_MULTIPLICATIONS = 1 << 23
#: Bytes of slices' products beyond which layers are multiplied one after the other.
SLICES_BYTES = 1 << 28
#: Products with fewer columns take as long as with this number: BLAS copies the other matrix first in any case.
BLAS_COLUMNS = 16
