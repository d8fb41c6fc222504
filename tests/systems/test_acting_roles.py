"""The roles that a party may act in follow from its role on the roster alone. No object is asked, no claim counts."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from every_system import CASES, TARGETS, Case, first, made, parameters
from federation import rig

import coterie.method as fl
from coterie.protocol.codec import frame_digest
from coterie.runs import registry
from coterie.transport.envelope import EnvelopeError
from coterie.transport.member import roles_of


def by_roster(run_system: fl.System, roster: object) -> dict[str, tuple[str, ...]]:
    return {entry.name: run_system.acting(entry.role) for entry in roster.entries}  # type: ignore[attr-defined]


@pytest.mark.parametrize("case", parameters(CASES, first))
def test_roles_by_the_roster_are_those_of_the_parties(case: Case) -> None:
    run = made(case)
    found = by_roster(run.system, run.common.roster)
    looked = roles_of(run.federation.parties)
    assert found == {name: looked(name) for name in run.federation.parties}
    for name, party in run.federation.parties.items():
        handled = {kind.DST for kind in party.handlers}
        assert handled <= {fl.ANY, *found[name]}


def test_a_class_that_acts_in_more_roles_than_its_system_says_is_no_party_of_it() -> None:
    ofl = registry.get("ofl")
    with pytest.raises(TypeError, match=r"a client of ofl acts as client, leader: its System says client \(also="):
        rig(replace(ofl, also={}), TARGETS).party("client/0")
    with pytest.raises(TypeError, match="its System says server, leader"):
        rig(replace(ofl, also={**ofl.also, "server": ("leader",)}), TARGETS)


def test_a_role_that_the_roster_does_not_give_is_refused() -> None:
    """A client of a system without leaders signs an envelope as the server, and as a leader."""
    run = made(("fedavg", "paper", {}))
    roles = by_roster(run.system, run.common.roster)
    member = run.transport.members["client/0"]
    member.roles = lambda name: roles.get(name, ())
    sent = []
    transmit = run.transport._transmit
    run.transport._transmit = lambda one, at: (sent.append(one), transmit(one, at))[1]  # type: ignore[method-assign]
    run.round(1)
    envelope, frame, _ = next(one for one in sent if one.envelope.dst == "client/0")
    keyring = member.keyring
    for role in ("leader", "client", "key_centre"):
        bare = msgspec.structs.replace(envelope, src="client/1", role=role, digest=b"", signature=b"", sealed=True)
        sealed = keyring.seal("client/1", "client/0", frame, bare.header())
        digest = frame_digest(sealed)
        signed = msgspec.structs.replace(bare, digest=digest, signature=keyring.sign("client/1", bare.header(), digest))
        with pytest.raises(fl.PeerError) as refused:
            member.open(signed, sealed)
        if role == "client":
            assert str(refused.value) == "Train comes from a client, not from a server"
        else:
            assert isinstance(refused.value, EnvelopeError)
            assert f"is no '{role}'" in str(refused.value)
