"""The tables that choose how a network is evaluated and differentiated: an ordered one for each question.

The first row whose condition holds is chosen. :func:`coopnet.engine.evaluate`, :func:`coopnet.engine.input_gradient`,
training and ``field.explain`` read these tables, and the documentation prints them. Other code of the engine asks the
functions here, or follows what was chosen.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import drjit as dr

from ..jit.registers import ALL
from . import limits
from .situation import Situation


class Row(NamedTuple):
    """A strategy, when it is chosen, and why. A row without a strategy is an error, whose message is ``why``."""

    strategy: str | None
    when: Callable[[Any], bool]
    why: str


def choose(table: Sequence[Row], s: Any) -> tuple[str, str]:
    """The strategy of the first row of ``table`` whose condition holds for the situation ``s``, and why.

    Raises:
        RuntimeError: the situation is impossible.
    """
    for strategy, when, why in table:
        if when(s):
            if strategy is None:
                raise RuntimeError(why.format(s=s))
            return strategy, why
    raise AssertionError("the last row of a table is for all situations")


def _always(s: Any) -> bool:
    return True


# ---- How are weight gradients computed? ---------------------------------------------------------------------------

_ASKED = "gradient_path() asks for it"
_ORDER = "deterministic() asks for a fixed order of sums"
_UNROLLED = "code without loops keeps outputs in registers, and compiling it pays in a recorded function"
_TRACING = "outside dr.freeze, compiling outer products and tracing many banks cost more than they save"
_LAYOUT = (
    "needs the packed layout of every matrix, which is unknown for drjit.nn.Linear and for layers wider than 2047; "
    "use coopnet.Linear with at most 2047 features."
)


def long_vectors(s: Situation) -> bool:
    """Do two vectors of a layer exceed the registers of one kernel, forward and back?"""
    return s.network.width > limits.LONG_VECTOR


def wide(s: Situation) -> bool:
    """Are layers so wide that a CPU multiplies faster between kernels, and may a kernel end here?"""
    if s.cuda or s.symbolic or s.terms < limits.WIDE_SAMPLES or s.network.branches or s.only_traced:
        return False
    trained = limits.WIDE_FITTED if caller_multiplies(s) else limits.WIDE_TRAINED
    sides = limits.by_lanes(trained if s.weights else limits.WIDE_EVALUATED, s.stored_lanes)
    return s.network.narrow_side >= sides[not s.network.piecewise_linear]


def short_vectors(s: Situation) -> bool:
    """Are vectors so short that a GPU's products over samples are bound by memory?"""
    return s.cuda and s.network.width <= limits.PAIRED_VECTOR


def caller_multiplies(s: Situation) -> bool:
    """Does ``cn.fit`` multiply outside the recorded function? Only if the work pays for a second function."""
    return s.caller and s.terms * s.network.multiplications >= limits.CUT_MULTIPLICATIONS


def worth_launching(s: Situation) -> bool:
    """Do several kernels instead of one pay on a GPU?"""
    return s.samples >= limits.LAUNCHES_SAMPLES and not (s.symbolic or s.only_traced)


def reads_transposed(shape: tuple[int, int]) -> bool:
    """May a GPU read a copy of the transposed matrix of this ``shape``? See the offer "transposed copies"."""
    return min(shape) > 1 and max(shape) > limits.LONG_VECTOR


def refills(s: Situation) -> bool:
    """Are activations that are not stored, or no longer, stored before a backward pass? For short vectors, a GPU's
    kernel for both passes is faster.
    """
    return not s.cuda or long_vectors(s)


def keeps_output(shape: tuple[int, int]) -> bool:
    """Does a GPU keep the output of a matrix of this ``shape``, if its backward pass needs it? Multiplying again would
    exceed the registers.
    """
    return shape[0] > limits.LONG_VECTOR


def kernels_end(s: Situation) -> list:
    """The layers with whose inputs a GPU's kernel ends, if activations are kept; none on a CPU.

    The matrices of a kernel fit into the first-level cache together, beside what it reads and writes. Drawing masks for
    several layers of long vectors exceeds the registers. Long inputs of the network have a kernel of their own, since
    what computes them needs the registers.
    """
    bound = limits.KERNEL_WEIGHT_BYTES[s.network.dropout]
    ending, held = [], 0
    for i, op in enumerate(s.network.layers if s.cuda else ()):
        size = math.prod(op.weights.shape) * dr.itemsize_v(op.weights.buffer)
        held += size
        ends = held > bound if i > 0 else op.weights.shape[1] > limits.LONG_VECTOR
        if ends:
            ending.append(op)
            held = size
    return ending


def few_runs(s: Situation) -> bool:
    """Does compiling outer products take longer than they run?"""
    bound = limits.COMPILED_SAMPLES[s.network.dropout]
    return s.network.width > limits.OUTER_PRODUCTS and 0 < s.runs * (s.terms + limits.LIBRARY_CALL_SAMPLES) < bound


def one_bank(s: Situation) -> bool:
    """Is one bank enough, and compiled at once?"""
    return s.terms <= limits.ONE_BANK_SAMPLES and s.network.width <= limits.OUTER_PRODUCTS


def slow_to_compile(s: Situation) -> bool:
    """Do outer products take long to compile, and gain little?"""
    return s.network.width > (limits.FACTOR_VECTOR if s.network.factors else limits.BANK_VECTOR[s.network.dropout])


def worth_unrolling(s: Situation) -> bool:
    """Is this a function recorded on a CPU for which code without loops compiles in some seconds, and pays?"""
    back = s.weights or s.inputs
    there_and_back = s.network.multiplications * (1 + back) * s.vectors
    bounds = limits.by_lanes(limits.UNROLLED_TRAINED if back else limits.UNROLLED_EVALUATED, s.lanes)
    affordable = 0 < there_and_back <= bounds[not s.network.piecewise_linear] and s.network.single_precision
    many = s.samples >= limits.UNROLLED_SAMPLES and (s.runs == 0 or s.runs * s.samples >= limits.UNROLLED_RUNS)
    # in symbolic code, transposed matrices cannot be copied for the backward pass
    possible = s.frozen and s.scalar_loads and not (s.cuda or s.in_call or (s.symbolic and back))
    return affordable and many and possible


def sums_in_lanes(s: Situation) -> bool:
    """Can the lanes of a CPU sum up gradients, which is faster than Dr.Jit's product?"""
    kept = s.network.multiplications + limits.LANE_SAMPLES * sum(map(sum, s.network.shapes))
    fits = 4 * s.lanes * kept <= limits.LANE_BYTES
    pays = s.lanes >= limits.LANE_WIDTH and s.samples >= limits.LANE_SUM_SAMPLES and not caller_multiplies(s)
    return fits and pays and s.vectors == 1 and not s.network.branches


GRADIENTS = (
    Row("stacked fields", lambda s: s.stacked, "each lane has the parameters of its own field"),
    Row(
        None, lambda s: s.symbolic and s.deterministic,
        "deterministic: the gradient of a network inside a symbolic loop or call accumulates with atomics, in no fixed "
        "order; evaluate the network outside, or run the loop in evaluated mode.",
    ),
    Row(
        None, lambda s: s.deterministic and s.forced in ("banks", "builtin"),
        "deterministic: sums of gradient_path('{s.forced}') have no fixed order; leave one of the two contexts, or "
        "choose 'spill' or 'store'.",
    ),
    Row("builtin", lambda s: s.in_call, "virtual calls have no lane number, which is needed to choose a bank"),
    Row("builtin", lambda s: s.symbolic and s.forced == "builtin", _ASKED),
    Row(
        "loop banks", lambda s: s.symbolic and (s.cuda or s.forced == "banks"),
        "nothing can be evaluated inside a symbolic loop or conditional; the banks are summed after it",
    ),
    Row(
        "loop sums", lambda s: s.symbolic,
        "nothing can be evaluated inside a symbolic loop or conditional; one bank is summed after it, because on a CPU "
        "selecting among several takes longer than the network",
    ),
    Row(
        None, lambda s: s.cuda and not s.network.layouts_known and s.forced in ("spill", "store"),
        "gradient_path: the path '{s.forced}' " + _LAYOUT,
    ),
    Row(
        None, lambda s: s.cuda and not s.network.layouts_known and s.forced == "auto" and s.deterministic,
        "deterministic: a fixed order of sums " + _LAYOUT,
    ),
    Row("spill", lambda s: s.forced == "spill", _ASKED),
    Row("store", lambda s: s.forced == "store", _ASKED),
    Row("banks", lambda s: s.forced == "banks", _ASKED),
    Row("builtin", lambda s: s.forced == "builtin", _ASKED),
    Row(
        "lane sums", lambda s: worth_unrolling(s) and sums_in_lanes(s),
        "sums in a thread's memory are faster than writing rows and multiplying them",
    ),
    Row("store", wide, "wide layers are multiplied faster between kernels than in one"),
    Row("spill", lambda s: not s.cuda, "matrix products are the fastest strategy on the CPU, and reproducible"),
    Row("store", lambda s: s.deterministic and long_vectors(s), _ORDER),
    Row("spill", lambda s: s.deterministic, _ORDER),
    Row(
        "store", lambda s: caller_multiplies(s) and s.network.layouts_known and long_vectors(s),
        "such long vectors exceed the registers of one kernel",
    ),
    Row(
        "store", lambda s: caller_multiplies(s) and s.network.layouts_known and few_runs(s),
        "the run is too short to make up for compiling outer products, which takes seconds",
    ),
    Row(
        "store", lambda s: slow_to_compile(s) and s.network.layouts_known,
        "outer products of vectors this long take many seconds to compile and gain little",
    ),
    Row(
        "banks", lambda s: s.frozen or one_bank(s),
        "the fastest on the GPU, and short sums in half precision do not saturate",
    ),
    Row(
        "banks", lambda s: not s.network.layouts_known,
        "spilling needs the packed layout of every matrix, and one is not known",
    ),
    Row("store", long_vectors, _TRACING),
    Row("spill", _always, _TRACING),
)  # fmt: skip

# ---- How is a network evaluated if its weights need no gradient? --------------------------------------------------


def large(rows: int, columns: int, itemsize: int) -> bool:
    """Does a matrix exceed a CPU's first-level cache?"""
    return rows * columns * itemsize > limits.PANELS_BYTES


def worth_copies(s: Situation) -> bool:
    """Are there enough samples that copying matrices into the order in which they are read pays?"""
    return not s.cuda and not s.symbolic and s.samples >= limits.COPIES_SAMPLES


def worth_panels(s: Situation) -> bool:
    """Does copying matrices pay, and is there one of which a copy is read faster?"""
    return worth_copies(s) and s.lanes < limits.WIDE_LANES and _any_large(s)


def _any_large(s: Situation) -> bool:
    return any(large(rows, columns, 4) for rows, columns in s.network.shapes)


def worth_going_back(s: Situation) -> bool:
    """Is the input's gradient on a CPU faster from copies of transposed matrices than by Dr.Jit?"""
    return s.inputs and (worth_unrolling(s) or (worth_copies(s) and _any_large(s)))


_COPIES = "for this many samples, it pays to copy matrices in the order in which they are read"

EVALUATION = (
    Row("stacked fields", lambda s: s.stacked, "each lane has the parameters of its own field"),
    Row(
        "kernel, forward and back", lambda s: s.rates and not s.in_call,
        "learned rates of dropout need gradients, which one kernel computes for all elements",
    ),
    Row(
        "separate blocks", lambda s: s.cuda and s.symbolic and not s.inputs,
        "OptiX would interleave the networks of a loop, conditional or call and keep all their vectors in registers",
    ),
    Row("store", lambda s: s.inputs and wide(s), "wide layers are multiplied faster between kernels, forward and back"),
    Row(
        "kernel, forward and back", worth_going_back,
        "the input's gradient is faster from copies of transposed matrices, unrolled if the function is recorded",
    ),
    Row("builtin", lambda s: s.inputs, "only the input needs a gradient, and Dr.Jit's own derivative is fast enough"),
    Row("unrolled", worth_unrolling, _UNROLLED),
    Row("between kernels", wide, "wide layers are multiplied faster between kernels"),
    Row("copies", worth_panels, _COPIES),
    Row("kernel", _always, "all layers are part of the surrounding kernel"),
)  # fmt: skip

# ---- What do layers multiply with, forward and back? ---------------------------------------------------------------


AS_THEY_ARE = "matrices as they are"


# The rows take a :class:`~.network_op.Plan`: a situation, and the strategy that another table has chosen for it.
OFFERS = (
    Row(
        "transposed copies",
        lambda plan: (
            plan.situation.cuda and plan.strategy in ("store", "activations again") and long_vectors(plan.situation)
        ),
        "OptiX multiplies more slowly by a transposed matrix; copies are made in a kernel before",
    ),
    Row(
        "between kernels",
        lambda plan: plan.strategy == "store" and not plan.situation.cuda,
        "vectors are rows in memory, and products of matrices keep outputs in registers",
    ),
    Row("unrolled", lambda plan: worth_unrolling(plan.situation), _UNROLLED),
    Row("copies", lambda plan: worth_copies(plan.situation), _COPIES),
    Row(AS_THEY_ARE, _always, "copies pay for many samples, and on GPUs only for long vectors"),
)

# ---- How is the gradient with respect to the input computed, if it is not differentiated again? -------------------


def evaluates_again(s: Situation) -> bool:
    """Does it pay to compute the activations of each layer again in the backward pass?

    Copies of the matrices have to be evaluated first.
    """
    network = s.network
    few = len(network.layers) <= limits.EVALUATED_AGAIN and not network.branches
    return worth_launching(s) and few and long_vectors(s) and network.layouts_known


INPUT_GRADIENTS = (
    Row("tangents", lambda s: s.stacked, "several fields are in one kernel; their gradients will be differentiated"),
    Row("kernel", worth_unrolling, _UNROLLED),
    Row(
        "store", lambda s: wide(s) and s.memory_left,
        "wide layers are multiplied faster between kernels, forward and back",
    ),
    Row("kernel", lambda s: not s.cuda, "a backward pass costs about as much as one evaluation"),
    Row(
        "activations again", evaluates_again,
        "tangents of wide layers exceed the registers, and so would the activations of all layers",
    ),
    Row(
        "tangents", lambda s: s.network.width <= limits.TANGENT_VECTOR,
        "a backward pass would keep the activations of all layers in registers",
    ),
    Row("tangents", lambda s: s.network.piecewise_linear, "slopes are zeros and ones: tangents take few registers"),
    Row(
        "tangents", lambda s: not worth_launching(s),
        "several kernels are impossible here, or not worth launching",
    ),
    Row("store", lambda s: s.memory_left, "two vectors of such a wide layer exceed the registers of one kernel"),
    Row("tangents", _always, "there is too little memory for activations"),
)  # fmt: skip

# ---- How are several tangents computed? ---------------------------------------------------------------------------


def tangents_at_a_time(s: Situation) -> int:
    """How many tangents fit into a GPU's registers besides the value; on CPUs all, which spill to the cache."""
    return max(1, ALL // max(s.network.width, 1) - 1) if s.cuda else s.vectors - 1


TANGENTS = (
    Row(
        "at once", lambda s: s.vectors - 1 <= tangents_at_a_time(s),
        "all fit into a GPU's registers besides the value; a CPU spills them to its cache, which is cheap",
    ),
    Row(
        "some at a time, by several kernels",
        lambda s: not (s.stacked or s.weights or s.inputs) and worth_launching(s),
        "they exceed the registers, and in one kernel OptiX would interleave them",
    ),
    Row(
        "some at a time", _always,
        "they exceed the registers; several kernels are impossible, not worth launching, or gradients need the values "
        "anyway",
    ),
)  # fmt: skip

# ---- How is a matrix multiplied by a vector? -----------------------------------------------------------------------


class Matrix(NamedTuple):
    """The matrix of a product. With ``transposed``, the product is with its transpose, of ``rows`` and ``columns``."""

    rows: int
    columns: int
    itemsize: int
    lanes: int
    transposed: bool
    #: Are its rows consecutive in a CPU's memory, and does Dr.Jit not differentiate with respect to it?
    plain: bool
    #: The network's strategy in :data:`OFFERS` or :data:`EVALUATION`.
    offer: str = AS_THEY_ARE
    #: Is the layout known that its transpose has on a GPU?
    turns: bool = False

    @property
    def block(self) -> float:
        """The most rows of a block; infinite if the columns of the whole matrix spread over the cache.

        Dr.Jit reads a matrix column by column. Entries of a column are a row's length apart. If this distance is a
        multiple of a large power of two, they share few sets of the first-level cache, and evict each other.
        """
        lines, rest = divmod(self.columns * self.itemsize, limits.CACHE_LINE_BYTES)
        if lines == 0:
            return math.inf
        sets = limits.CACHE_SETS if rest else limits.CACHE_SETS // math.gcd(limits.CACHE_SETS, lines)
        shared, rows = limits.by_lanes(limits.ROW_BLOCKS, self.lanes)
        return rows if sets <= shared else math.inf


def panels(m: Matrix) -> bool:
    """Is the matrix copied in panels of some rows, each in the order in which it is read?"""
    pays = m.rows >= limits.PANELS_ROWS and large(m.rows, m.columns, m.itemsize)
    return m.offer == "copies" and m.lanes < limits.WIDE_LANES and pays


def transposed_blocks(m: Matrix) -> bool:
    """Is a transposed copy read in blocks of rows, because few sets of the first-level cache hold the matrix's rows?"""
    return m.offer == "copies" and m.transposed and m.lanes >= limits.WIDE_LANES and m.rows > m.block


MATRICES = (
    Row(
        "between kernels", lambda m: m.offer == "between kernels" and m.rows >= limits.WIDE_LAYER,
        "it has enough outputs to gain from a product between kernels",
    ),
    Row(
        "transposed copy", lambda m: m.offer == "transposed copies" and m.transposed and m.turns,
        "OptiX multiplies more slowly by a transposed matrix",
    ),
    Row("whole", lambda m: not m.plain, "the layout is the hardware's own, or Dr.Jit differentiates the product"),
    Row("unrolled", lambda m: m.offer == "unrolled", _UNROLLED),
    Row("panels", panels, "it exceeds the first-level cache: a copy in panels, in the order in which it is read"),
    Row(
        "transposed copy in blocks", transposed_blocks,
        "entries of a row share few sets of the first-level cache; those of a copy do not",
    ),
    Row(
        "row blocks", lambda m: not m.transposed and m.rows > m.block,
        "entries of a column share few sets of the first-level cache; a block of rows fits into them",
    ),
    Row("whole", _always, "the matrix is read without conflicts in the first-level cache"),
)  # fmt: skip


@functools.lru_cache(maxsize=1 << 12)
def strategy_of(matrix: Matrix) -> str:
    """The strategy of :data:`MATRICES` for ``matrix``, cached, since every product of a matrix needs it."""
    return choose(MATRICES, matrix)[0]


# ---- Which library multiplies matrices over samples? ----------------------------------------------------------------


class Products(NamedTuple):
    """The situation of products over samples."""

    backend: dr.JitBackend
    #: Is a function being frozen? No library can be called in it.
    frozen: bool
    #: Does the caller of that function multiply?
    by_caller: bool
    #: Was a library found?
    library: bool


LIBRARIES = (
    Row(
        "caller",
        lambda s: s.by_caller,
        "`cn.fit` runs its step as two recorded functions, and calls a library in between",
    ),
    Row("Dr.Jit", lambda s: s.frozen, "libraries cannot be called in a function that is being recorded"),
    Row("Dr.Jit", lambda s: not s.library, "no library is found"),
    Row("cuBLAS", lambda s: s.backend == dr.JitBackend.CUDA, "the fastest on the GPU"),
    Row("BLAS", _always, "the fastest on the CPU, in double precision"),
)

# ---- Where is the loss of a step computed? --------------------------------------------------------------------------


class StepLoss(NamedTuple):
    """The loss of a training step."""

    #: Does it follow from each sample's outputs and targets alone, and is it known before the network is evaluated?
    known: bool
    #: The strategy of weight gradients.
    gradients: str


LOSSES = (
    Row(
        "the call for banks", lambda s: s.known and s.gradients == "banks",
        "the call evaluates the network again; with the loss in it, one evaluation is enough",
    ),
    Row("behind the network", _always, "nothing evaluates the network again, or the loss depends on more"),
)  # fmt: skip

# ---- Where is the batch of a step computed, if its loss is computed inside the call that fills banks? ---------------


class StepBatch(NamedTuple):
    """Coordinates, as the network reads them, and targets of a step."""

    #: Were they traced without symbolic loops, conditionals and calls?
    straight: bool
    #: Do they need no additional lanes, see :class:`~..jit.lanes.Warps`?
    whole_warps: bool


BATCHES = (
    Row(
        "a kernel before", lambda s: not s.straight,
        "in one kernel with the loops and calls of a path tracer, the call for banks takes several times as long",
    ),
    Row("a kernel before", lambda s: not s.whole_warps, "it is padded to whole warps, and the padding reads memory"),
    Row("the call's kernel", _always, "writing the batch to memory and reading it takes longer than computing it"),
)  # fmt: skip

# ---- Where are gradients summed in a symbolic loop or conditional? ------------------------------------------------


class GradientScope(NamedTuple):
    """The situation of a gradient inside a symbolic scope."""

    #: Is ``backward`` called after the scope, so that banks can be summed when the scope ends?
    waits: bool
    #: Is it inside ``gradient_banks()`` for all these parameters, on a backend with several banks?
    collected: bool


SCOPES = (
    Row("end of scope", lambda s: s.waits, "banks are summed when the scope is left"),
    Row("end of context", lambda s: s.collected, "banks are summed when gradient_banks() is left"),
    Row("one buffer", _always, "dr.backward() is called in the scope, and nothing runs later that could sum banks"),
)

#: The tables, by what they decide and the question that each answers.
CHAPTERS = {
    "Where vectors live": {
        "How is a network evaluated if its weights need no gradient?": EVALUATION,
        "How is the input's gradient computed, if it will not be differentiated again?": INPUT_GRADIENTS,
        "How are several tangents computed?": TANGENTS,
    },
    "Where outer products are added up": {
        "How are weight gradients computed?": GRADIENTS,
        "Where are gradients summed in a symbolic loop or conditional?": SCOPES,
        "Which library multiplies matrices over samples?": LIBRARIES,
        "Where is the loss of a training step computed?": LOSSES,
        "Where is the batch computed, if its loss is computed inside the call that fills banks?": BATCHES,
    },
    "How a layer multiplies": {
        "What do layers multiply with, forward and back?": OFFERS,
        "How is a matrix multiplied by a vector?": MATRICES,
    },
}
#: The tables by question.
TABLES = {question: table for chapter in CHAPTERS.values() for question, table in chapter.items()}
