"""Errors without a line of Python."""

import traceback

import pytest

from coopnet.jit.native.plain_errors import fail


def test_words_and_lines():
    with pytest.raises(ValueError, match=r"^it is not so$") as error:
        fail(ValueError, b"it is not so", None)
    assert [frame.name for frame in traceback.extract_tb(error.value.__traceback__)] == ["test_words_and_lines"]
