"""Whatever a sender gets wrong in a message of any system, its recipient refuses it, and the run goes on.

Every kind of message is recorded in an honest run, and then sent with one thing wrong: by its schema, lost, or
twice. Each time a new federation runs until the round after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from every_system import CASES, Case, after, first, made, one_mode, parameters
from federation import Rig, resigned

import coterie.method as fl
from coterie.crypto import roster
from coterie.protocol import codec
from coterie.protocol.messages import forms
from coterie.transport.envelope import Envelope
from coterie.transport.local import LocalTransport

ROUNDS = 2
WRONG_TYPES = (True, 7, 0.5, "text", b"bytes", None, [1], {"a": 1})
Change = Callable[[fl.Message, Any], fl.Message | None]

TAKEN: dict[str, dict[str, str]] = {
    "Relayed": {
        "round": "the position names the vector; a relay has no round of its own",
        "cipher": "what the helper cannot open gets no place, which the notes count",
    },
    "ClusterSum": {"count": "the sum itself says of how many terms it is"},
    "Forget": {"round": "forgetting is never wrong"},
    "Described": {"floor": "a device's own floor; boasting is damped by the clustering"},
    "Describe": {"": "what a hub asks a device to describe; the device adds its own noise"},
    "Mingled": {
        "sizes": "all models are kept, with the reason",
        "participants": "all models are kept, with the reason",
    },
    "OpenedSums": {"participants": "only shown", "values": "a server that lies about a sum"},
    "Decrypt": {"numbers": "labels that are only sent back"},
    "Contribute": {"length": "a hub may ask for pads of any length up to a bound"},
    "Lead": {"version": "a number that is compared for equality alone", "counted": "the leader counts from there"},
    "Led": {"samples": "a head's word: it may lead many clients"},
    "Spread": {"version": "a number that is compared for equality alone"},
    "Endorsed": {"second": "empty unless a key has products"},
    "TurnParts": {"part": "emulated keys have no parts"},
    "Join": {"place": "a client whose place cannot be read takes part as all others: a refusal would show its group"},
    "Signature": {"sealed": "a client that seals no signature gets no place, which the notes count"},
}
"""By kind and field, what is taken although no honest sender fills it so, and why this harms nobody else."""


QUICK = ("fedavg", "secagg", "fedcaprivacy", "pafed")
"""Systems whose bytes are spoilt in every run of the tests; all others' in the long ones."""


# -- what a sender may get wrong: bytes that are no message, and fields that no honest one sends


def malformed(message: fl.Message) -> Iterator[tuple[str, bytes]]:
    """Frames that differ from this message's in one thing and are no message of its kind."""
    frame, kind = codec.encode(message), type(message)
    tag, *fields = msgspec.msgpack.decode(frame)
    yield from {
        "nothing": b"",
        "truncated": frame[:-1],
        "trailing bytes": frame + b"\0",
        "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
        "another kind": msgspec.msgpack.encode(["Other", *fields]),
        "no fields" if fields else "no tag": msgspec.msgpack.encode([tag] if fields else []),
        "a field too many": msgspec.msgpack.encode([tag, *fields, 0]),
    }.items()
    for at, name in enumerate(kind.__struct_fields__):
        types = forms(kind).scalars.get(name, frozenset())
        for value in WRONG_TYPES:
            if type(value) in types or (value is None and name in forms(kind).optional):
                continue
            changed = [*fields[:at], value, *fields[at + 1 :]]
            yield f"{name} of {type(value).__name__}", msgspec.msgpack.encode([tag, *changed])
        for label, value in wrong_arrays(message, name):
            ext = codec.array_to_ext(value)
            yield f"{name} {label}", msgspec.msgpack.encode([tag, *fields[:at], ext, *fields[at + 1 :]])
        if float in types:
            for number in (np.nan, np.inf, -np.inf):
                yield f"{name} {number}", msgspec.msgpack.encode([tag, *fields[:at], number, *fields[at + 1 :]])


def wrong_arrays(message: fl.Message, name: str) -> Iterator[tuple[str, Any]]:
    """Arrays of another dtype or more dimensions, and floats that are none."""
    value = getattr(message, name)
    if not isinstance(value, np.ndarray):
        return
    yield "of another dtype", value.astype("<f8" if value.dtype == np.dtype("<i4") else "<i4")
    yield "of another dimension", value[None]
    if value.dtype.kind == "f" and value.size:
        for number in (np.nan, np.inf, -np.inf):
            spoilt = value.copy()
            spoilt.flat[0] = number
            yield f"with {number}", spoilt


def unexpected(message: fl.Message) -> Iterator[tuple[str, fl.Message]]:
    """Messages of this kind with one field that no honest sender fills so: label and message."""
    for name in type(message).__struct_fields__:
        for label, value in unexpected_values(name, getattr(message, name)):
            yield f"{name} {label}", msgspec.structs.replace(message, **{name: value})


def unexpected_values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if name == "round":
        yield "earlier", value - 1
        yield "later", value + 1
    elif name in ("spec", "signature"):
        yield "of zeros", bytes(len(value))
    elif isinstance(value, np.ndarray) and value.size:
        yield "too short", value[:-1]
        yield "too long", np.concatenate([value, value[-1:]])
        if value.dtype.kind == "f":
            yield "huge", np.full_like(value, 1e30)
        if value.dtype.kind == "i":
            yield "negative", np.full_like(value, -1)
    elif isinstance(value, bytes) and value:
        yield "truncated", value[:-1]
        yield "empty", b""
    elif isinstance(value, int) and not isinstance(value, bool):
        yield "negative", min(value, 0) - 1  # where an honest one sends -1, another
        yield "huge", 1 << 62
    elif isinstance(value, float):
        yield "huge", 1e300


def signed_again(transport: LocalTransport, envelope: Envelope, original: Any, changed: Any) -> Any:
    """The change with its sender's good signature, or None for a kind whose signature is not over all its fields."""
    sender = transport.parties[envelope.src].own
    session = transport.hub.party.common.roster.session
    for bound in ((), (envelope.dst,), (session,)):
        if roster.signed(sender, original, *bound).signature == original.signature:
            return roster.signed(sender, changed, *bound)
    return None


# -- each kind of message of each system


@dataclass(frozen=True)
class Kind:
    """A kind of message in an honest run: its type, and the first round that has one."""

    type: type[fl.Message]
    round: int
    example: fl.Message


@cache
def sent(index: int) -> dict[str, Kind]:
    """By name, what the parties of this case read in an honest run. Of each the first."""
    run, found = after(CASES[index], ROUNDS), dict[str, Kind]()
    assert run.transport.transcript is not None
    seen = (one for view in run.transport.transcript.views.values() for one in view.seen if one.message is not None)
    for one in sorted(seen, key=lambda one: one.round):
        found.setdefault(one.kind, Kind(type(one.message), one.round, one.message))
    return found


def kinds(case: Case) -> dict[str, Kind]:
    """Those that no case before this one has sent, and of a long test all."""
    at = CASES.index(case)
    before = {kind.type for index in range(at) if first(CASES[index]) for kind in sent(index).values()}
    return {name: kind for name, kind in sent(at).items() if not first(case) or kind.type not in before}


def spoilt(
    case: Case, kind: Kind, change: Callable[[Any, Any, fl.Message, bytes], list[Any]], *, after_all: bool = True
) -> tuple[Rig | None, bool]:
    """A run in which one message of a kind is changed, up to the round after: and whether anybody has noticed.

    None for a set-up that ended with an error, which says why.  after_all: not only until somebody has noticed.
    """
    pending = [kind]

    def wire(transport: Any) -> None:
        def intercept(envelope: Any, frame: bytes) -> list[Any]:
            if not pending or envelope.kind != kind.type.__name__ or envelope.round != kind.round or envelope.sealed:
                return [frame]
            pending.clear()
            return change(transport, envelope, fl.codec.decode(frame, kind.type), frame)

        transport.intercept = intercept

    if kind.round:
        run, noticed = after(case, kind.round - 1), False
        wire(run.transport)
    else:
        try:
            run = made(case, wire=wire)
        except fl.RunError:
            return None, True
        noticed = bool(run.refused or run.transport.meter.lost)
    for r in range(max(1, kind.round), max(1, kind.round) + 2):
        if noticed and not after_all:
            break
        note = run.round(r)
        noticed |= bool(run.refused or run.transport.meter.lost) or "skipped" in note
    return run, noticed or bool(pending)  # a sealed message can't be changed on its way


def quick(case: Case) -> bool:
    return case[0] in QUICK and one_mode(case)


def models(run: Rig) -> np.ndarray:
    """(clients, numbers)."""
    found = run.system.models(run.federation).values()
    return np.stack([np.ravel(model.models if isinstance(model, fl.Mixture) else model) for model in found])


def finite(run: Rig) -> bool:
    return bool(np.isfinite(models(run)).all())


def changes(kind: Kind, every: bool) -> Iterator[tuple[str, bool]]:
    """Labels of what can be wrong, every one or the last, and whether the change has a good signature."""
    excused = TAKEN.get(kind.type.__name__, {})
    labels = [label for label, _ in unexpected(kind.example) if not {"", label.split()[0]} & excused.keys()]
    for label in labels if every else labels[-1:]:
        signed = bool(getattr(kind.example, "signature", b"")) and not label.startswith("signature")
        yield label, signed
        if signed and every:
            yield label, False


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["one", "every"])
@pytest.mark.parametrize("case", parameters(CASES, first))
def test_no_unexpected_field_is_taken(case: Case, every: bool) -> None:
    taken = []
    for name, kind in kinds(case).items():
        for label, resign in changes(kind, every):

            def send(transport: Any, envelope: Any, message: fl.Message, frame: bytes) -> list[Any]:
                wrong: fl.Message | None = dict(unexpected(message)).get(label)  # noqa: B023
                if wrong is not None and resign:  # noqa: B023
                    wrong = signed_again(transport, envelope, message, wrong)
                if wrong is None:
                    unsent.append(label)  # noqa: B023
                    return [frame]
                return [resigned(transport, envelope, fl.codec.encode(wrong), type(message))]

            unsent = list[str]()
            run, noticed = spoilt(case, kind, send)
            if not noticed and not unsent:
                taken.append(f"{name}: {label}{', signed' if resign else ''}")
            assert run is None or finite(run), (name, label)
    assert taken == [], "\n".join(taken)


def decodes(frame: bytes, kind: type[fl.Message]) -> bool:
    try:
        fl.codec.decode(frame, kind)
    except fl.DecodeError:
        return False
    return True


@pytest.mark.parametrize("case", parameters(CASES, one_mode))
def test_bytes_that_are_no_message_are_not_decoded(case: Case) -> None:
    for name, kind in kinds(case).items():
        decoded = [label for label, frame in malformed(kind.example) if decodes(frame, kind.type)]
        assert decoded == [], name


@pytest.mark.parametrize("case", parameters(CASES, quick))
def test_bytes_that_are_no_message_are_refused_where_they_arrive(case: Case) -> None:
    for kind in kinds(case).values():
        run, noticed = spoilt(case, kind, lambda t, envelope, m, frame: [resigned(t, envelope, frame[:-1], type(m))])
        assert noticed or run is None
        assert run is None or finite(run)


# Coterie and OFL have so many kinds of messages that the loss of each is tried in the long tests.
@pytest.mark.parametrize("case", parameters(CASES, lambda case: one_mode(case) and case[0] not in ("coterie", "ofl")))
def test_whatever_is_lost_the_run_goes_on(case: Case) -> None:
    for name, kind in kinds(case).items():
        run, noticed = spoilt(case, kind, lambda *_: [])
        assert noticed, name
        assert run is None or finite(run)


@pytest.mark.parametrize("case", parameters(CASES, one_mode))
def test_whatever_comes_twice_counts_once(case: Case) -> None:
    """Every message of a run, of every kind."""
    run = made(case, intercept=lambda envelope, frame: [frame, frame])
    for r in range(1, ROUNDS + 1):
        run.round(r)
        assert run.refused or run.transport.meter.lost, "copies are noticed"
        np.testing.assert_array_equal(models(run), models(after(case, r)))


@pytest.mark.parametrize("case", parameters(CASES, quick))
def test_a_flipped_bit_never_ends_a_run(case: Case) -> None:
    """Signed by its sender. What still decodes may count as the sender's own word."""
    source = np.random.default_rng(0)
    for kind in kinds(case).values():

        def send(transport: Any, envelope: Any, message: fl.Message, frame: bytes) -> list[Any]:
            at = int(source.integers(len(frame)))
            flipped = frame[:at] + bytes([frame[at] ^ 1 << int(source.integers(8))]) + frame[at + 1 :]
            return [resigned(transport, envelope, flipped, type(message))]

        spoilt(case, kind, send)


@pytest.mark.parametrize("case", parameters(CASES, one_mode))
def test_a_message_from_another_role_is_refused(case: Case) -> None:
    for name, kind in kinds(case).items():
        if kind.type.SRC == fl.ANY:
            continue

        def send(transport: Any, envelope: Any, message: fl.Message, frame: bytes) -> list[Any]:
            strangers = [
                party
                for party in transport.parties.values()
                if party.role != envelope.role and party.name != envelope.dst
            ]
            if not strangers:  # the system has two roles
                unsent.append(name)  # noqa: B023
                return [frame]
            false = msgspec.structs.replace(envelope, src=strangers[0].name, role=strangers[0].role, answers=0)
            return [frame, resigned(transport, false, frame, type(message))]

        unsent = list[str]()
        _, noticed = spoilt(case, kind, send, after_all=False)
        assert noticed or unsent, name
