"""What tests of Mitsuba share."""

from __future__ import annotations

import gc

import pytest

import coopnet as cn


@pytest.fixture
def variant(backend):
    """Mitsuba runs on the backend, and knows the plugins."""
    pytest.importorskip("mitsuba").set_variant(f"{backend}_ad_rgb")
    cn.mitsuba.register()


@pytest.fixture(autouse=True)
def no_scenes_of_other_tests():
    """Kernels are compiled for the number that a material has among all that there are."""
    gc.collect()
