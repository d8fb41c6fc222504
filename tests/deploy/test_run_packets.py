"""What of a former run counts in the next one: no packet, and all numbers and releases."""

from __future__ import annotations

import pytest

from coterie.crypto.roster import new_identity, sign_roster
from coterie.deploy.packets import End, NewRun, PlanUpdate, unwrap, wrap
from coterie.deploy.store import Kept, Numbering, begun_after, pack
from coterie.dp.ledger import Release, add
from coterie.protocol.errors import PeerError
from coterie.protocol.party import Nothing
from coterie.protocol.randomness import Randomness
from coterie.runs.keyring import PartyKeys
from tests.deploy.test_plan import ENTRIES, MEMBERS, OPERATOR

HUB, PARTY = "server", "client/3"


def keys(session: int) -> PartyKeys:
    identities = {name: new_identity(name, Randomness(1, emulated=True)) for name, _ in MEMBERS}
    return PartyKeys(sign_roster(ENTRIES, OPERATOR, bytes([session]) * 16), identities)


def test_packets_of_a_former_run_do_not_open_in_the_next() -> None:
    first, second = keys(1), keys(2)
    for packet in (End(), PlanUpdate(b"plan")):
        body = wrap(first, HUB, PARTY, 5, packet)
        assert unwrap(first, HUB, PARTY, body) == (5, packet)
        with pytest.raises(PeerError):
            unwrap(second, HUB, PARTY, body)


def test_the_plan_of_a_run_is_read_in_any_run_and_nothing_else_is() -> None:
    first, second = keys(1), keys(2)
    assert unwrap(second, HUB, PARTY, wrap(first, HUB, PARTY, 0, NewRun(b"plan"))) == (0, NewRun(b"plan"))
    with pytest.raises(PeerError, match="sends End with number 0"):
        unwrap(second, HUB, PARTY, wrap(first, HUB, PARTY, 0, End()))
    with pytest.raises(PeerError, match="sends NewRun with number 7"):
        unwrap(first, HUB, PARTY, wrap(first, HUB, PARTY, 7, NewRun(b"plan")))
    with pytest.raises(PeerError):  # nor for somebody else
        unwrap(second, HUB, "hospital-a", wrap(first, HUB, PARTY, 0, NewRun(b"plan")))


def test_numbers_keys_and_releases_go_on_and_all_else_begins_anew() -> None:
    numbering = Numbering(3, 700, {"a": 9}, {"a": [8]})
    kept = Kept(40, (5, 1), numbering=numbering, keys={"a": b"key"}, released_to=690, done=5, stops=4, ended=True)
    add(kept.released, Release("model", round=2), Release("model", round=3))
    both = Nothing(), Nothing()
    found = begun_after(pack(kept, both, both))
    fresh = Kept(40, numbering=Numbering(3, 700, {"a": 9}), keys={"a": b"key"}, released=kept.released, released_to=690)
    assert found == fresh
