"""FedCAPrivacy with descriptor=signature: groups before round 1, newcomers, hostile clients and servers, settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import Pulled, Rig, misbehaving, on_the_wire, planted, rig
from msgspec.structs import replace as change
from sklearn.metrics import adjusted_rand_score

import coterie.method as fl
from coterie.clustering.signature import HOLDERS, find_groups, halves, reference, signature, statistics
from coterie.crypto.sketch import project
from coterie.privacy.audits.fedcaprivacy import characterised, csp_rows
from coterie.protocol.interpreters import locally
from coterie.protocols.anonymous import Relayed
from coterie.protocols.cluster_sums import ClusterModel, ClusterSum, Convert
from coterie.protocols.masked_sums import AskForTerm, Term, Total
from coterie.protocols.signatures import DIMENSION, HELD, STATISTICS, Characterise, Characterised, Group
from coterie.runs import RunConfig, build
from coterie.systems.fedcaprivacy import SYSTEM
from coterie.systems.fedcaprivacy.messages import CSP, GROUP, HUB, Upload, round_seed
from tests.clustering.test_signature import LABELS, clients

TRUTH = [0, 1, 2] * 5
SIZE = 40
SPEC = fl.ModelSpec(
    (
        fl.Part("weight", (SIZE - LABELS,), "float32", "parameter", "shared", 0),
        fl.Part("bias", (LABELS,), "float32", "parameter", "shared", SIZE - LABELS),
    ),
    6.0,
)


class WithData(Pulled):
    """Clients that also have samples, of ``clients``."""

    def __init__(self, targets: Mapping[str, np.ndarray], data: Any = None, **options: Any) -> None:
        super().__init__(targets, **options)
        made = clients(TRUTH[: len(targets)], seed=1, skew=1.0) if data is None else data
        self.data = dict(zip(targets, made, strict=True))
        self.table[fl.Local] = locally(self.samples)

    def samples(self, party: str) -> fl.OwnData:
        x, y = self.data[party]
        return fl.OwnData(x[:, :12].astype(np.float32), y)


def signed(targets: np.ndarray | None = None, **options: Any) -> Rig:
    """A federation of 15 clients in three groups, after its set-up."""
    targets = planted(TRUTH, SIZE) if targets is None else targets
    given = {"clusters": "auto", "descriptor": "signature", "effects": WithData, "spec": SPEC, **options}
    return rig(SYSTEM, targets, mode="hardened", **given)


def groups(run: Rig) -> list[int | None]:
    return [run.hub.state.founded.groups.get(name) for name in run.common.clients]


def own_rows(run: Rig) -> np.ndarray:
    """What the clients' signatures are without any protocol: plain sums, halves by their own draws, projections."""
    data = [
        (run.transport.effects.samples(name).x, run.transport.effects.samples(name).y) for name in run.common.clients
    ]
    data = [(np.pad(x.astype(np.float64), ((0, 0), (0, 52))), y) for x, y in data]
    kept = np.sum([np.bincount(y, minlength=LABELS) > 0 for _, y in data], axis=0) >= HOLDERS
    to = reference(np.sum([statistics(x, y, kept) for x, y in data], axis=0), kept)
    rows = []
    for name, (x, y) in zip(run.common.clients, data, strict=True):
        party = run.party(name)
        first = halves(y, np.random.default_rng(int(party.rng("halves").integers(1 << 62))))
        seed = round_seed(party.keys.own_bytes(GROUP), 0)
        rows.append([project(signature(x[half], y[half], to), DIMENSION, seed) for half in (first, ~first)])
    return np.array(rows).reshape(len(rows), 2 * DIMENSION)


# -- what it does ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("emulated", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_protocol_gives_what_plain_sums_and_plain_signatures_give(emulated: bool) -> None:
    """Up to the steps of fixed point: the sums that clients open, what they send, what the service sees, the groups."""
    run = signed(emulated=emulated)
    plain = own_rows(run)
    sent = characterised(run.view(HUB), run.party(CSP).keys.own("service"))
    assert np.abs(np.stack([sent[name] for name in run.common.clients]) - plain).max() < 2e-3
    _, shown = csp_rows(run.view(CSP), run.party(CSP).keys.own("service"), 0)
    distances = {round(float(np.linalg.norm(a - b)), 1) for a in shown for b in shown}
    assert distances == {round(float(np.linalg.norm(a - b)), 1) for a in plain for b in plain}
    assert groups(run).count(None) == 0
    assert adjusted_rand_score(TRUTH, groups(run)) == 1
    twin = find_groups(plain, np.random.default_rng(0))
    assert adjusted_rand_score(twin.labels, groups(run)) == 1
    totals = run.party("client/3").state.totals
    assert totals.keys() == {HELD, STATISTICS}
    held = np.sum([np.bincount(y, minlength=LABELS) > 0 for _, y in run.transport.effects.data.values()], axis=0)
    assert np.array_equal(np.rint(totals[HELD]), held)


def test_groups_are_fixed_and_their_members_get_their_mean() -> None:
    run = signed()
    first = groups(run)
    for r in (1, 2, 3):
        note = run.round(r)
        assert sorted(note["clusters"]["sizes"]) == [5, 5, 5]
        assert note["clustered"] == (r == 1)
        assert groups(run) == first
        trained = {name: run.party(name).state.weights for name in run.common.clients}
        for i, model in enumerate(run.models()):
            members = [trained[name] for name, k in run.hub.state.founded.groups.items() if k == first[i]]
            assert np.abs(model - np.mean(members, axis=0)).max() < 1e-4
    for r in (1, 2, 3):
        assert not list(run.view(CSP).messages(Group, r))


def test_newcomers_are_placed_in_the_groups_that_there_are() -> None:
    run = signed(founders=9, newcomers=3, join_every=1)
    assert groups(run)[9:] == [None] * 6
    assert not run.party("client/9").state.totals
    for r, known in ((1, 9), (2, 12), (3, 15), (4, 15)):
        note = run.round(r)
        assert sum(k is not None for k in groups(run)) == known
        assert note["clustered"] == (r < 4)
        assert note["left_out"] == []
    assert adjusted_rand_score(TRUTH, groups(run)) == 1
    shown = [len(list(run.view(CSP).messages(Group, r))) for r in range(5)]
    assert shown == [1, 0, 1, 1, 0]


def test_newcomers_are_under_the_mask_of_the_founders() -> None:
    """So the service can compare them, and sees differences only."""
    run = signed(founders=9, newcomers=3, join_every=1)
    run.rounds(2)
    key, masks = run.party(CSP).keys.own("service"), []
    for r in (0, 2):
        sent = {
            seen.src: key.decrypt(key.public.from_bytes(m.cipher))
            for seen, m in run.view(HUB).messages(Characterised, r)
        }
        plain = {np.rint(v * 65536).astype(np.int64).astype(np.uint32).tobytes() for v in sent.values()}
        words = [key.open_blinded(key.public.from_bytes(m.cipher)).array[0] for m in relayed(run, r)]
        found = [{(word - np.frombuffer(one, np.uint32)).tobytes() for one in plain} for word in words]
        masks.append(set.intersection(*found))
    assert len(masks[0]) == 1
    assert masks[0] == masks[1]
    mask = np.frombuffer(masks[0].pop(), np.uint32)
    assert mask.max() > 2**32 - 2**28
    assert len(set(mask.tolist())) == 2 * DIMENSION


def relayed(run: Rig, r: int) -> list[Any]:
    return [m for _, m in run.view(CSP).messages(Relayed, r)]


def test_a_client_that_was_away_before_round_1_is_placed_when_it_is_back() -> None:
    def wire(transport: Any) -> None:
        on_the_wire(transport, Characterised, lambda m: None, src="client/4")

    run = signed(wire=wire)
    assert groups(run)[4] is None
    run.transport.intercept = None
    note = run.round(1)
    assert note["left_out"] == []
    assert adjusted_rand_score(TRUTH, groups(run)) == 1


# -- who lies ----------------------------------------------------------------------------------------------------------


def lying(name: str, kind: type[Any], answer: Any) -> Any:
    """wrap: a client that answers a request before round 1 with another message."""
    return lambda federation: misbehaving(federation.parties[name], kind, answer)


def test_a_client_that_sends_no_signature_gets_no_group_and_harms_nobody() -> None:
    def garbage(client: Any, request: Any, honest: Characterised) -> Characterised:
        key = client.keys.public("service")
        return Characterised(0, key.encrypt(np.full(2 * DIMENSION, 100.0)).to_bytes())

    run = signed(wrap=lying("client/2", Characterise, garbage))
    assert groups(run)[2] is None
    rest = [k for i, k in enumerate(groups(run)) if i != 2]
    assert adjusted_rand_score([k for i, k in enumerate(TRUTH) if i != 2], rest) == 1
    assert run.round(1)["left_out"] == ["client/2"]  # it is asked again, and sends the same


@pytest.mark.parametrize(
    "cipher", [lambda client: b"", lambda client: client.keys.public("service").encrypt(np.zeros(7)).to_bytes()]
)
def test_what_is_no_ciphertext_of_a_signature_is_refused(cipher: Any) -> None:
    run = signed(wrap=lying("client/2", Characterise, lambda client, *_: Characterised(0, cipher(client))))
    assert groups(run)[2] is None
    assert groups(run).count(None) == 1


@pytest.mark.parametrize("size", [7, None])
def test_a_term_of_another_length_does_not_count(size: int | None) -> None:
    def other(client: Any, request: AskForTerm, honest: Term) -> Term:
        values = np.ones(size or 5000)
        return Term(0, request.number, client.keys.public("service").encrypt(values).to_bytes())

    run = signed(wrap=lying("client/2", AskForTerm, other))
    assert {m.count for _, m in run.view("client/1").messages(Total)} == {14}


def test_one_client_can_spoil_the_sums_and_then_there_is_one_group() -> None:
    """A limit that is said: nobody can look into a term. The run goes on, and says why."""

    def spoilt(client: Any, request: AskForTerm, honest: Term) -> Term:
        if request.number == HELD:
            return honest
        values = np.full(len(client.state.totals) and 2080 + LABELS * 65, -100.0)
        return Term(0, request.number, client.keys.public("service").encrypt(values).to_bytes())

    run = signed(wrap=lying("client/2", AskForTerm, spoilt))
    note = run.round(1)
    assert note["clusters"]["sizes"] == [15]
    assert "no client sent a signature" in note["clusters"]["why_fewer"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda m: change(m, positions=np.zeros(len(m.positions), np.int64)), "Group"),
        (lambda m: change(m, positions=m.positions + 15), "Group"),
        (lambda m: change(m, groups=m.groups + 15), "Group"),
        (lambda m: change(m, groups=m.groups[1:]), "Group"),
    ],
)
def test_groups_that_cannot_be_end_the_set_up(answer: Any, message: str) -> None:
    with pytest.raises(fl.RunError, match=message):
        signed(wrap=lambda f: misbehaving(f.parties[CSP], Group, lambda party, request, out: answer(out)))


def test_fewer_than_three_terms_end_the_set_up() -> None:
    def wire(transport: Any) -> None:
        def drop(envelope: Any, frame: bytes) -> list[bytes]:
            return [] if envelope.kind == "Term" and envelope.src not in ("client/0", "client/1") else [frame]

        transport.intercept = drop

    with pytest.raises(fl.RunError, match="2 of 15 clients sent a term of a sum that needs 3"):
        signed(wire=wire)


def handled(run: Rig, name: str, message: Any, src: str = HUB) -> Any:
    """What a party's handler does with a message, outside of any round."""
    party = run.party(name)
    outcome = party.handlers[type(message)].run(party, message, src)
    return next(outcome) if hasattr(outcome, "send") else outcome


def test_a_client_takes_a_sum_once_with_enough_terms_and_both_signatures() -> None:
    run = signed()
    (held, _) = [m for _, m in run.view("client/1").messages(Total)]
    fresh = run.party("client/1")
    with pytest.raises(fl.PeerError, match="sum 0 is not awaited"):
        handled(run, "client/1", held)
    fresh.state = replace_state(fresh.state, totals={})
    with pytest.raises(fl.PeerError, match="a sum of 2 terms"):
        handled(run, "client/1", change(held, count=2))
    with pytest.raises(fl.PeerError, match="sum 9 is not awaited"):
        handled(run, "client/1", change(held, cluster=9))
    with pytest.raises(fl.PeerError, match="only the hub may"):
        handled(run, "client/1", held, "client/2")
    with pytest.raises(fl.PeerError, match="signature"):
        handled(run, "client/1", change(held, count=14))
    with pytest.raises(fl.PeerError, match="of round 3 for round 0"):
        handled(run, "client/1", change(held, round=3))
    model = ClusterModel(**{name: getattr(held, name) for name in held.__struct_fields__})
    with pytest.raises(fl.PeerError):
        handled(run, "client/1", model)  # a sum is no model of round 0


def replace_state(state: Any, **values: Any) -> Any:
    twin = type(state)(**{name: getattr(state, name) for name in state.__struct_fields__})
    for name, value in values.items():
        setattr(twin, name, value)
    return twin


def test_nothing_is_sent_before_its_turn_or_to_another() -> None:
    run = signed()
    client = run.party("client/1")
    for message in (AskForTerm(0, HELD), Characterise(0)):
        with pytest.raises(fl.PeerError, match="only the hub may"):
            handled(run, "client/1", message, "client/2")
    for message in (AskForTerm(0, HELD), AskForTerm(0, STATISTICS), AskForTerm(0, 2)):  # each once
        with pytest.raises(fl.PeerError, match="after the sums"):
            handled(run, "client/1", message)
    client.state = replace_state(client.state, totals={})
    for message in (AskForTerm(0, STATISTICS), AskForTerm(1, HELD), AskForTerm(0, 5), Characterise(0)):
        with pytest.raises(fl.PeerError, match="after the sums"):
            handled(run, "client/1", message)
    with pytest.raises(fl.PeerError, match="only the hub may"):
        handled(run, CSP, Group(0), "client/1")
    with pytest.raises(fl.PeerError, match="no sum 5 is formed"):
        handled(run, CSP, Convert(0, 5, 3, b""))
    with pytest.raises(fl.PeerError, match="sum 1 was formed already"):
        handled(run, CSP, Convert(0, STATISTICS, 14, b""))


def test_in_other_modes_nobody_answers() -> None:
    options = {"mode": "hardened", "descriptor": "model", "clusters": 2, "spec": SPEC}
    plain = rig(SYSTEM, planted([0, 0, 0, 1, 1, 1], SIZE), **options)
    for message in (AskForTerm(0, HELD), Characterise(0)):
        with pytest.raises(fl.PeerError, match="nobody describes their data"):
            handled(plain, "client/1", message)
    with pytest.raises(fl.PeerError, match="no sum 0 is formed"):
        handled(plain, CSP, Convert(0, HELD, 3, b""))


def test_a_hub_cannot_have_a_sum_of_two_opened() -> None:
    """The service signs the count, and no client takes a sum of fewer than three terms."""
    run = signed()
    for _, m in run.view(HUB).messages(ClusterSum, 0):
        assert m.count == 15
    assert not any(m.sketch for _, m in run.view(HUB).messages(Upload))


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("paper", {}, "descriptor"),
        ("hardened", {"hardening": "rotation"}, "hardening"),
        ("hardened", {"sketch_dim": 32}, "sketch_dim"),
        ("hardened", {"gamma": 2.0}, "gamma"),
        ("hardened", {"schedule": "always"}, "schedule"),
        ("hardened", {"value_bits": 20}, "value_bits must be at least fraction_bits"),
    ],
)
def test_settings_that_cannot_be(mode: str, options: dict[str, Any], message: str) -> None:
    settings = {"descriptor": "signature", "clusters": 2, **options}
    with pytest.raises(fl.UserError, match=message):
        build(RunConfig("fedcaprivacy", mode=mode, crypto="emulated", clients=6, settings=settings))


def test_data_without_classes_are_told(tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    x = source.normal(size=(60, 4))
    np.savez(tmp_path / "numbers.npz", x=x, y=x[:, :1] @ np.ones((1, 1)))
    settings = {"descriptor": "signature", "clusters": 1}
    config = RunConfig(
        "fedcaprivacy", data=str(tmp_path / "numbers.npz"), task="regression", clients=4, mode="hardened"
    )
    experiment = build(replace(config, crypto="emulated", partition="iid", settings=settings))
    with pytest.raises(fl.UserError, match="one class for each sample"):
        experiment.set_up()
    experiment.close()


def test_the_groups_of_digits_are_found_in_a_whole_run() -> None:
    config = RunConfig(
        "fedcaprivacy", mode="hardened", crypto="emulated", clients=24, partition="permute:4+dirichlet:0.5"
    )
    experiment = build(replace(config, rounds=1, settings={"descriptor": "signature", "clusters": "auto"}))
    experiment.set_up()
    hub = experiment.federation.look(experiment.federation.hub)
    found = [hub.state.founded.groups[name] for name in experiment.common.clients]
    assert adjusted_rand_score(experiment.split.groups, found) == 1
    experiment.close()
