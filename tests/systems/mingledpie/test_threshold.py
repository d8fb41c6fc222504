"""MingledPie with keys=threshold: rounds are those of the shared key, and server and one client open nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import joint_parts
import numpy as np
import pytest
from federation import Rig, Steady, misbehaving, on_the_wire
from joint_keys import open_together
from mingledpie_parts import EVERYBODY, REALLY, TARGETS, change, chosen, held, pies
from prepared import begun

from coterie.crypto import roster, threshold, threshold_opening
from coterie.crypto.ckks_parameters import INSECURE
from coterie.crypto.threshold_pads import SumRequest, sum_dec
from coterie.privacy.attacks.key_in_sum import forged
from coterie.privacy.audits.mingledpie import AUDIT
from coterie.privacy.views import held_key
from coterie.protocol.errors import UserError
from coterie.protocol.messages import bundle, unbundle
from coterie.protocols.threshold import HubKey, SignedSum, vouched
from coterie.protocols.threshold.halves import parted
from coterie.protocols.threshold.opening import Closed, open_closed
from coterie.runs import RunConfig, build
from coterie.runs.recorded import recorded_run
from coterie.systems.mingledpie import SYSTEM, layout, server
from coterie.systems.mingledpie.config import MingledPieConfig
from coterie.systems.mingledpie.messages import HUB, MODELS, USER, OpenedSums, Train, Update

JOINT: dict[str, Any] = {"keys": "threshold", "holders": 5, "openers": 3}
SMALL: dict[str, Any] = {"keys": "threshold", "clusters": 2, "threshold": 2, "rebuild": "none", "max_epochs": 1}


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with joint_parts.small_keys(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "JOINT", joint_parts.SMALL)
        patch.setattr(layout, "named", lambda name: INSECURE[name] if name in INSECURE else _named(name))
        yield


_named = layout.named


def joint(**options: Any) -> Rig:
    given = {**JOINT, **options}
    if not all(isinstance(value, int | float | str) for value in given.values()):
        return pies(**given)
    return begun(f"mingledpie, {sorted(given.items())}", lambda: pies(**given))


# -- rounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("emulated", REALLY)
@pytest.mark.parametrize("mode", ["paper", "hardened", pytest.param("literal", marks=pytest.mark.long)])
def test_models_are_those_of_the_shared_key(mode: str, emulated: bool) -> None:
    options = {"mode": mode, "emulated": emulated, **({"hardening": "uploads"} if mode == "hardened" else {})}
    one, two = pies(**options), joint(**options)
    for r in (1, 2):
        notes = one.round(r), two.round(r)
        assert not two.refused
        assert {**notes[0], "rebuilt": 0} == {**notes[1], "rebuilt": 0}
    assert chosen(one) == chosen(two)
    for name in EVERYBODY:
        np.testing.assert_allclose(held(two, name), held(one, name), atol=2e-3)
        np.testing.assert_array_equal(held(two, name), held(two))


def test_each_role_receives_what_the_system_says() -> None:
    run = joint()
    run.rounds(2)
    kinds: dict[str, set[str]] = defaultdict(set)
    for view in run.transport.transcript.views.values():
        kinds[view.role] |= view.kinds()
    said = {role: {kind.__name__ for kind in sees.receives} for role, sees in SYSTEM.views("paper", run.config).items()}
    assert kinds == said


def test_a_holder_that_is_away_is_replaced_and_too_few_skip_the_round() -> None:
    run = joint(clusters=2, rebuild="none")  # every client names both, so few sums are enough
    run.rounds(2)
    before = held(run)
    for name, r in (("client/0", 3), ("client/3", 3)):
        run.links.away[name, r] = "offline"
    assert "skipped" not in run.round(3)
    for name in ("client/0", "client/1", "client/2"):
        run.links.away[name, 4] = "offline"
    middle = held(run, "client/5")
    notes = run.round(4)
    assert "is opened by 3 of 5 holders" in notes["skipped"]
    np.testing.assert_array_equal(held(run, "client/5"), middle)
    assert (middle != before).any()
    assert "skipped" not in run.round(5)


def test_a_client_that_was_away_is_sent_the_opened_sums_later() -> None:
    run = joint(links=Steady(away={("client/7", 2): "offline"}))
    run.rounds(3)
    np.testing.assert_array_equal(held(run, "client/7"), held(run))
    assert run.party("client/7").state.round == 3


def test_a_sum_of_two_updates_stays_closed() -> None:
    run = joint()
    for name in EVERYBODY[2:]:
        run.links.away[name, 1] = "offline"
    assert "of fewer than 3 none is opened" in run.round(1)["skipped"]


# -- coalitions --------------------------------------------------------------------------------------------------------


def updates(run: Rig) -> dict[str, bytes]:
    """By client, the first ciphertext vector of its update in round 2, as the server was handed it."""
    joint = run.config.keys == "threshold"
    found = {
        seen.src: unbundle(message.ciphers, len(run.hub.layout.lengths))[0]
        for seen, message in run.view(HUB).messages(Update, 2)
    }
    return {name: parted(data)[1] if joint else data for name, data in found.items()}


def shares_of(run: Rig, names: list[str]) -> dict[str, threshold.Share]:
    group = run.hub.joint.group(MODELS)
    return {name: threshold.Share.load(group, run.party(name).secret.joint.held[MODELS].share) for name in names}


def test_with_the_shared_key_the_server_and_any_one_client_open_every_update() -> None:
    run = pies(emulated=False)
    run.rounds(2)
    key = held_key(run.view("client/3"), USER)
    for name, data in updates(run).items():
        found = key.decrypt(key.public.from_bytes(data))
        np.testing.assert_allclose(found[: TARGETS.shape[1]], TARGETS[EVERYBODY.index(name)], atol=1e-3)


def test_under_threshold_keys_the_server_and_one_client_open_nothing_and_with_three_holders_everything() -> None:
    run = joint(emulated=False)
    run.rounds(2)
    group, public = run.hub.joint.group(MODELS), run.hub.keys.public(MODELS)
    assert (group.holders, group.needed) == (tuple(EVERYBODY[:5]), 3)
    data = updates(run)["client/7"]
    cipher = public.from_bytes(data)
    for name in EVERYBODY[:5]:
        assert open_together(group, shares_of(run, [name]), cipher) is None
    for pair in (["client/0", "client/1"], ["client/2", "client/4"]):
        assert open_together(group, shares_of(run, pair), cipher) is None
    for three in (EVERYBODY[:3], ["client/0", "client/2", "client/4"]):
        found = open_together(group, shares_of(run, three), cipher)
        np.testing.assert_allclose(found[: TARGETS.shape[1]], TARGETS[7], atol=1e-3)


def test_a_client_without_a_share_has_no_secret_of_the_key() -> None:
    run = joint(emulated=False)
    run.round(1)
    for name in EVERYBODY:
        secret = run.party(name).secret
        assert not secret.keys.secret
        assert (MODELS in secret.joint.held) == (name in EVERYBODY[:5])
    assert "key_centre" not in run.common.roster.by_name


def lie(totals: list[Any], kind: str) -> list[Any]:
    """What a server has opened in the place of these sums, which are of all clients."""
    halves = totals[0].terms()[0]
    one, *others = (SignedSum(totals[0].cipher, ((half, 1),)) for half in halves.values())
    if kind == "a single update":
        return [one, *totals[1:]]
    if kind == "one client twice":
        return [SignedSum(one.cipher, (*((other, 1) for other in others), (one, 2))), *totals[1:]]
    return [SignedSum(one.cipher, tuple((other, 1) for other in others)), *totals[1:]]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("a single update", "of fewer than 3"),
        ("one client twice", "together they show fewer than 3 vectors"),
        ("a sum and a sub-sum", "together they show fewer than 3 vectors"),
        ("a wrong count", "sum 0 of 12 senders"),
        ("a c_1 of its own", "no sum of a shared key"),
    ],
)
def test_a_server_that_lies_about_a_sum_is_refused(kind: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = joint(clusters=2, rebuild="none", emulated=False)
    run.round(1)

    def lying(key: HubKey, totals: Any) -> Any:
        one, public = key.group, key.public
        made = [*totals.values()] if kind in ("a wrong count", "a c_1 of its own") else lie([*totals.values()], kind)
        sums = {}
        for number, total in enumerate(made):
            halves, weights = total.terms()
            make = partial(sum_dec, one, public, total.cipher, halves, weights)
            if kind == "a c_1 of its own":
                make = partial(threshold_opening.server_dec, one, forged(total.cipher, 0, 32.0))
            elif total is not totals[number]:
                make = partial(claimed, one, public, total)
            senders = 7 if kind == "a wrong count" else max(3, len(halves))
            sums[number] = Closed(senders, total.length, make)
        return (yield from open_closed(key, sums))

    monkeypatch.setattr(server, "open_sums", lying)
    before = held(run)
    assert "refused" in run.round(2)["skipped"]
    assert run.refused
    assert all(says in reason for reason in run.refused), run.refused
    np.testing.assert_array_equal(held(run), before)


def claimed(one: Any, key: Any, total: SignedSum, random_bytes: Any) -> Any:
    """The request alone: the hub has no fitting ciphertext, and needs none to have it opened."""
    request = SumRequest.of(one, key, *total.terms(), random_bytes(32))
    return threshold_opening.Prepared(request, np.zeros_like(request.c1), None, one.space.fresh, (0.0, 0.0))


# -- bad input ---------------------------------------------------------------------------------------------------------

FORGED: list[tuple[str, Any, str]] = [
    ("unsigned", lambda m: change(m, values=m.values + 1), "signature"),
    ("too few values", lambda m: change(m, values=m.values[:-1]), "values for sums of"),
    ("a slot twice", lambda m: change(m, slots=np.array([0, 0, 1])), "no ascending list of slots 0 to 2"),
    ("a slot beyond", lambda m: change(m, slots=np.array([0, 1, 3])), "no ascending list"),
    ("another shape", lambda m: change(m, spec=bytes(16)), "of another shape"),
    ("an old round", lambda m: change(m, round=0), "sums of round 0"),
]


@pytest.mark.parametrize(("name", "make", "why"), FORGED, ids=[name for name, *_ in FORGED])
def test_opened_sums_that_are_not_the_server_s_or_make_no_sense_are_refused(name: str, make: Any, why: str) -> None:
    run = joint()
    run.round(1)

    def forge(message: OpenedSums) -> OpenedSums:
        made = make(message)
        return made if name == "unsigned" else roster.signed(run.hub.own, made)

    on_the_wire(run.transport, OpenedSums, forge, dst="client/6", rounds=[2])
    run.round(2)
    ((reason, _),) = run.refused.items()
    assert reason.startswith("client/OpenedSums:")
    assert why in reason
    assert run.party("client/6").state.round == 1


def test_a_client_that_spoils_a_sum_has_the_round_skipped_or_its_models_kept() -> None:
    run = joint()
    run.round(1)

    def huge(party: Any, request: Train, update: Update) -> Update:
        public = party.keys.public(MODELS)
        (length,) = run.hub.layout.lengths
        part = vouched(party, MODELS, public.encrypt(np.full(length, 60.0)), request.round)
        return roster.signed(party.own, change(update, ciphers=bundle([part])))

    misbehaving(run.party("client/0"), Train, huge)
    before = held(run)
    run.round(2)
    np.testing.assert_array_equal(held(run), before)
    assert run.party("client/1").state.why


def test_settings_that_cannot_work_are_refused() -> None:
    for wrong, why in (
        ({"holders": 4}, "holders=4 has no effect with keys=shared"),
        ({"openers": 3}, "openers=3 has no effect with keys=shared"),
        ({"keys": "threshold", "openers": 1}, "1 of 7 holders can't open sums"),
        ({"keys": "threshold", "holders": 3, "openers": 4}, "4 of 3 holders can't open"),
        ({"keys": "threshold", "holders": 21}, "can't open sums, with 20 clients in round 1"),
    ):
        with pytest.raises(UserError, match=why):
            build(RunConfig("mingledpie", settings=wrong))
    with pytest.raises(UserError, match="keys must be one of shared, threshold"):
        MingledPieConfig(keys="none")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="take hardening=uploads"):
        build(RunConfig("mingledpie", mode="hardened", settings={"keys": "threshold"}))


def test_an_audit_says_that_no_view_holds_a_key() -> None:
    """The attacks on identity sets need the true clusters to be scored, which only opened updates tell."""
    run, experiment = recorded_run(
        RunConfig("mingledpie", clients=6, rounds=1, model="linear", record=True, settings=SMALL)
    )
    experiment.close()
    with pytest.raises(UserError, match="no view holds a key to score them by"):
        AUDIT.passive(run)
