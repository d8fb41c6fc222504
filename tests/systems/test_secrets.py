"""Secret keys and models stay with those who may have them: every system whose keys a key centre deals."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import msgspec
import numpy as np
import pytest
from every_system import CASES, Case, first, made, parameters
from pafed_parts import small_keys

import coterie.method as fl
from coterie.crypto.roster import signing_key
from coterie.protocols.key_centre import KEY_CENTRE, Deal, Granted
from coterie.protocols.shared_groups import CORRELATIONS
from coterie.runs import registry
from coterie.runs.parties import dumped

ROUNDS = 3


def has_centre(case: Case) -> bool:
    system = registry.get(case[0])
    return KEY_CENTRE in system.factories(system.config(**{**system.defaults(case[1]), **case[2]}), case[1])


DEALT = [case for case in CASES if has_centre(case) and first(case)]


@pytest.mark.parametrize("case", parameters(DEALT))
def test_only_the_key_centre_grants_keys_and_each_party_once_and_its_own(case: Case) -> None:
    run = made(case)
    hub, centre, client = run.federation.hub, run.party(KEY_CENTRE), run.party("client/0")
    given = {
        name: next(message for _, message in run.view(name).messages(Granted))
        for name in run.federation.parties
        if name != KEY_CENTRE
    }
    for name, mine in given.items():
        party, before = run.party(name), dumped(run.party(name))
        with pytest.raises(fl.PeerError, match="already provided with keys"):
            party.keys.store(mine)
        other = given["client/1" if name == "client/0" else "client/0"]
        with pytest.raises(fl.PeerError, match="the signature is not one of key"):
            party.keys.store(msgspec.structs.replace(other, number=2))
        for signer in (hub, name):
            fields = 2, "", mine.names, fl.bundle([b"key"] * len(mine.names.split("\n")))
            forged = signing_key(run.party(signer).own).sign("granted", run.common.roster.session, name, *fields)
            with pytest.raises(fl.PeerError, match="the signature is not one of key"):
                party.keys.store(Granted(*fields, forged))
        assert dumped(party) == before
    grant = next(iter(centre.grants))
    for deal in (Deal(1, "", ""), Deal(2, "", ""), Deal(2, grant, client.name)):
        with pytest.raises(fl.PeerError, match="only the hub may send one"):
            centre.deal(deal, client.name)
    with pytest.raises(fl.PeerError, match="dealing 1 of"):
        centre.deal(Deal(1, "", ""), hub)


def windows(values: np.ndarray) -> set[bytes]:
    """Every pair of neighbouring numbers of a vector as bytes, as float32 and float64."""
    pairs = {bytes(values[i : i + 2].astype(dtype)) for dtype in ("<f4", "<f8") for i in range(len(values) - 1)}
    return {pair for pair in pairs if len(set(pair)) > 2}


def holds(data: bytes, parts: set[bytes]) -> bool:
    return any(part in data for part in parts)


@pytest.mark.parametrize(
    "case", parameters(DEALT, lambda case: case is next(one for one in DEALT if one[0] == case[0]))
)
def test_no_secret_key_crosses_the_wire_in_the_open_and_no_server_sees_a_number_of_a_model(case: Case) -> None:
    """With real ciphers, set-up included. Hub and key centre hold no secret key either.

    What Coterie's hub is dealt is its own part of what it groups with, sealed to it.
    """
    crossing: list[tuple[Any, bytes]] = []

    def tap(envelope: Any, frame: bytes) -> list[bytes]:
        crossing.append((envelope, frame))
        return [frame]

    with small_keys() if case[0] == "pafed" else nullcontext():
        run = made(case, emulated=False, intercept=tap)
        start, numbers = windows(run.common.initial), set[bytes]()
        for r in range(1, ROUNDS + 1):
            run.round(r)
            for model in run.models():
                numbers |= windows(model)
    numbers -= windows(run.common.starts.reshape(-1)) | start
    kept = case[:2] == ("mingledpie", "literal")  # as printed all join all clusters, so no model changes
    assert (len(numbers) == 0) if kept else (len(numbers) > 50)
    hub, clients = run.federation.hub, frozenset(run.common.clients)
    secrets: set[bytes] = set()
    for name, own in run.owns.items():
        secrets |= {own.identity.signing, own.identity.opening}
        held = {} if name == KEY_CENTRE else run.party(name).secret.keys.secret
        assert name != hub or held.keys() <= {CORRELATIONS}
        if name != hub:
            secrets |= {key if len(key) <= 32 else key[40:140] for key in held.values()}  # behind a key's header
    for name in (hub, KEY_CENTRE):
        assert not holds(dumped(run.party(name)), secrets)
    for envelope, frame in crossing:
        assert envelope.sealed == (envelope.kind == "Granted" and envelope.dst != hub)
        assert not holds(frame, secrets)
    seen = {True: list[bytes](), False: list[bytes]()}
    for name, view in run.transport.transcript.views.items():
        seen[name in clients] += [fl.codec.encode(one.message) for one in view.seen if one.message is not None]
    assert not any(holds(frame, numbers) for frame in seen[False])
    if case[0] != "coterie":  # where no model is ever sent
        assert any(holds(frame, start) for frame in seen[True]), "it would be found"
