"""Constants of training: how often things are done and looked at.

They are read from this module at every use, so that tests can set them.
"""

#: Steps whose losses stay on the device, at most: then someone has to have looked at them.
WINDOW_STEPS = 256

# ---- Several steps in one call (benchmarks/training_steps.py) ----------------------------------------------------

#: Steps of a call. For small ones, replaying a function takes as long as its kernels do. More steps gain little, and
#: all of them are traced.
UNROLLED_STEPS = 4
#: Steps left from which on tracing several at once is made up for.
UNROLLED_STEPS_LEFT = 2048
#: Seconds of a step up to which a call is much of it.
UNROLLED_SECONDS = 1e-3
#: Steps that are looked at before.
UNROLLED_STEPS_SEEN = 32

# ---- Many fields (benchmarks/many_fields.py) ---------------------------------------------------------------------

#: Fields in one kernel at most: each is a callable that is traced.
FIELDS_TOGETHER = 128
#: Samples of a field at most that is trained with others on CUDA: its gradient is summed in half precision.
FIELD_SAMPLES = 4096

# ---- Between steps -----------------------------------------------------------------------------------------------

#: Seconds between two losses that the progress bar shows.
PROGRESS_SECONDS = 0.5
#: Seconds that a thread trains before others that wait have their turn: many short steps, so that handing on costs
#: little.
TURN_SECONDS = 0.02
#: Seconds between two looks at what other processes want, about: each waits for all of them; and steps at most.
EXCHANGE_SECONDS, EXCHANGE_STEPS = 0.25, 256

# ---- Divergence, loss scale --------------------------------------------------------------------------------------

#: Losses in a row that are not finite and mean divergence, though parameters are finite: a loss scaler skips a step
#: whose gradient overflows, and the next may be well.
DIVERGED_LOSSES = 10
#: Steps in a row that a loss scaler skips and that mean divergence. It halves the scale every time: after 64, no scale
#: that half precision allows is left, and gradients are infinite by themselves.
DIVERGED_STEPS = 64
#: The loss scale to begin with, as in ``drjit.opt.GradScaler``; what it is multiplied by after long without an
#: overflow, and after each; and steps without one after which it grows.
SCALE_START, SCALE_GROWTH, SCALE_BACKOFF, SCALE_STEPS = 65536.0, 2.0, 0.5, 2000
