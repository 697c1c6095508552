"""Constants of training: how often things are done and checked.

They are read from this module at every use, so that tests can set them.
"""

#: Largest number of steps whose losses stay on the device before they are copied to the host.
WINDOW_STEPS = 256

# ---- Several steps in one call (benchmarks/training_steps.py) ----------------------------------------------------

#: Steps in one call. Replaying a function with a small step takes as long as its kernels. More steps gain little, and
#: all of them have to be traced.
UNROLLED_STEPS = 4
#: Smallest number of remaining steps for which tracing several at once pays.
UNROLLED_STEPS_LEFT = 2048
#: Largest duration of a step, in seconds, for which the overhead of a call matters.
UNROLLED_SECONDS = 1e-3
#: Number of steps that are timed before this is decided.
UNROLLED_STEPS_SEEN = 32

# ---- Many fields (benchmarks/many_fields.py) ---------------------------------------------------------------------

#: Largest number of fields in one kernel. Each field is traced as a function.
FIELDS_TOGETHER = 128
#: Largest batch of a field that is trained with others on CUDA: its gradient is summed in half precision.
FIELD_SAMPLES = 4096

# ---- Between steps -----------------------------------------------------------------------------------------------

#: Seconds between two losses that the progress bar shows.
PROGRESS_SECONDS = 0.5
#: Seconds between two lines of text that stand in for the bar where tqdm is not installed.
LINES_SECONDS = 5.0
#: Approximate seconds, and largest number of steps, between two exchanges, in which each process waits for all others.
EXCHANGE_SECONDS, EXCHANGE_STEPS = 0.25, 256

#: Recordings of a step, in most steps so far, of which a run warns.
RECORDINGS = 16

# ---- Divergence, loss scale --------------------------------------------------------------------------------------

#: So many consecutive losses that are not finite mean divergence, even if parameters are finite. After fewer, the next
#: may be finite: a loss scaler skips a step whose gradient overflows.
DIVERGED_LOSSES = 10
#: So many consecutive steps skipped by a loss scaler mean divergence. It halves the scale every time. After 64 times,
#: the scale is below the range of half precision, so the gradients themselves are infinite.
DIVERGED_STEPS = 64
#: The first loss scale, as in ``drjit.opt.GradScaler``; the factors by which it grows and shrinks; and the number of
#: steps without an overflow after which it grows.
SCALE_START, SCALE_GROWTH, SCALE_BACKOFF, SCALE_STEPS = 65536.0, 2.0, 0.5, 2000
#: Largest factor that it grows to. Gradients that are all zero never overflow, and must not make it infinite.
SCALE_MOST = 2.0**40
#: Seconds of work that is queued on the device at most. Ctrl-C, checkpoints and other hooks are no later than this.
QUEUED_SECONDS = 0.2
