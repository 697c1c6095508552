"""A neural BSDF in one file: the decoder's checkpoint, with latent code and lobes beside it."""

from __future__ import annotations

import os
from typing import Any

from ...interop.export.material import ENTRY
from ...io import describe, read
from ...io import save as save_field
from ...io.checkpoint import part_of
from ...io.files import file_name
from ...nn.parameters import parameters
from ..fields import build, load
from .decoder import Decoder
from .latent import Latent


def save(
    path: str | os.PathLike[str], decoder: Decoder, latent: Latent, lobes: Latent, specular: bool
) -> None:  # fmt: skip
    """Write a checkpoint that :func:`coopnet.load` reads as the decoder's field; raises as :func:`coopnet.save`.

    ``specular``: are there perfectly specular parts? The file does not contain them, but says that they are missing.
    """
    tensors: dict[str, Any] = {}
    described: dict[str, Any] = {"latent_features": decoder.latent_features, "directions": decoder.directions}
    if decoder.eta is not None:
        described["eta"] = decoder.eta
    for name, part in (("latent", latent), ("lobes", lobes)):
        if part.field is None:
            described[name] = part.constants.numpy().tolist()
        else:
            described[name] = describe(part.field)
            tensors |= {f"{name}.{p.name}": p.numpy("save") for p in parameters(part.field)}
    if specular:
        described["specular"] = True
    save_field(path, decoder.field, tensors=tensors, metadata={ENTRY: described})


def read_bsdf(path: str | os.PathLike[str]) -> tuple[Decoder, Any, Any, bool]:
    """Decoder, latent and lobes as :class:`NeuralBSDF` takes them, and whether there were perfectly specular parts.

    A checkpoint of a field alone is a decoder without latent code, with default lobes. Raises as :func:`coopnet.load`.
    """
    field, checkpoint = load(path), read(path)
    described = checkpoint.metadata.get(ENTRY, {})
    try:
        options = {"directions": described.get("directions", "rusinkiewicz"), "eta": described.get("eta")}
        decoder = Decoder(field, described.get("latent_features"), **options)
        parts = [part_of(checkpoint, name, described.get(name), build) for name in ("latent", "lobes")]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"NeuralBSDF: {file_name(path, 'NeuralBSDF')!r} holds no BSDF: {error}") from None
    return decoder, *parts, bool(described.get("specular", False))
