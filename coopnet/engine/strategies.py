"""The ways that the engine has, and when it takes which: one ordered table for each question.

The first row counts whose condition holds. :func:`coopnet.engine.evaluate`, :func:`coopnet.engine.input_gradient`,
training and ``field.explain`` read these tables, and nothing else compares a size with a constant to choose a way. The
documentation prints them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import drjit as dr

from . import limits
from .modes import PATHS
from .situation import Situation


class Row(NamedTuple):
    """A way, when it is taken, and why. A row without a way is an impossible situation, and ``why`` is the error."""

    way: str | None
    when: Callable[[Any], bool]
    why: str


def choose(table: Sequence[Row], s: Any) -> tuple[str, str]:
    """The way that ``table`` has for the situation ``s``, and why.

    Raises:
        RuntimeError: the situation is impossible.
    """
    for way, when, why in table:
        if when(s):
            if way is None:
                raise RuntimeError(why.format(s=s))
            return way, why
    raise AssertionError("the last row of a table is for all situations")


def _always(s: Any) -> bool:
    return True


# ---- How are weight gradients computed? --------------------------------------------------------------------------

_ASKED = "gradient_path() asks for it"
_ORDER = "deterministic() asks for a fixed order of sums"
_TRACING = "outside dr.freeze, tracing many banks would cost more than it saves"
_LAYOUT = (
    "needs to know the packed layout of every matrix, but the network has a drjit.nn.Linear, or a layer wider than "
    "2047; use coopnet.Linear and narrower layers."
)


def long_vectors(s: Situation) -> bool:
    """Do two vectors of a layer not fit into the registers of one kernel, forward and back?"""
    return s.network.width > (limits.LONG_VECTOR if s.network.dropout else limits.FORWARD_AND_BACK)


def few_runs(s: Situation) -> bool:
    """Does compiling outer products take longer than they run?"""
    bound = limits.COMPILED_SAMPLES_MASKED if s.network.dropout else limits.COMPILED_SAMPLES
    return s.network.width > limits.OUTER_PRODUCTS and 0 < s.runs * (s.terms + limits.LIBRARY_CALL_SAMPLES) < bound


def _forced(way: str, s: Situation) -> bool:
    return s.forced == way


GRADIENTS = (
    Row("lanes", lambda s: s.stacked, "each lane has the parameters of its own field"),
    Row(
        None, lambda s: s.symbolic and s.deterministic,
        "deterministic: the gradient of a network inside a symbolic loop or call accumulates with atomics, in no fixed "
        "order; evaluate the network outside, or run the loop in evaluated mode.",
    ),
    Row("builtin", lambda s: s.in_call, "inside a virtual call there are no lane numbers to choose a bank by"),
    Row("builtin", lambda s: s.symbolic and s.forced == "builtin", _ASKED),
    Row("loop banks", lambda s: s.symbolic, "inside a symbolic loop or conditional nothing can be evaluated"),
    Row(
        None, lambda s: s.cuda and not s.network.layouts_known and s.forced in ("spill", "store"),
        "gradient_path: the path '{s.forced}' " + _LAYOUT,
    ),
    Row(
        None, lambda s: s.cuda and not s.network.layouts_known and s.forced == "auto" and s.deterministic,
        "deterministic: the path 'store' " + _LAYOUT,
    ),
    *(Row(way, functools.partial(_forced, way), _ASKED) for way in PATHS[1:]),
    Row("store", lambda s: s.wide, "between kernels, layers so wide are multiplied faster than within one"),
    Row("spill", lambda s: not s.cuda, "matrix products are the fastest way on the CPU, and reproducible"),
    Row("store", lambda s: s.deterministic and s.network.width > limits.LONG_VECTOR, _ORDER),
    Row("spill", lambda s: s.deterministic, _ORDER),
    Row(
        "store", lambda s: s.outside and s.network.layouts_known and long_vectors(s),
        "vectors so long do not fit into the registers of one kernel",
    ),
    Row(
        "store", lambda s: s.outside and s.network.layouts_known and few_runs(s),
        "so few steps do not make up for the seconds that outer products take to compile",
    ),
    Row(
        "banks", lambda s: s.frozen or s.terms <= limits.ONE_BANK_SAMPLES,
        "the fastest way on the GPU that half precision does not stall",
    ),
    Row(
        "banks", lambda s: not s.network.layouts_known,
        "the packed layout of a matrix is not known, as spilling would need",
    ),
    Row("store", lambda s: s.network.width > limits.LONG_VECTOR, _TRACING),
    Row("spill", _always, _TRACING),
)  # fmt: skip

# ---- How is a network evaluated if its weights need no gradient? --------------------------------------------------


def worth_copies(s: Situation) -> bool:
    """Are there so many samples that copies of matrices, in the order in which they are read, pay?"""
    return not s.cuda and not s.symbolic and s.samples >= limits.COPIES_SAMPLES


def worth_unrolling(s: Situation) -> bool:
    """Is there so little to multiply, in a recorded function, that code without loops is compiled in a second?"""
    there_and_back = s.network.multiplications * (1 + s.weights)
    bound = limits.by_lanes(limits.UNROLLED, s.lanes)
    affordable = 0 < there_and_back * s.vectors <= bound and s.network.single
    return affordable and s.frozen and not (s.cuda or s.symbolic) and s.samples >= limits.UNROLLED_SAMPLES


EVALUATION = (
    Row("lanes", lambda s: s.stacked, "each lane has the parameters of its own field"),
    Row(
        "separate blocks", lambda s: s.cuda and s.in_call and not s.inputs,
        "OptiX would interleave the networks of a call, and all of their vectors stay in registers",
    ),
    Row("kernel", lambda s: s.inputs, "Dr.Jit differentiates by the input"),
    Row(
        "between kernels", lambda s: s.wide and not s.symbolic,
        "layers so wide are multiplied faster between kernels",
    ),
    Row("unrolled", worth_unrolling, "in a recorded function, code without loops keeps outputs in registers"),
    Row(
        "copies", lambda s: worth_copies(s) and s.lanes < limits.WIDE_LANES and s.network.large,
        "for so many samples, copies of matrices in the order in which they are read pay",
    ),
    Row("kernel", _always, "all layers are part of the kernel around them"),
)  # fmt: skip

# ---- How is the gradient by the input computed, where it is not differentiated? ----------------------------------

SLOPES = (
    Row("tangents", lambda s: s.stacked, "of several fields in one kernel, gradients are going to be differentiated"),
    Row(
        "between kernels", lambda s: s.wide and s.room and not s.symbolic,
        "layers so wide are multiplied faster between kernels",
    ),
    Row("kernel", lambda s: not s.cuda, "a vector that goes back costs as much as an evaluation"),
    Row(
        "tangents", lambda s: s.network.width <= limits.FORWARD_AND_BACK,
        "going back, the activations of all layers stay in registers",
    ),
    Row("tangents", lambda s: s.network.piecewise_linear, "slopes are zeros and ones: tangents take few registers"),
    Row(
        "tangents", lambda s: s.symbolic or s.samples < limits.LAUNCHES_SAMPLES,
        "a kernel for each layer is impossible here, or not worth its launch",
    ),
    Row("kernels", lambda s: s.room, "two vectors of a layer so wide do not fit into the registers of one kernel"),
    Row("tangents", _always, "there is no memory to keep activations"),
)  # fmt: skip

# ---- How does a CPU multiply a matrix and a vector in a kernel? --------------------------------------------------


class Matrix(NamedTuple):
    """A matrix as it is multiplied: with its ``columns`` as rows if it is ``transposed``."""

    rows: int
    columns: int
    itemsize: int
    lanes: int
    transposed: bool
    #: Do its rows, not transposed, stand one after the other in a CPU's memory, and does Dr.Jit not differentiate by
    #: it?
    plain: bool
    #: May it be copied?
    copies: bool = False

    @property
    def block(self) -> float:
        """Rows of a block at most, infinitely many where the columns of the whole matrix spread over the cache.

        Dr.Jit goes through a matrix column by column. Entries of a column lie as far apart as a row is long: where that
        is a multiple of a large power of two, they share few sets of the first cache, and push one another out.
        """
        lines, rest = divmod(self.columns * self.itemsize, limits.CACHE_LINE_BYTES)
        if lines == 0:
            return math.inf
        sets = limits.CACHE_SETS if rest else limits.CACHE_SETS // math.gcd(limits.CACHE_SETS, lines)
        shared, rows = limits.by_lanes(limits.ROW_BLOCKS, self.lanes)
        return rows if sets <= shared else math.inf


def panels(m: Matrix) -> bool:
    large = m.rows * m.columns * m.itemsize > limits.PANELS_BYTES and m.rows >= limits.PANELS_ROWS
    return m.copies and m.lanes < limits.WIDE_LANES and large


MATRICES = (
    Row("whole", lambda m: not m.plain, "the layout is the hardware's own, or Dr.Jit differentiates the product"),
    Row("panels", panels, "it does not fit into the first cache: a copy in panels, in the order in which it is read"),
    Row(
        "turned copy", lambda m: m.copies and m.transposed and m.lanes >= limits.WIDE_LANES and m.rows > m.block,
        "a copy with columns for rows, in blocks: entries of a row share few sets of the first cache",
    ),
    Row(
        "row blocks", lambda m: not m.transposed and m.rows > m.block,
        "entries of a column share few sets of the first cache, into which a block of rows fits",
    ),
    Row("whole", _always, "the matrix is read without conflicts in the first cache"),
)  # fmt: skip


@functools.lru_cache(maxsize=1 << 12)
def way_of(matrix: Matrix) -> str:
    """The way of :data:`MATRICES`, which is looked up for every matrix at every use."""
    return choose(MATRICES, matrix)[0]


# ---- Who multiplies matrices over samples? -----------------------------------------------------------------------


class Products(NamedTuple):
    """The situation of products over samples."""

    backend: dr.JitBackend
    #: Is a function being frozen, in which no library can be called?
    frozen: bool
    #: Does the caller of that function multiply?
    outside: bool
    #: Is a library found?
    library: bool


MULTIPLIERS = (
    Row("caller", lambda s: s.outside, "between two halves of a frozen step, a library can be called"),
    Row("Dr.Jit", lambda s: s.frozen, "libraries cannot be called in a function that is being recorded"),
    Row("Dr.Jit", lambda s: not s.library, "no library is found"),
    Row("cuBLAS", lambda s: s.backend == dr.JitBackend.CUDA, "the fastest on the GPU"),
    Row("BLAS", _always, "the fastest on the CPU, in double precision"),
)

# ---- Where is a loss computed that is known to look at one sample at a time? --------------------------------------


class StepLoss(NamedTuple):
    """A loss of which it is known how that of a sample follows from the outputs of a network for it."""

    #: In what way the gradients of the network's weights are computed.
    way: str


LOSSES = (
    Row(
        "inside", lambda s: s.way == "banks",
        "the call that fills banks evaluates the network: with the loss in it, nothing is evaluated twice",
    ),
    Row("behind the network", _always, "other ways keep what they need of the way forward"),
)  # fmt: skip

# ---- Where does a gradient go that comes up in a symbolic loop or conditional? -----------------------------------


class GradientScope(NamedTuple):
    """What happens to a gradient when the scope is left, or a context around it."""

    #: Does Dr.Jit differentiate the scope from outside, so that sums can wait for its end?
    waits: bool
    #: Are there as many banks as are wanted, or one buffer, as on CPUs?
    spread: bool
    #: Is the loop in ``gradient_banks()`` of all these parameters?
    collected: bool


SCOPES = (
    Row("end of scope", lambda s: s.waits, "banks are summed when the scope is left"),
    Row("end of context", lambda s: s.spread and s.collected, "banks are summed when gradient_banks() is left"),
    Row("one buffer", _always, "dr.backward() in the scope itself: nothing runs later that could sum banks"),
)

#: The tables by the question that they answer.
TABLES = {
    "How are weight gradients computed?": GRADIENTS,
    "How is a network evaluated if its weights need no gradient?": EVALUATION,
    "How is the gradient by the input computed, where it is not differentiated?": SLOPES,
    "How does a CPU multiply a matrix and a vector in a kernel?": MATRICES,
    "Who multiplies matrices over samples?": MULTIPLIERS,
    "Where is a loss computed that is known to look at one sample at a time?": LOSSES,
    "Where does a gradient go that comes up in a symbolic loop or conditional?": SCOPES,
}
