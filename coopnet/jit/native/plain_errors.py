"""Errors that are raised without a traceback of Python lines, for callers that put the traceback into their message.

Relies on ``PyErr_SetString`` of the interpreter, and on Mitsuba's parser passing such errors on. Checked with Dr.Jit
1.5.0 and Mitsuba 3.9.1.
"""

from __future__ import annotations

import ctypes

#: ``fail(error, message, properties)`` raises the class ``error`` with the text ``message``, given as bytes. Mitsuba
#: passes the ``properties`` of the plugin that was to be made; they are not used.
fail = ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.c_char_p, ctypes.py_object)(
    ("PyErr_SetString", ctypes.pythonapi)
)
