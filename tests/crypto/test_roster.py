"""Rosters: the operator's signature decides whose keys are whose, and nothing of it can be changed unnoticed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie.method as fl
from coterie.crypto.roster import (
    check_roster,
    check_signed,
    entry,
    new_identity,
    sign_roster,
    signed,
    signing_key,
    simulated,
    verify_key,
)
from coterie.crypto.signing import OpeningKey, SealingKey, SignatureError, SigningKey, VerifyKey

ROLES = {"server": "server", "key_centre": "key_centre", "client/0": "client", "client/1": "client"}
ROSTER, IDENTITIES = simulated(ROLES, fl.Randomness(0, emulated=True))
OTHER = SigningKey(bytes(range(32)))
change = msgspec.structs.replace


def with_entry(roster: fl.Roster, at: int, **fields: object) -> fl.Roster:
    """The same roster with one entry changed, under the old signature."""
    entries = [*roster.entries]
    entries[at] = change(entries[at], **fields)
    return change(roster, entries=tuple(entries))


def signed_by_hand(entries: tuple[fl.Entry, ...], operator: SigningKey) -> fl.Roster:
    """What ``sign_roster`` gives, without its own checks."""
    roster = fl.Roster(bytes(16), entries, operator.public.to_bytes())
    return change(roster, signature=operator.sign("roster", msgspec.msgpack.encode(roster)))


def test_a_simulations_roster_is_its_operators() -> None:
    check_roster(ROSTER, ROSTER.operator)
    assert [(one.name, one.role) for one in ROSTER.entries] == list(ROLES.items())
    assert ROSTER.of_role("client") == ("client/0", "client/1")
    assert ROSTER.of_role("nobody") == ()
    assert len(ROSTER.session) == 16


def test_every_partys_secret_halves_fit_its_entry_and_no_others() -> None:
    for name, identity in IDENTITIES.items():
        signature, sealed = SigningKey(identity.signing).sign("x"), SealingKey(ROSTER.by_name[name].sealing_key)
        for other, one in ROSTER.by_name.items():
            if other == name:
                VerifyKey(one.verify_key).verify(signature, "x")
            else:
                with pytest.raises(SignatureError):
                    VerifyKey(one.verify_key).verify(signature, "x")
        assert OpeningKey(identity.opening).open(sealed.seal(b"data", "a", "b"), "a", "b") == b"data"
    assert len({key for one in ROSTER.entries for key in (one.verify_key, one.sealing_key)}) == 2 * len(ROLES)


def test_keys_and_sessions_are_others_in_every_federation() -> None:
    rosters = [simulated(ROLES, fl.Randomness(0, emulated=False))[0] for _ in range(2)]
    rosters += [ROSTER, simulated(ROLES, fl.Randomness(1, emulated=True))[0]]
    for part in (lambda r: r.session, lambda r: r.operator, lambda r: r.entries[0].verify_key, lambda r: r.signature):
        assert len({part(roster) for roster in rosters}) == 4
    assert simulated(ROLES, fl.Randomness(0, emulated=True))[0] == ROSTER  # an emulated run repeats
    with pytest.raises(fl.PeerError, match="another operator"):
        check_roster(rosters[0], rosters[1].operator)


CHANGED: list[tuple[str, Callable[[fl.Roster], fl.Roster]]] = [
    ("session", lambda r: change(r, session=bytes(16))),
    ("name", lambda r: with_entry(r, 2, name="client/2")),
    ("role", lambda r: with_entry(r, 2, role="server")),
    ("verify key", lambda r: with_entry(r, 1, verify_key=OTHER.public.to_bytes())),
    ("another's verify key", lambda r: with_entry(r, 1, verify_key=r.entries[0].verify_key)),
    ("sealing key", lambda r: with_entry(r, 1, sealing_key=r.entries[0].sealing_key)),
    ("order", lambda r: change(r, entries=r.entries[::-1])),
    ("order of two clients", lambda r: change(r, entries=(*r.entries[:2], r.entries[3], r.entries[2]))),
    ("a party fewer", lambda r: change(r, entries=r.entries[:-1])),
    ("a party twice", lambda r: change(r, entries=(*r.entries, r.entries[-1]))),
    ("nobody", lambda r: change(r, entries=())),
    ("no signature", lambda r: change(r, signature=b"")),
    ("another's signature", lambda r: change(r, signature=sign_roster(r.entries, OTHER, r.session).signature)),
]


@pytest.mark.parametrize(("what", "forge"), CHANGED, ids=[what for what, _ in CHANGED])
def test_whatever_is_changed_is_refused(what: str, forge: Callable[[fl.Roster], fl.Roster]) -> None:
    with pytest.raises(SignatureError):
        check_roster(forge(ROSTER), ROSTER.operator)


def test_another_operators_roster_is_refused_whole_or_in_part() -> None:
    other = sign_roster(ROSTER.entries, OTHER, ROSTER.session)
    check_roster(other, OTHER.public.to_bytes())
    with pytest.raises(fl.PeerError, match="another operator"):
        check_roster(other, ROSTER.operator)
    with pytest.raises(fl.PeerError, match="another operator"):
        check_roster(ROSTER, OTHER.public.to_bytes())
    with pytest.raises(SignatureError):
        check_roster(change(other, operator=ROSTER.operator), ROSTER.operator)


def test_no_party_stands_twice_even_under_a_good_signature() -> None:
    twice = (*ROSTER.entries, change(ROSTER.entries[0], role="client"))
    with pytest.raises(ValueError, match="names a party twice"):
        sign_roster(twice, OTHER, bytes(16))
    with pytest.raises(fl.PeerError, match="names a party twice"):
        check_roster(signed_by_hand(twice, OTHER), OTHER.public.to_bytes())


@pytest.mark.parametrize("field", ["verify_key", "sealing_key"])
@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33)], ids=["none", "short", "long"])
def test_bytes_that_are_no_key_are_refused_even_under_a_good_signature(field: str, key: bytes) -> None:
    good = signed_by_hand(ROSTER.entries, OTHER)
    check_roster(good, OTHER.public.to_bytes())
    bad = signed_by_hand(with_entry(ROSTER, 1, **{field: key}).entries, OTHER)
    with pytest.raises(fl.DecodeError, match="key has 32 bytes"):
        check_roster(bad, OTHER.public.to_bytes())


@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31)], ids=["zero", "one"])
def test_a_key_that_nothing_can_be_sealed_to_is_refused_even_under_a_good_signature(key: bytes) -> None:
    """Whoever wanted to tell that party something would fail, at its bidding."""
    bad = signed_by_hand(with_entry(ROSTER, 1, sealing_key=key).entries, OTHER)
    with pytest.raises(fl.DecodeError, match="not a usable X25519 key"):
        check_roster(bad, OTHER.public.to_bytes())


@pytest.mark.parametrize("empty", ["entries", "session"])
def test_a_roster_of_nobody_or_of_no_session_is_refused_even_under_a_good_signature(empty: str) -> None:
    bad = sign_roster(() if empty == "entries" else ROSTER.entries, OTHER, b"" if empty == "session" else bytes(16))
    with pytest.raises(fl.PeerError, match="names no party, or no session"):
        check_roster(bad, OTHER.public.to_bytes())


def test_an_operators_key_that_is_none_is_refused() -> None:
    with pytest.raises(fl.DecodeError, match="key has 32 bytes"):
        check_roster(change(ROSTER, operator=b"short"), b"short")


@given(at=st.integers(0, len(msgspec.msgpack.encode(ROSTER)) - 1), by=st.integers(1, 255))
def test_any_changed_byte_is_refused(at: int, by: int) -> None:
    data = bytearray(msgspec.msgpack.encode(ROSTER))
    data[at] ^= by
    with pytest.raises((fl.PeerError, msgspec.MsgspecError, UnicodeDecodeError)):
        check_roster(msgspec.msgpack.decode(bytes(data), type=fl.Roster), ROSTER.operator)


def test_a_roster_survives_its_bytes() -> None:
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(ROSTER), type=fl.Roster)
    assert again == ROSTER
    check_roster(again, ROSTER.operator)


def test_a_stranger_has_no_key_and_who_has_no_identity_signs_nothing() -> None:
    common = type("Told", (), {"roster": ROSTER})()
    assert verify_key(common, "server").to_bytes() == ROSTER.by_name["server"].verify_key
    with pytest.raises(fl.PeerError, match="client/9 is not on the roster"):
        verify_key(common, "client/9")
    own = fl.Own("server", fl.Randomness(0, emulated=True))
    with pytest.raises(fl.CryptoError, match="server has no identity to sign with"):
        signing_key(own)


@fl.message(src="server", dst="client")
class Word(fl.Signed, frozen=True):
    text: bytes
    weights: fl.Floats | None
    length: float


@fl.message(src="server", dst="client")
class Phrase(fl.Signed, frozen=True):
    text: bytes
    weights: fl.Floats | None
    length: float


def test_a_message_is_signed_over_its_kind_all_its_fields_and_what_it_is_bound_to() -> None:
    common = type("Told", (), {"roster": ROSTER})()
    own = fl.Own("server", fl.Randomness(0, emulated=True), IDENTITIES["server"])
    for weights in (None, np.arange(3, dtype=np.float32)):
        good = signed(own, Word(1, b"x", weights, 0.5), "client/0")
        check_signed(common, "server", good, "client/0")
        phrase = Phrase(1, b"x", weights, 0.5, signature=good.signature)
        others = ({"round": 2}, {"text": b"y"}, {"weights": np.zeros(0, np.float32)}, {"length": 1.0})
        for forged in (phrase, *(change(good, **field) for field in ({"signature": b""}, *others))):
            with pytest.raises(SignatureError):
                check_signed(common, "server", forged, "client/0")
        for sender, bound in (("client/1", ("client/0",)), ("server", ("client/1",)), ("server", ())):
            with pytest.raises(SignatureError):
                check_signed(common, sender, good, *bound)


@pytest.mark.parametrize("emulated", [True, False])
def test_no_repr_and_no_roster_shows_a_secret(emulated: bool) -> None:
    randomness = fl.Randomness(7, emulated)
    identity = new_identity("client/0", randomness)
    own = fl.Own("client/0", randomness, identity)
    shown = repr(identity) + str(identity) + repr(own) + repr(signing_key(own)) + f"{[identity]}"
    public = entry("client/0", "client", identity)
    roster = sign_roster((public,), OTHER, bytes(16))
    for secret in (identity.signing, identity.opening):
        assert len(secret) == 32
        assert secret not in msgspec.msgpack.encode(roster)
        for form in (repr(secret)[2:-1], secret.hex(), secret.hex()[:8]):
            assert form not in shown
    assert isinstance(identity, fl.Identity)
