"""A round that is tried again, twice, and after parties were made again from their bytes: the same models."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from every_system import CASES, Case, after, made, own_messages, parameters
from federation import Pulled, Repeatable, Rig, on_the_wire
from joint_parts import HOLDERS, KEY, VECTORS, held, joint, of_round, opened, opened_by, small_keys, summed
from joint_parts import made as made_key
from ofl_parts import WHOLE

import coterie.method as fl
from coterie.crypto.threshold_pads import sum_dec
from coterie.protocols.cluster_sums import ClusterModel
from coterie.protocols.threshold import hand_over, make_keys, open_sums
from coterie.protocols.threshold.keys import Consent, HubKey, text
from coterie.protocols.threshold.opening import Announce, Decrypt, Partials
from coterie.systems.fedepc.messages import Describe
from coterie.systems.mingledpie.messages import Mingled
from coterie.systems.pafed.messages import Compare, Invert, Refresh
from coterie.transport.local import LocalTransport

ROUNDS, BROKEN = 3, 2


def retrying(transport: LocalTransport) -> None:
    transport.retries = True


def arrays(model: fl.ClientModel) -> list[np.ndarray]:
    return [model.weights, model.models] if isinstance(model, fl.Mixture) else [np.asarray(model)]


def same(one: Rig, other: Rig) -> bool:
    found = [run.system.models(run.federation) for run in (one, other)]
    return all(
        np.array_equal(a, b)
        for name in one.common.clients
        for a, b in zip(arrays(found[0][name]), arrays(found[1][name]), strict=True)
    )


def sent_in(case: Case) -> int:
    """How many messages round ``BROKEN`` has."""
    run, count = after(case, BROKEN - 1), 0
    transmit = run.transport._transmit

    def counting(*what: Any) -> None:
        nonlocal count
        count += 1
        transmit(*what)

    run.transport._transmit = counting  # type: ignore[method-assign]
    run.round(BROKEN)
    return count


def breaking(run: Rig, at: int, r: int, attempt: int) -> None:
    """Drive a round until so many messages were sent, where the hub dies."""
    transmit, count = run.transport._transmit, 0

    def dying(*what: Any) -> None:
        nonlocal count
        count += 1
        if count > at:
            raise fl.RunError("killed")
        transmit(*what)

    with patch.object(run.transport, "_transmit", dying), pytest.raises(fl.RunError, match="killed"):
        run.transport.drive(run.hub.round(r), r, attempt)


def again(run: Rig) -> None:
    """Make every party again from its bytes, also for the round's beginning, as after a restart of its machine."""
    for name in run.federation.parties:
        if name != run.federation.hub:
            run.federation.parties.restart(name)  # type: ignore[attr-defined]


@pytest.mark.parametrize("case", parameters(CASES, own_messages))
def test_a_repeated_attempt_gives_the_same_models(case: Case) -> None:
    run, count = after(case), sent_in(case)
    retrying(run.transport)
    for r in range(1, ROUNDS + 1):
        if r != BROKEN:
            run.round(r)
            continue
        breaking(run, count // 3, r, 0)
        again(run)
        breaking(run, count - 1, r, 1)
        again(run)
        notes = dict(run.transport.drive(run.hub.round(r), r, 2))
        assert "skipped" not in notes
    assert same(after(case, ROUNDS), run)
    assert not same(run, after(case))


REAL: list[Case] = [
    ("fedcaprivacy", "paper", {"clusters": 2, "schedule": "always"}),
    ("fedcaprivacy", "hardened", {"clusters": 2, "min_cluster": 2, "descriptor": "signature"}),
    ("mingledpie", "hardened", {"clusters": 2, "hardening": "uploads", "keys": "threshold"}),
    ("pafed", "hardened", {"participation": 1.0}),
    ("pafed", "paper", {"participation": 1.0, "keys": "threshold"}),
    ("ofl", "hardened", {**WHOLE, "clusters": 2, "recluster_every": 9}),
]


@pytest.mark.long
@pytest.mark.parametrize("case", parameters(REAL))
def test_a_repeated_attempt_with_real_ciphers_gives_the_same_models(case: Case) -> None:
    """Bit for bit under Paillier, and within the error of CKKS. Secrets are drawn anew in each attempt."""
    with patch("federation.Repeatable", Repeatable if case[0] == "fedcaprivacy" else fl.Randomness):
        whole = made(case, emulated=False)
        run = made(case, emulated=False, wire=retrying)
    whole.rounds(ROUNDS)
    run.rounds(BROKEN - 1)
    breaking(run, sent_in(case) - 3, BROKEN, 0)
    again(run)
    assert "skipped" not in run.transport.drive(run.hub.round(BROKEN), BROKEN, 1)
    for r in range(BROKEN + 1, ROUNDS + 1):
        assert "skipped" not in run.round(r)
    error = {"mingledpie": 1e-3, "pafed": 5e-3, "ofl": 1e-2}.get(case[0], 0.0)
    np.testing.assert_allclose(run.models(), whole.models(), atol=error, rtol=0)


# -- what a repeated attempt must not show -----------------------------------------------------------------------------


def one_fewer(case: Case, kind: type[Any]) -> tuple[Rig, dict[str, Any]]:
    """A round that dies when its first cluster model is sent, and is tried again without a client of that cluster."""
    run = made(case, wire=retrying)
    run.round(1)
    sums: list[str] = []
    transmit = run.transport._transmit

    def dying(sent: Any, at: Any) -> None:
        if sent.envelope.kind == kind.__name__:
            sums.append(sent.envelope.dst)
            raise fl.RunError("killed")
        transmit(sent, at)

    with patch.object(run.transport, "_transmit", dying), pytest.raises(fl.RunError, match="killed"):
        run.transport.drive(run.hub.round(2), 2)
    (gone,) = sums
    run.links.away[gone, 2] = "offline"
    return run, dict(run.transport.drive(run.hub.round(2), 2, 1))


@pytest.mark.parametrize(
    "case",
    [
        ("fedcaprivacy", "paper", {"clusters": 2, "schedule": "every:100"}),
        ("fedcaprivacy", "hardened", {"clusters": 2, "min_cluster": 2, "descriptor": "model", "sketch_dim": 8}),
        ("fedcaprivacy", "hardened", {"clusters": 2, "min_cluster": 2, "descriptor": "signature"}),
        ("fedepc", "hardened", {"min_cluster": 2, "participation": 1.0, "fill": 1.0}),
    ],
    ids=["paper", "sketch", "signature", "fedepc"],
)
def test_two_sums_of_a_cluster_do_not_differ_by_one_client(case: Case) -> None:
    run, notes = one_fewer(case, ClusterModel)
    reasons = [reason for reason in run.refused if "their difference would show some of them" in reason]
    assert len(reasons) == 1
    assert sum(run.refused[reason] for reason in reasons) >= 1
    unreleased = notes["clusters"]["unreleased"] if run.system.name == "fedcaprivacy" else notes["unreleased"]
    assert [why for why in unreleased.values() if "refused" in why]
    run.links.away.clear()
    assert "skipped" not in run.round(3)
    assert not run.refused


def test_a_set_up_that_loses_a_client_after_its_sums_ends_with_an_error() -> None:
    """Two sums of the statistics of all participants would show those of one."""
    case: Case = ("fedcaprivacy", "hardened", {"clusters": 2, "min_cluster": 2, "descriptor": "signature"})
    run = made(case, wire=retrying, quorum=5)
    run.transport.drive(run.hub.setup(), 0, 1)  # with all of them it goes well again
    run.links.away["client/5", 0] = "offline"
    with pytest.raises(fl.RunError, match="no sum of 5 terms: csp: refused"):
        run.transport.drive(run.hub.setup(), 0, 2)


def test_no_ciphertext_is_opened_twice_because_a_round_is_tried_again() -> None:
    """Not even by a hub that sends what it has sent before. What was opened counts, too, for the room of the noise."""
    with small_keys():
        run = joint(emulated=False)
        made_key(run)
        run.transport.retries = True
        cipher = summed(run, *VECTORS)
        one, (halves, weights) = run.hub.joint.group(KEY), of_round(run, cipher, 3).terms()
        request = sum_dec(one, run.hub.keys.public(KEY), cipher.cipher, halves, weights).request.to_bytes()
        signed, rows = fl.bundle([half.to_bytes(one) for half in halves.values()]), np.array([0, 3, cipher.length])
        found: list[list[str]] = []

        def steps() -> Any:
            of = 3, KEY, 1
            yield from fl.for_each(dict.fromkeys(HOLDERS, Announce(*of, rows)), Consent, lambda *_: None)
            ask = Decrypt(*of, text(HOLDERS), np.array([0]), fl.bundle([request]), signed)
            answers = yield from fl.for_each(dict.fromkeys(HOLDERS, ask), Partials, lambda *_: None)
            found.append(sorted(answers.got))

        run.transport.drive(steps(), 3)
        counted = {name: opened_by(run, name) for name in HOLDERS}
        run.transport.drive(steps(), 3, 1)
        assert found == [sorted(HOLDERS), []]
        assert set(map(str, run.refused)) == {
            "client/Decrypt: asked to open the same ciphertext again: one partial decryption is all that is given"
        }
        assert {name: opened_by(run, name) for name in HOLDERS} == counted
        again = opened(run, summed(run, *VECTORS), r=4)  # another encryption of the same is opened
        np.testing.assert_allclose(again.values, VECTORS.sum(axis=0), atol=1e-2)


@pytest.mark.parametrize("again", [hand_over, make_keys], ids=["handed over", "another key"])
def test_what_was_opened_under_a_key_counts_after_an_attempt_that_gave_it_to_others_is_undone(again: Any) -> None:
    """The attempt opens a sum, gives the key away, and opens another one; then the old holders have the key again."""
    with small_keys():
        run = joint(emulated=False, sums=2)
        made_key(run)
        run.transport.retries = True
        new = ("client/0", "client/4", "helper")

        def steps() -> Any:
            yield from open_sums(HubKey(run.hub, KEY, 3), {0: summed(run, *VECTORS, r=3)})
            yield from again(HubKey(run.hub, KEY, 3), new)
            yield from open_sums(HubKey(run.hub, KEY, 3), {1: summed(run, *VECTORS, r=3)})

        run.transport.drive(steps(), 3)
        assert opened_by(run, "helper") == (4 if again is hand_over else 2)  # with each key's trial

        def undone() -> Any:
            yield from open_sums(HubKey(run.hub, KEY, 3), {0: summed(run, *VECTORS, r=3)})

        run.transport.drive(undone(), 3, 1)
        found = {name: opened_by(run, name) for name in HOLDERS}
        assert held(run, "client/3").number == 1, "the old holders have the key again"
        mine = 5 if again is hand_over else 3  # client/0 helps before and after the hand-over
        assert found == {name: mine if name == "client/0" else 3 for name in HOLDERS}


@pytest.mark.parametrize("other", [False, True], ids=["the same model", "another model"])
def test_an_upload_is_counted_for_each_model_that_a_hub_sends(other: bool) -> None:
    """A hub that tries a round again with another model gets another noisy change, which the ledger counts."""
    case: Case = ("ofl", "hardened", {"clusters": 2, "smallest": 1, "recluster_every": 5, "detection": "none"})
    run = made(case, wire=retrying)
    run.round(1)
    run.transport.drive(run.hub.round(2), 2)
    first = [run.party(name).state.released for name in run.common.clients]
    assert {len(released) for released in first} == {2}

    def steps() -> Any:
        if other:
            for name in run.common.clients:
                party = run.party(name)
                party.state.weights = party.model + np.float32(1)
        return (yield from run.hub.round(2))

    run.transport.drive(steps(), 2, 1)
    again = [run.party(name).state.released for name in run.common.clients]
    assert {len(released) for released in again} == ({3} if other else {2})
    counted = [run.system.ledger(run.federation)[name] for name in run.common.clients]  # type: ignore[misc]
    assert [len(releases) for releases in counted] == list(map(len, again))


@pytest.mark.parametrize(("factor", "count"), [(1.0, 1), (0.5, 2)], ids=["the same", "another clip"])
def test_a_description_is_counted_for_each_that_a_hub_asks_for(factor: float, count: int) -> None:
    run = made(("fedepc", "paper", {"send": "noise", "noise_along": "all"}), wire=retrying)
    on_the_wire(run.transport, Describe, lambda msg: msgspec.structs.replace(msg, clip=factor * msg.clip))
    run.transport.drive(run.hub.setup(), 0, 1)
    assert {len(run.party(name).state.released) for name in run.common.clients} == {count}
    assert {len(releases) for releases in run.system.ledger(run.federation).values()} == {count}  # type: ignore[misc]


# -- what it does show, as the systems' pages say ----------------------------------------------------------------------


class Noting(Pulled):
    """Notes what every client's last training gave."""

    trained: dict[str, np.ndarray]

    def fit(self, party: str, effect: Any) -> Any:
        fitted = super().fit(party, effect)
        self.trained = {**getattr(self, "trained", {}), party: fitted.weights}
        return fitted


def test_mingled_sums_of_two_attempts_show_the_client_that_is_gone() -> None:
    """A client with both sums subtracts them, and has the other's model, and the clusters that it named."""
    run = made(("mingledpie", "paper", {"clusters": 3}), wire=retrying, effects=Noting)
    gone = "client/5"
    run.round(1)
    transmit = run.transport._transmit

    def dying(sent: Any, at: Any) -> None:
        if sent.envelope.kind == "Received":
            raise fl.RunError("killed")
        transmit(sent, at)

    with patch.object(run.transport, "_transmit", dying), pytest.raises(fl.RunError, match="killed"):
        run.transport.drive(run.hub.round(2), 2)
    run.links.away[gone, 2] = "offline"
    run.transport.drive(run.hub.round(2), 2, 1)
    first, second = (msg for _, msg in run.view("client/0").messages(Mingled, 2))
    assert (first.participants, second.participants) == (6, 5)
    curious, model = run.party("client/0"), run.transport.effects.trained[gone]  # type: ignore[attr-defined]
    key, found = curious.keys.own("user"), []
    for one, other in zip(*(fl.unbundle(msg.ciphers, curious.layout.slots) for msg in (first, second)), strict=True):
        a, b = (key.decrypt(key.public.from_bytes(part)) if part else 0.0 for part in (one, other))
        if np.size(a) >= len(model):
            found.append(float(np.abs((a - b)[: len(model)] - model).max()))
    named = int((first.sizes - second.sizes).sum())
    assert sum(error < 1e-3 for error in found) == named > 0


def test_the_means_of_two_attempts_show_ofl_s_server_the_leader_that_is_gone() -> None:
    case: Case = ("ofl", "hardened", {**WHOLE, "clusters": 3, "smallest": 1, "recluster_every": 9})
    run = made(case, wire=retrying)
    run.round(1)
    held: dict[str, np.ndarray] = {}

    def watch(envelope: Any, frame: bytes) -> list[bytes]:
        if envelope.kind == "Submitted":  # the leader's own model, as it is in its memory then
            held[envelope.src] = run.party(envelope.src).secret.office.model.astype(np.float64)
        return [frame]

    run.transport.intercept = watch
    run.transport.drive(run.hub.round(2), 2)
    of_three, model = run.hub.state.weights.astype(np.float64), dict(held)
    gone = next(iter(run.hub.state.leaders.values()))
    run.links.away[gone, 2] = "offline"
    run.transport.drive(run.hub.round(2), 2, 1)
    assert len(model) == 3
    assert np.abs(3 * of_three - 2 * run.hub.state.weights - model[gone]).max() < 0.01


def test_pafed_s_helper_is_asked_for_the_same_numbers_under_other_masks() -> None:
    run = made(("pafed", "paper", {"participation": 1.0}), wire=retrying, delta=0.5)
    run.rounds(2)
    for attempt in (0, 1):
        run.transport.drive(run.hub.round(3), 3, attempt)
    for kind in (Refresh, Compare, Invert):
        messages = [msg for _, msg in run.view("helper").messages(kind, 3)]
        assert len(messages) == 2
        assert getattr(messages[0], "count", 0) == getattr(messages[1], "count", 0)
