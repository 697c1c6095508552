"""Answers that are published."""

_PI = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]
#: Random123's ``(counter, key, rounds, words)`` of Philox4x32.
PHILOX = [
    ([0] * 4, [0] * 2, 10, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, 10, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (*_PI, 10, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ([0] * 4, [0] * 2, 7, "5f6fb709 0d893f64 4f121f81 4f730a48"),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, 7, "5207ddc2 45165e59 4d8ee751 8c52f662"),
    (*_PI, 7, "4dfccaba 190a87f0 c47362ba b6b5242a"),
]
