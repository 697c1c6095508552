"""For tests of what moves between backends."""

import pytest
from support.two_backends import two_backends


@pytest.fixture
def place():
    """Where an array is, while there are two backends: see :mod:`support.two_backends`."""
    with two_backends() as where:
        yield where
