"""Algorithms that are not networks: grids, look-ups, sums by index, products with small or random matrices.

==========================  =================================
:mod:`.grid`                features at the vertices of grids
:mod:`.drawn_grid`          the same, with features that a key draws
:mod:`.lookup`              rows of tables
:mod:`.small_matrix`        products with small matrices
:mod:`.sparse_projection`   products with sparse random matrices
how gradients are added up
:mod:`.atomic_sums`         by atomics, in several copies
:mod:`.fixed_point`         in integers
:mod:`.segment_sum`         in a fixed order
:mod:`.half_tables`         in single precision, for half-precision tables in symbolic scopes
==========================  =================================
"""
