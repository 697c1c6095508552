"""Random numbers that are functions of a key: the generator, keys, laws of dropout, digits for every kind of input."""
