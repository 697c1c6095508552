"""Everything that relies on what Dr.Jit does not document: the files to read again for every new version of it.

Each says which version it was checked against, and has tests under ``tests/jit`` that fail when that changes; ``make
drjit-check`` runs them with the installed one.

==================  ====================================================================================================
file                what it relies on
==================  ====================================================================================================
``core``            symbols of libdrjit-core, and the thread in which it looks for backends
``scopes``          flags of symbolic tracing and freezing; the C++ symbol that knows the instance of a virtual call
``kinds``           which types are cooperative vectors, tensors and arrays, and what of theirs may be combined
``views``           the fields of ``drjit.nn.MatrixView``, and the attribute ``_packed_buffer``
``layout``          that packed layouts are permutations with gaps, which packing row and column numbers shows
``unpacked``        ``_traverse_1_cb_ro`` and ``_rw``, by which arrays are seen by some and hidden from others
``registers``       ``detail.new_scope`` orders a kernel; products longer than 64 make OptiX give all registers
``crossing``        a traversal may begin within a derivative, on another backend, and keep the edges that it takes
``owned``           frozen calls know no memory but Dr.Jit's; what shares memory with NumPy, and what copies
``deferred``        derivatives of variables older than a scope's second trace are postponed until it is left
``batch_size``      products check their operands' sizes when a frozen function is replayed
``lanes``           what comparisons with NaN answer, and that custom operations see lists of gradients
``constants``       the derivative of ``dr.select`` computes what would be a literal
``masks``           the stack of masks that evaluated loops lay on gathers and scatters, by ``ctypes``
``half``            LLVM narrows maxima of widened half-precision numbers
``sorting``         ``detail.block_mkperm`` sorts and keeps the order of equals
``optimizers``      the tuples in an optimizer's state, ``_step``, its order, ``_reset``, and rates that are arrays
``openblas``        the thread controls of the OpenBLAS inside NumPy, by ``ctypes``
``pool``            ``libnanothread`` gives work to Dr.Jit's threads, by ``ctypes``
``cublas``          Dr.Jit's stream, context and addresses, by ``ctypes``, and cuBLAS's own interface
``cuda``            the driver's and OptiX's libraries, by ``ctypes``
==================  ====================================================================================================
"""

#: The version of Dr.Jit that all of this was checked against.
CHECKED = "1.5.0"
