"""Random numbers that are functions of a key.

=====================  ============================================================
:mod:`.key`            keys: the experiment, sample and step of a draw
:mod:`.philox`         the generator
:mod:`.counter_words`  the words of the generator's counters and keys
:mod:`.law`            laws of dropout: what a draw does to an element
:mod:`.draws`          a draw for every element, of any kind of input
:mod:`.expansion`      factors of cooperative vectors in the layout of tensor cores
:mod:`.seeded`         dropout as other systems draw it
:mod:`.integers`       integers of any kind as flat arrays
:mod:`.normal`         nearly normal numbers from integers
:mod:`.streams`        which use of the generator has which numbers
=====================  ============================================================
"""
