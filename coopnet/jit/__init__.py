"""All code that relies on undocumented behaviour of Dr.Jit: check these files again for every new version.

Each file says with which version it was checked. It has tests under ``tests/jit`` that fail if the behaviour changes;
``make drjit-check`` runs them with the installed version.

===========================  ===========================================================================================
file                         what it relies on
===========================  ===========================================================================================
:mod:`.scopes`               flags of symbolic tracing and freezing; the C++ symbol for the instance of a virtual call
:mod:`.kinds`                which types are cooperative vectors, tensors and arrays, and which may be combined
:mod:`.views`                the fields of ``drjit.nn.MatrixView``, and the attribute ``_packed_buffer``
:mod:`.layout`               that packed layouts are permutations with gaps, found by packing row and column numbers
:mod:`.unpacked`             ``_traverse_1_cb_ro`` and ``_rw``, by which some functions find arrays and others don't
:mod:`.registers`            ``detail.new_scope`` orders a kernel; products longer than 64 let threads use all registers
:mod:`.backend_copies`       a traversal may begin within a derivative, on another backend, and keep its edges
:mod:`.owned`                frozen calls know only Dr.Jit's memory; what shares memory with NumPy, and what copies
:mod:`.deferred`             derivatives of variables older than a scope's second trace are postponed until it is left
:mod:`.batch_size`           products check their operands' sizes when a frozen function is replayed
:mod:`.captures`             values that ``state_fn`` returns are inputs of a frozen function, without being passed
:mod:`.lanes`                results of comparisons with NaN; custom operations get lists of gradients
:mod:`.literals`             the derivative of ``dr.select`` is computed, even of literals
:mod:`.kernel_parameters`    ``dr.opaque`` in a call that is being frozen allocates memory that is freed before replays
:mod:`.uniform`              loads of cooperative vectors, and ``detail.update_indices``, which wraps variables
:mod:`.masks`                the stack of masks that evaluated loops apply to gathers and scatters
:mod:`.half`                 LLVM narrows maxima of widened half-precision numbers
:mod:`.sorting`              ``detail.block_mkperm`` is a stable sort
:mod:`.collection`           memory of NumPy's that is freed while a function is recorded ends the process
:mod:`.turns`                recording and replaying have global variables: one thread at a time
:mod:`.reads`                methods of ``drjit.ArrayBase`` that give values to other libraries can be replaced
:mod:`.optimizers`           an optimizer's state, ``_step``, its order, ``_reset``, and rates that are arrays
:mod:`.native`               symbols of native libraries, Dr.Jit's and others, by ``ctypes``
===========================  ===========================================================================================
"""

#: The version of Dr.Jit with which these files were checked.
CHECKED = "1.5.0"
