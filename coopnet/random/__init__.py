"""Random numbers that are functions of a key.

=====================  ===============================================
:mod:`.key`            who draws, and when
:mod:`.philox`         the generator
:mod:`.counter_words`  what its counters and keys are made of
:mod:`.law`            laws of dropout: what a draw does to an element
:mod:`.draws`          a draw for every element, of any kind of input
:mod:`.seeded`         dropout as other systems draw it
:mod:`.normal`         nearly normal numbers from integers
=====================  ===============================================
"""
