"""Algorithms that are not networks: grids, look-ups, sums by index, products with small or random matrices."""
