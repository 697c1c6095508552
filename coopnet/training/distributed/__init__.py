"""Several processes that train one field: who they are, what each does, and what they agree on."""

from .data import compare_batches
from .facts import facts
from .find import find_group
from .group import Group
from .mpi_group import MPIGroup
from .replicas import Replicas, digest
from .step import SharedStep
from .torch_group import TorchGroup

__all__ = [
    "Group", "MPIGroup", "Replicas", "SharedStep", "TorchGroup", "compare_batches", "digest", "facts", "find_group"
]  # fmt: skip
