"""Training many fields of one architecture.

=================  ===================================================
:mod:`.fit`        ``fit_many``
:mod:`.jobs`       all jobs, and their runs one after the other or in groups
:mod:`.job`        a single job
:mod:`.group`      a step of several fields at once
:mod:`.group_run`  a run of a group
:mod:`.directory`  the directory of results
:mod:`.errors`     errors that name their jobs
=================  ===================================================
"""

from .fit import fit_many

__all__ = ["fit_many"]
