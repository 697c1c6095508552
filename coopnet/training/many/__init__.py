"""Training many fields of one architecture.

=================  ===================================================
:mod:`.fit`        ``fit_many``
:mod:`.jobs`       all jobs, and their runs one after the other or in groups
:mod:`.job`        one of them by itself
:mod:`.group`      a step of several fields at once
:mod:`.group_run`  a run of a group
:mod:`.directory`  where results are
:mod:`.errors`     errors that say which jobs they are of
=================  ===================================================
"""

from .fit import fit_many

__all__ = ["fit_many"]
