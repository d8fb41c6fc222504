"""Signed status reports, by which a hub clusters clients and a cluster chooses its leader (OFL, section 3.5)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, MutableMapping

import numpy as np
from numpy.typing import ArrayLike

import coterie.protocol.core as fl
from coterie.crypto.roster import check_signed, signed
from coterie.crypto.signing import ReplayError
from coterie.crypto.sketch import project
from coterie.devices.resources import Status, status
from coterie.protocol.codec import decode
from coterie.protocols.averaging import MOST_SAMPLES
from coterie.selection.contexts import tamed
from coterie.selection.resources import Costs, Limits

SUMMARY = 8
"""Numbers that summarise a released update."""

MOST_EPSILON = 1e6
"""The privacy budget of a client that has set none."""

RANGES: Mapping[str, tuple[float, float]] = {
    "compute_flops_per_s": (1e6, 1e15),
    "cpu_ghz": (1e-3, 1e2),
    "memory_gib": (1e-3, 1e5),
    "up_bytes_per_s": (1.0, 1e12),
    "down_bytes_per_s": (1.0, 1e12),
    "compute_flops": (0.0, 1e24),
    "radio_s": (0.0, 1e9),
    "samples": (1.0, float(MOST_SAMPLES)),
    "present_s": (0.0, 1e9),
    "epsilon": (0.0, MOST_EPSILON),
}
"""What a report may say: five numbers of the device, then the limits of one time step (eq. 4) in operations, seconds of
transfer, training samples, seconds of presence and epsilon that is left.
"""

FIELDS = tuple(RANGES)
_DEVICE = 5
_ROUNDING = 1e-6


@fl.message(src="client")
class StatusReport(fl.Signed, frozen=True):
    """RS of algorithm 1. client: whose.  values: (10,), ``FIELDS``.  update: (SUMMARY,), see ``summary``."""

    client: str
    values: fl.Doubles
    update: fl.Floats


def reported(
    party: fl.Party, round: int, step_s: float, epsilon: float = MOST_EPSILON, update: fl.Vector | None = None
) -> fl.Work[StatusReport]:
    """``report = yield from reported(self, msg.round, step_s)`` in a client's handler.

    step_s: of the time step that begins.  update: ``summary`` of the last released update.
    """
    told: Status = yield fl.Local(status, (party.now_s, step_s))
    given_s = told.share * step_s
    device = (told.compute_flops_per_s, told.cpu_ghz, told.memory_gib, told.up_bytes_per_s, told.down_bytes_per_s)
    limits = (given_s * told.compute_flops_per_s, given_s, party.samples, told.present_s, min(epsilon, MOST_EPSILON))
    summarised = np.zeros(SUMMARY, np.float32) if update is None else update
    report = StatusReport(round, party.name, np.array([*device, *limits], np.float64), summarised)
    return signed(party.own, report, party.common.roster.session)


def summary(common: fl.Common, indices: ArrayLike, values: ArrayLike) -> fl.Vector:
    """The direction of a sparse update, in SUMMARY numbers of length 1 or 0: a random projection with signs from the
    session.

    indices, values: as released, with noise.
    """
    vector = np.zeros(common.spec.size)
    vector[np.asarray(indices, np.int64)] = np.asarray(values, np.float64)
    seed = hashlib.sha256(b"coterie/reports/summary/" + common.roster.session).digest()
    found = project(vector, SUMMARY, seed)
    length = float(np.linalg.norm(found))
    return np.asarray(found / length if length > 0 else found, np.float32)


def checked(
    common: fl.Common, report: StatusReport, round: int, step_s: float, *, sender: str | None = None
) -> StatusReport:
    """The report, signed by its client for this session and round. sender: given if it must be the client itself.

    Raises SignatureError, ReplayError for another round, and PeerError for impossible numbers.
    """
    name = report.client
    if name not in common.clients or (sender is not None and sender != name):
        raise fl.PeerError(f"a status report of {name[:40]!r}{'' if sender is None else f' from {sender}'}")
    check_signed(common, name, report, common.roster.session)
    if report.round != round:
        raise ReplayError(f"{name}: a status report of round {report.round} in round {round}")
    if report.values.shape != (len(FIELDS),) or report.update.shape != (SUMMARY,):
        raise fl.PeerError(
            f"{name}: a status report of {report.values.shape} values and {report.update.shape} of a summary"
        )
    said = dict(zip(FIELDS, report.values.tolist(), strict=True))
    most = {
        "compute_flops": said["compute_flops_per_s"] * step_s,
        "radio_s": step_s,
        "present_s": step_s,
    }
    for field, (low, high) in RANGES.items():
        high = min(high, most.get(field, high)) * (1 + _ROUNDING)
        if not low <= said[field] <= high:
            raise fl.PeerError(f"{name}: {field} is {said[field]:.6g}; from {low:.6g} to {high:.6g} are taken")
    length = float(np.linalg.norm(report.update))
    if not length <= 1 + 1e-3:
        raise fl.PeerError(f"{name}: the summary of its update has length {length:.6g}; at most 1 is taken")
    return report


def opened(common: fl.Common, data: bytes, round: int, step_s: float) -> StatusReport:
    """``checked`` for a report that a leader has forwarded as ``codec.encode(report)``."""
    return checked(common, decode(data, StatusReport), round, step_s)


def accepted(known: MutableMapping[str, StatusReport], report: StatusReport) -> None:
    """Keep a checked report. Raises ReplayError unless it is of a later round."""
    last = known.get(report.client)
    if last is not None and report.round <= last.round:
        raise ReplayError(f"{report.client}: a status report of round {report.round} after one of round {last.round}")
    known[report.client] = report


def limits(report: StatusReport) -> Limits:
    return Limits(*report.values[_DEVICE:].tolist())


def costs(
    report: StatusReport,
    spec: fl.ModelSpec,
    epochs: float,
    *,
    full_samples: float,
    epsilon_round: float = 0.0,
    up_bytes: float = 8.0,
    down_bytes: float = 8.0,
) -> Costs:
    """C_{R,up} and C_{R,down} of eq. (4) for one parameter.

    up_bytes, down_bytes: with its index.  full_samples: with which a client may upload its whole model.  epsilon_round:
    of a release of the whole model.
    """
    said = dict(zip(FIELDS, report.values.tolist(), strict=True))
    work = spec.flops_per_sample * said["samples"] * epochs / spec.size
    up_s, down_s = up_bytes / said["up_bytes_per_s"], down_bytes / said["down_bytes_per_s"]
    speed = said["compute_flops_per_s"]
    # Operations (those of a round's training spread over the model; one to write a downloaded parameter), seconds on
    # the client's link, samples, seconds that both take, and epsilon. Downloads cost no samples and no epsilon.
    return Costs(
        up=(work, up_s, full_samples / spec.size, work / speed + up_s, epsilon_round / spec.size),
        down=(1.0, down_s, 0.0, 1 / speed + down_s, 0.0),
    )


def features(reports: Mapping[str, StatusReport]) -> tuple[tuple[str, ...], fl.Doubles, tuple[int, ...]]:
    """What clients are clustered by: names, rows (n, 18), and the columns of each of three groups: logarithms of
    abilities, of limits, and the summary of the last released update.
    """
    names = tuple(reports)
    groups = (_DEVICE, len(FIELDS) - _DEVICE, SUMMARY)
    if not names:
        return names, np.zeros((0, sum(groups))), groups
    values = np.stack([reports[name].values for name in names])
    rows = np.hstack([np.log1p(values), np.stack([reports[name].update for name in names])])
    # Clamped to three robust deviations from a column's median, so that no claim squeezes the others.
    return names, tamed(rows), groups
