"""Everything that relies on undocumented behaviour of Dr.Jit: check these files again for every new version.

Each file says against which version it was checked, and has tests under ``tests/jit`` that fail if the behaviour
changes; ``make drjit-check`` runs them with the installed version.

===========================  ===========================================================================================
file                         what it relies on
===========================  ===========================================================================================
:mod:`.scopes`               flags of symbolic tracing and freezing; the C++ symbol that knows a virtual call's instance
:mod:`.kinds`                which types are cooperative vectors, tensors and arrays, and which may be combined
:mod:`.views`                the fields of ``drjit.nn.MatrixView``, and the attribute ``_packed_buffer``
:mod:`.layout`               that packed layouts are permutations with gaps, which packing row and column numbers shows
:mod:`.unpacked`             ``_traverse_1_cb_ro`` and ``_rw``, which show arrays to some functions and not to others
:mod:`.registers`            ``detail.new_scope`` orders a kernel; products longer than 64 make OptiX give all registers
:mod:`.backend_copies`       a traversal may begin within a derivative, on another backend, and keep its edges
:mod:`.owned`                frozen calls know only Dr.Jit's memory; what shares memory with NumPy, and what copies
:mod:`.deferred`             derivatives of variables older than a scope's second trace are postponed until it is left
:mod:`.batch_size`           products check their operands' sizes when a frozen function is replayed
:mod:`.captures`             what ``state_fn`` returns is an input of a frozen function, without being passed
:mod:`.lanes`                results of comparisons with NaN; custom operations get lists of gradients
:mod:`.constants`            the derivative of ``dr.select`` computes what would be a literal
:mod:`.kernel_parameters`    ``dr.opaque`` in a call that is being frozen makes memory that is gone at replays
:mod:`.uniform`              loads of cooperative vectors, and ``detail.update_indices``, which wraps variables
:mod:`.masks`                the stack of masks that evaluated loops apply to gathers and scatters
:mod:`.half`                 LLVM narrows maxima of widened half-precision numbers
:mod:`.sorting`              ``detail.block_mkperm`` sorts and keeps the order of equals
:mod:`.optimizers`           an optimizer's state, ``_step``, its order, ``_reset``, and rates that are arrays
:mod:`.native`               symbols of native libraries, Dr.Jit's and others, by ``ctypes``
===========================  ===========================================================================================
"""

#: The version of Dr.Jit that all of this was checked against.
CHECKED = "1.5.0"
