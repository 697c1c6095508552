"""What tests of Mitsuba share."""

from __future__ import annotations

import pytest

import coopnet as cn


@pytest.fixture
def variant(backend):
    """Mitsuba runs on the backend, and knows the plugins."""
    pytest.importorskip("mitsuba").set_variant(f"{backend}_ad_rgb")
    cn.mitsuba.register()
