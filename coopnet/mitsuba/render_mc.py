"""The uncertainty of a rendered picture: Monte Carlo dropout over the networks of a scene."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import drjit as dr
import mitsuba as mi

from ..checks import check_choice, check_int, check_type, check_unsigned, ensure
from ..field import NeuralField
from ..jit.collection import no_collection
from ..jit.turns import TURNS
from ..random.key import Key
from ..uncertainty import draws, has_dropout, warn_unseen
from ..uncertainty.mc_dropout import evaluated_passes
from . import call_targets, variants

_WHERE = "render_mc"


def render_mc(
    scene: Any, samples: int, key: Key, *, integrator: Any = None, sensor: Any = 0, spp: int = 16, seed: int = 0,
    masks: str = "pass",
) -> tuple[Any, Any]:  # fmt: skip
    r"""Mean and standard deviation of a picture over the dropout masks of the scene's networks.

    See Gal and Ghahramani 2016. A key can also draw parameters (:func:`coopnet.laplace`) or members
    (:func:`coopnet.ensemble`).

    .. math::
        \mu = \frac1n \sum_{i<n} I_i, \qquad \sigma = \sqrt{\frac1n \sum_{i<n} (I_i - \mu)^2}, \qquad
        I_i = \mathrm{render}(\mathrm{scene}, \mathrm{key.fold\_in}(\mathrm{key.step} \cdot n + i))

    All passes use the same random numbers (``seed``), so only the networks differ between them: the deviation is that
    of the model, not that of path tracing. It is a little too large if ``spp`` is small, because masks also change the
    noise, and if Russian roulette ends different paths in different passes (an ``rr_depth`` beyond ``max_depth`` turns
    that off). Moments are accumulated as in Welford (1962), in single precision. A pass is a frozen function: nothing
    is traced or compiled after the first, or after the second if the scene was never rendered before.

    With ``masks="pass"``, all samples of a pass have the same masks, those of the key's index, or of index 0. A pass
    then renders one function drawn from the model, and :math:`\sigma` says how much such functions disagree about a
    pixel. With ``"path"``, every vertex of every path draws its own masks, in integrators that evaluate networks
    outside of virtual calls; textures keep those of the pass. A pixel then averages over functions: :math:`\sigma`
    shrinks with ``spp``, and is the noise that dropout adds to the picture, not the uncertainty of the model.

    Args:
        scene: a ``mi.Scene`` with objects that have a ``key``, such as :class:`NeuralBSDF` and :class:`NeuralTexture`;
            or the integrator has one.
        samples: number of passes :math:`n`, an int in [2, 2^24].
        key: a :class:`coopnet.Key`; its index, if any, is one number.
        integrator: as in ``mi.render``; ``None`` for the scene's own.
        sensor: number of the sensor, or a sensor.
        spp: samples per pixel of each pass.
        seed: of the sampler, in [0, 2^32); the same in all passes.
        masks: ``"pass"`` or ``"path"``, see above.

    Returns:
        The pair (mean, standard deviation), ``mi.TensorXf`` of shape (height, width, channels), in the unit of the
        picture, without derivatives. Objects keep the keys that they had.

    Warns:
        RuntimeWarning: once, for dropout in a field with a grid; see :func:`coopnet.mc_dropout`.

    Raises:
        TypeError: ``scene``, ``key`` or ``integrator`` has another type.
        ValueError: no network of scene or integrator has a dropout with p > 0; ``masks="path"`` with an integrator
            that has no key, or if only textures, volumes, phase functions and emitters have dropout; neither the
            scene nor the call has an integrator; numbers out of range; an index of more than one number.
        RuntimeError: fields do not run in the variant that is set.

    >>> mean, deviation = cn.mitsuba.render_mc(scene, samples=32, key=cn.Key(seed=0), spp=64)
    """
    variants.current(_WHERE)
    check_type(_WHERE, "scene", scene, mi.Scene, "a mi.Scene of the variant that is set")
    samples = check_int(_WHERE, "samples", samples, 2, 2**24)
    check_type(_WHERE, "key", key, Key, "a coopnet.Key")
    one = key.index is None or isinstance(key.index, int) or len(key.index) == 1
    ensure(one, f"{_WHERE}: key has an index of several numbers; one is needed, or None.")
    integrator = scene.integrator() if integrator is None else integrator
    ensure(integrator is not None, f"{_WHERE}: the scene has no integrator; pass one.")
    check_type(_WHERE, "integrator", integrator, mi.Integrator, "a mi.Integrator, or None for the scene's,")
    if not isinstance(sensor, mi.Sensor):
        last = len(scene.sensors()) - 1
        ensure(last >= 0, f"{_WHERE}: the scene has no sensor; pass one.")
        sensor = check_int(_WHERE, "sensor", sensor, 0, last)
    spp = check_int(_WHERE, "spp", spp, 1)
    seed = check_unsigned(_WHERE, "seed", seed, 32)
    check_choice(_WHERE, "masks", masks, ("pass", "path"))
    plugins = [node for node in [*mi.traverse(scene).hierarchy, integrator] if _has_key(node)]
    ensure(any(map(_drops, plugins)), f"{_WHERE}: no network of scene or integrator has a Dropout with p > 0.")
    for field in (field for node in plugins for field in _fields(node)):
        if has_dropout(field):
            warn_unseen(field, _WHERE)
    if masks == "path":
        kinds = {
            "textures": mi.Texture,
            "volumes": mi.Volume,
            "phase functions": mi.PhaseFunction,
            "emitters": mi.Emitter,
        }
        dropping = [node for node in plugins if _drops(node)]
        names = [name for name, kind in kinds.items() if any(isinstance(node, kind) for node in dropping)]
        calls = all(isinstance(node, tuple(kinds.values())) for node in dropping)
        why = f"masks is 'path', but {' and '.join(names)} are evaluated in virtual calls"
        ensure(not calls, f"{_WHERE}: {why}; use masks='pass'.")
        hint = "networks are evaluated in virtual calls, where paths have no number; use NeuralPath"
        ensure(_has_key(integrator), f"{_WHERE}: masks is 'path', but in a {type(integrator).__name__} {hint}.")

    def render(scene: Any, integrator: Any, key: Key, _: Any) -> Any:
        keys = {id(node): key for node in plugins}
        if masks == "path":
            keys[id(integrator)] = Key(key.seed, None, key.step)
        with dr.suspend_grad(), _with_keys(plugins, keys):
            return mi.render(scene, integrator=integrator, sensor=sensor, spp=spp, seed=mi.UInt32(seed))

    key = key.traced(mi.UInt32)
    key.index = dr.opaque(mi.UInt32, 0) if key.index is None else key.index
    first, frozen = key.step * dr.opaque(mi.UInt32, samples), dr.freeze(render)
    others = call_targets.pointers()

    def draw(i: int) -> Any:
        return frozen(scene, integrator, key.fold_in(first + dr.opaque(mi.UInt32, i)), others)

    with TURNS, no_collection():
        return evaluated_passes(draw, samples, mi.Float)


@contextmanager
def _with_keys(plugins: list, keys: dict[int, Key]) -> Iterator[None]:
    """A block in which ``plugins`` have these keys; afterwards they have their previous ones."""
    before = [node.key for node in plugins]
    try:
        for node in plugins:
            node.key = keys[id(node)]
        yield
    finally:
        for node, old in zip(plugins, before, strict=True):
            node.key = old


def _has_key(node: Any) -> bool:
    return isinstance(getattr(type(node), "key", None), property)


def _drops(node: Any) -> bool:
    """Does a key draw anything, such as dropout masks, in a field of ``node`` or of objects in it?"""
    return any(map(draws, _fields(node)))


def _fields(node: Any) -> list:
    """The fields of ``node`` and of objects in it."""
    held = [node, *vars(node).values()]
    return [f for f in (*held, *(getattr(v, "field", None) for v in held)) if isinstance(f, NeuralField)]
