"""hypothesis, which a GPU machine's own Python may lack: there the tests of properties are skipped, and no others."""

import functools

import pytest

try:
    import hypothesis.extra.numpy as hnp
    import hypothesis.strategies as st
    from hypothesis import example, given, settings
except ImportError:

    class Strategy:
        """Any strategy, and what is made of it: nobody draws from it."""

        def __getattr__(self, name):
            return self

        def __call__(self, *arguments, **options):
            return self

        def __or__(self, other):
            return self

    def given(*strategies, **named):
        reason = "could not import 'hypothesis'"

        def decorated(test):
            @functools.wraps(test)
            def skipped(*arguments, **options):  # called by another test
                pytest.skip(reason)

            return pytest.mark.skip(reason=reason)(skipped)

        return decorated

    def settings(*arguments, **options):
        return lambda test: test

    example, hnp, st = settings, Strategy(), Strategy()

__all__ = ["example", "given", "hnp", "settings", "st"]
