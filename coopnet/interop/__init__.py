"""Other systems' formats: the JSON configurations of tiny-cuda-nn."""
