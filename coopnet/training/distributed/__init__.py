"""Several processes that train one field: their communication, their shares of the work, and checks that they agree.

===================  =============================================
:mod:`.group`        the base of groups of processes
:mod:`.torch_group`  groups of ``torch.distributed``
:mod:`.mpi_group`    groups of MPI
:mod:`.replicas`     processes that hold the same field
:mod:`.step`         a step of several processes
:mod:`.shares`       which process has which samples
:mod:`.facts`        checks that all processes agree
===================  =============================================
"""

from .facts import compare_batches, facts
from .group import Group
from .mpi_group import MPIGroup
from .replicas import Replicas
from .step import SharedStep
from .torch_group import TorchGroup, find_group

__all__ = [
    "Group", "MPIGroup", "Replicas", "SharedStep", "TorchGroup", "compare_batches", "facts", "find_group"
]  # fmt: skip
