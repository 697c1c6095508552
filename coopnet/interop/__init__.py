"""Other systems' formats and programs."""
