"""The one place that decides how weight gradients are computed."""

from __future__ import annotations

import drjit as dr

from ..jit.registers import LONG
from .banks import SAMPLES

#: Components of vectors beyond which a kernel that goes forward and back at once is slower than two, and takes minutes
#: to compile.
LONGER = 96
#: Components of vectors up to which outer products compile in a second or two.
SHORT = 32
#: Samples, in all runs of a function, up to which compiling outer products takes longer than they would save: without
#: dropout and with it, whose masks are compiled once more with each of them.
FEW = {False: 1 << 32, True: 1 << 34}
#: As many samples take as long to store and to read back as calling the library takes, however few there are.
CALLS = 1 << 19
#: Samples from which on several kernels in place of one are worth their launches.
MANY = 1 << 16


def choose(
    backend: dr.JitBackend,
    terms: int,
    *,
    symbolic: bool = False,
    in_call: bool = False,
    frozen: bool = False,
    deterministic: bool = False,
    forced: str = "auto",
    layouts_known: bool = True,
    width: int = 0,
    masked: bool = False,
    apart: bool = False,
    planned: int = 0,
    wide: bool = False,
) -> tuple[str, str]:
    """The path of the weight gradients, and why it is taken.

    ==================================================  ===============================================================
    in symbolic loops and conditionals                  ``banks``, summed when the scope is left
    in virtual calls                                    ``builtin``: there are no lane numbers to choose a bank by
    LLVM, wide layers                                   ``store``: products of matrices, between kernels, are fastest
    LLVM otherwise                                      ``spill``: reproducible, and matrix products are fastest
    CUDA, ``deterministic()``                           ``spill``, with long vectors ``store``
    CUDA, long vectors, products computed apart         ``store``: they do not fit into the registers of one kernel
    CUDA, few steps, products computed apart            ``store``: outer products take seconds to compile
    CUDA, in a frozen function, or a small batch        ``banks``: fastest
    CUDA otherwise                                      ``spill``, with long vectors ``store``: banks cost Python time
                                                        that only freezing saves
    ==================================================  ===============================================================

    Args:
        terms: outer products that each sum has: samples, times the vectors that each sends through the network.
        symbolic, in_call, frozen: what is being traced (see :mod:`coopnet.jit.scopes`).
        deterministic: are sums to be in a fixed order?
        forced: the path that is asked for, ``"auto"`` for any.
        layouts_known: are the packed layouts of all matrices known?
        width: components of the longest vector between layers.
        masked: is there dropout?
        apart: in a frozen function, will a library multiply outside of it? See :mod:`.pending`.
        planned: how often the function will run, 0 if that is not known.
        wide: on LLVM, are layers faster as products of their own? See :mod:`.gemm`.

    Raises:
        RuntimeError: what is asked for is not possible.
    """
    if symbolic:
        if deterministic:
            raise RuntimeError(
                "deterministic: the gradient of a network inside a symbolic loop or call accumulates with atomics, in "
                "no fixed order; evaluate the network outside, or run the loop in evaluated mode."
            )
        if in_call:
            return "builtin", "inside a virtual call there are no lane numbers to choose a bank by"
        if forced == "builtin":
            return forced, "gradient_path() asks for it"
        return "banks", "inside a symbolic loop or conditional nothing can be evaluated"
    cuda = backend == dr.JitBackend.CUDA
    if cuda and not layouts_known and (forced in ("spill", "store") or (forced == "auto" and deterministic)):
        where, path = ("deterministic", "store") if forced == "auto" else ("gradient_path", forced)
        raise RuntimeError(
            f"{where}: the path '{path}' needs to know the packed layout of every matrix, but the network has a "
            f"drjit.nn.Linear, or a layer wider than 2047; use coopnet.Linear and narrower layers."
        )
    if forced != "auto":
        return forced, "gradient_path() asks for it"
    written = "store" if width > LONG else "spill"
    if not cuda and wide:
        return "store", "between kernels, layers so wide are multiplied faster than within one"
    if not cuda:
        return "spill", "matrix products are the fastest way on the CPU, and reproducible"
    if deterministic:
        return written, "deterministic() asks for a fixed order of sums"
    if apart and layouts_known and width > (LONG if masked else LONGER):
        return "store", "vectors so long do not fit into the registers of one kernel"
    if apart and layouts_known and width > SHORT and 0 < planned * (terms + CALLS) < FEW[masked]:
        return "store", "so few steps do not make up for the seconds that outer products take to compile"
    if frozen or terms <= SAMPLES:
        return "banks", "the fastest way on the GPU that half precision does not stall"
    if not layouts_known:
        return "banks", "the packed layout of a matrix is not known, as spilling would need"
    return written, "outside dr.freeze, tracing many banks would cost more than it saves"
