"""The base of groups of processes: the methods that training needs."""

from __future__ import annotations

from typing import Any

from ...checks import check_positive


class Group:
    """Processes that train one field, or share many. This class is a single process; groups of several derive from it.

    Every process calls the same methods in the same order. They raise ``RuntimeError`` if another process is gone, or
    does not call the method within the time limit.

    Args:
        chunks: sum gradients over so many fixed parts of a batch, in their order, rather than over processes. Then all
            numbers of processes that divide ``chunks`` give the same losses and weights, on LLVM to the last bit,
            provided that all processes have the same number of threads. The kernels run once for each part. ``None``:
            one part for each process, which is fastest.

    Raises:
        ValueError: ``chunks`` is not a positive int.

    >>> cn.fit(field, batch, 1000, distributed=cn.training.Group(chunks=4))
    """

    rank = 0  #: the number of this process
    size = 1  #: how many there are

    def __init__(self, *, chunks: int | None = None):
        self.chunks = None if chunks is None else check_positive(type(self).__name__, "chunks", chunks)

    def sum(self, array: Any) -> Any:
        """The sum over all processes of a flat evaluated Dr.Jit array, in its own memory if possible."""
        return array

    def gather(self, value: Any) -> list:
        """The small Python objects of all processes, by rank."""
        return [value]

    def broadcast(self, value: Any) -> Any:
        """The ``value`` of process 0, on all processes."""
        return value
