"""The commands of ``coopnet``, one per file, and their shared parts.

===================  ======================================================
:mod:`.info`         describe the installation, or a checkpoint
:mod:`.fit`          learn an image or a mesh
:mod:`.render`       draw a checkpoint
:mod:`.mesh`         the surface of a checkpoint as a mesh
:mod:`.uncertainty`  draw its uncertainty
:mod:`.bench`        measure
:mod:`.convert`      tiny-cuda-nn's files as a checkpoint
:mod:`.export`       a checkpoint as source code or a web page
shared parts
:mod:`.arguments`    arguments of several commands, checked before the work
:mod:`.checkpoints`  reading checkpoints on any backend
:mod:`.errors`       exit codes, and errors in one line
===================  ======================================================
"""
