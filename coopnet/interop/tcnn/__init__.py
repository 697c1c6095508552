"""tiny-cuda-nn: its JSON configurations, and the parameters of its models.

========================  =======================================
:mod:`.configuration`     fields and training from JSON
:mod:`.json_files`        its dialect of JSON
:mod:`.keys`              reading the keys of a component
:mod:`.encodings`         encodings
:mod:`.networks`          networks and activations
:mod:`.losses`            losses
:mod:`.optimizers`        optimizers
parameters of its models
:mod:`.parameters`        one flat array, to fields and from them
:mod:`.padding`           features that it adds
========================  =======================================
"""

from . import parameters  # noqa: F401  # gives fields their methods
from .configuration import Configuration, from_config

__all__ = ["Configuration", "from_config"]
