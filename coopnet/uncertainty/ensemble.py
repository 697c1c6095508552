"""Several fields trained on the same data, as one field: where they disagree, the data do not determine the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import drjit as dr

from ..call import result_type
from ..checks import check_type, ensure, entries
from ..field import NeuralField, storage
from ..nn import Identity, Sequential
from ..nn.members import Members
from ..nn.parameters import parameters
from .data import check_trained

_WHERE = "ensemble"


def ensemble(fields: Sequence[NeuralField]) -> NeuralField:
    r"""Several fields that have learned the same data, as one field (Lakshminarayanan et al. 2017).

    Train them with different seeds, such as by :func:`fit_many`. Without a key, the ensemble returns the mean of its
    :math:`K` members, :math:`\mu = \frac1K \sum_k f_k(p)`. ``std(p)`` says how far they disagree, :math:`\sqrt{\frac1K
    \sum_k (f_k(p) - \mu)^2}`, as in :func:`mc_dropout`. All members are in one kernel.

    A key picks a member: number :math:`\mathrm{step} \bmod K`. This member gets the key of step :math:`\lfloor
    \mathrm{step} / K \rfloor` for its own draws. So :func:`mc_dropout` with a multiple of :math:`K` samples returns the
    moments of all members (and evaluates each once). In ``ray_march(..., dropout="ray")`` and ``render_mc``, a pass
    uses one member. A call with a key costs as much as all members.

    Args:
        fields: two or more built fields of one backend and precision, with the same inputs, outputs and ``bounds``.
            They stay as they are; architectures may differ.

    Returns:
        A :class:`NeuralField` with a copy of all parameters. It can be saved, moved, frozen and used in loops like any
        other.

    Raises:
        ValueError: fewer than two fields, one that is not built, or fields that differ in the above.
        TypeError: ``fields`` is not a sequence of fields.
        RuntimeError: called while Dr.Jit records a function or loop.

    >>> fields = [cn.NeuralField(None, cn.MLP(2, 3, width=16)).build(seed=i) for i in range(5)]
    >>> together = cn.ensemble(fields)
    >>> mean, deviation = together(p), together.std(p)
    """
    check_type(_WHERE, "fields", fields, Sequence, "a sequence of NeuralFields")
    together = entries(_WHERE, "fields", fields)
    ensure(len(together) > 1, f"{_WHERE}: fields has {len(together)} entries; two or more are needed.")
    for number, field in enumerate(together):
        check_type(_WHERE, f"fields[{number}]", field, NeuralField, "a NeuralField")
        check_trained(field, _WHERE)
        for what, of in _SAME.items():
            a, b = of(field), of(together[0])
            ensure(a == b, f"{_WHERE}: fields[{number}] has the {what} {a}, but fields[0] {b}; equal ones are needed.")
    first = together[0]
    encodings = [Identity() if field.encoding is None else field.encoding for field in together]
    members = Members(encodings, [field.network for field in together])
    result = NeuralField(members, Sequential(), first.output, first.in_features, first.bounds)
    assert first.precision is not None
    result = result.allocate(*storage(first.backend, first.precision, _WHERE))
    targets = {p.name: p for p in parameters(result)}
    for number, field in enumerate(together):
        for p in parameters(field):
            part, _, name = p.name.partition(".")
            targets[f"encoding.{part}s.{number}.{name}"].fill(p.numpy(_WHERE), _WHERE)
    return result.pack()


def members_of(field: Any) -> Members | None:
    """The members of an ensemble; ``None`` for other fields."""
    encoding = getattr(field, "encoding", None)
    return encoding if isinstance(encoding, Members) else None


def separate(field: NeuralField) -> list[NeuralField]:
    """The members of an ensemble as fields of their own, which share its parameters."""
    members = members_of(field)
    assert members is not None
    fields = []
    for encoding, network in zip(members.encodings, members.networks, strict=True):
        member = NeuralField(encoding, network, field.output, field.in_features, field.bounds)
        member.precision = field.precision
        fields.append(member)
    return fields


def ensemble_std(field: NeuralField, p: Any, where: str) -> Any:
    """The deviation of the members of ``field``; differentiable."""
    call, unit, _ = field._enter(p, None, True, where)
    result = result_type(field.output, call.leaf)
    members = members_of(field)
    assert members is not None
    each = [bundle[0] for bundle in members.each(unit, [])]
    return call.contained([result(v) for v in moments(each)[1]])


def moments(passes: Sequence[list]) -> tuple[list, list]:
    """Mean and deviation over ``passes``, each a list of arrays; differentiable."""
    count, means, deviations = 1 / len(passes), [], []
    for values in zip(*passes, strict=True):
        mean = sum(values[1:], values[0]) * count
        squares = [dr.square(v - mean) for v in values]
        variance = sum(squares[1:], squares[0]) * count
        means.append(mean)
        # where all agree, the root has no derivative: it is taken as 0
        deviations.append(dr.select(variance > 0, dr.sqrt(dr.select(variance > 0, variance, 1)), 0))
    return means, deviations


def _outputs(field: NeuralField) -> int:
    with dr.suspend_grad():
        return len(list(field([field.float32(0.5)] * field.in_features)))  # traced, not run


#: Properties that must be equal for all fields of an ensemble.
_SAME = {
    "backend": lambda field: field.backend,
    "precision": lambda field: field.precision,
    "number of inputs": lambda field: field.in_features,
    "number of outputs": _outputs,
    "output type": lambda field: field.output,
    "bounds": lambda field: field.bounds,
}
