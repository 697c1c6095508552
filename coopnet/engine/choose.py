"""The one place that decides how weight gradients are computed."""

from __future__ import annotations

import drjit as dr

from .banks import SAMPLES


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
) -> tuple[str, str]:
    """The path of the weight gradients, and why it is taken.

    ==================================================  ===============================================================
    in symbolic loops and conditionals                  ``banks``, summed when the scope is left
    in virtual calls                                    ``builtin``: there are no lane numbers to choose a bank by
    LLVM                                                ``spill``: reproducible, and matrix products are fastest
    CUDA, ``deterministic()``                           ``spill``
    CUDA, in a frozen function, or a small batch        ``banks``: fastest
    CUDA otherwise                                      ``spill``: banks cost Python time that only freezing saves
    ==================================================  ===============================================================

    Args:
        terms: outer products that each sum has: samples, times the vectors that each sends through the network.
        symbolic, in_call, frozen: what is being traced (see :mod:`coopnet.jit.scopes`).
        deterministic: are sums to be in a fixed order?
        forced: the path that is asked for, ``"auto"`` for any.
        layouts_known: are the packed layouts of all matrices known?

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
    if cuda and not layouts_known and (forced == "spill" or (forced == "auto" and deterministic)):
        raise RuntimeError(
            f"{'deterministic' if forced == 'auto' else 'gradient_path'}: the path 'spill' needs to know the packed "
            f"layout of every matrix, but the network has a drjit.nn.Linear, or a layer wider than 2047; use "
            f"coopnet.Linear and narrower layers."
        )
    if forced != "auto":
        return forced, "gradient_path() asks for it"
    if not cuda:
        return "spill", "matrix products are the fastest way on the CPU, and reproducible"
    if deterministic:
        return "spill", "deterministic() asks for a fixed order of sums"
    if frozen or terms <= SAMPLES:
        return "banks", "the fastest way on the GPU that half precision does not stall"
    if not layouts_known:
        return "banks", "the packed layout of a matrix is not known, as spilling would need"
    return "spill", "outside dr.freeze, tracing many banks would cost more than it saves"
