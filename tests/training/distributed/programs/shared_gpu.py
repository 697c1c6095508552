"""All processes on the first GPU; each tells the error it has."""

import sys

from common import RANK, batch, make_field, tell

import coopnet as cn

try:
    cn.fit(make_field(), batch, 10, progress=False, distributed="auto")
except ValueError as error:
    tell(str(error))
else:
    sys.exit(f"process {RANK} has trained")
