"""Native libraries without a Python module, called by ``ctypes``.

====================  ==================================================================================================
file                  what it relies on
====================  ==================================================================================================
:mod:`.core`          symbols of libdrjit-core, and the thread in which it looks for backends
:mod:`.frees`         a table of virtual functions of Dr.Jit's, and what they do with memory of launches
:mod:`.imports`       what Dr.Jit logs when it makes arrays of the memory of NumPy or PyTorch
:mod:`.pool`          ``libnanothread`` gives work to Dr.Jit's threads
:mod:`.cublas`        Dr.Jit's stream, context and addresses, and cuBLAS's own interface
:mod:`.openblas`      the thread controls of the OpenBLAS inside NumPy
:mod:`.cuda`          the driver's and OptiX's libraries
:mod:`.plain_errors`  Python's own: an error without the lines of callers
====================  ==================================================================================================
"""
