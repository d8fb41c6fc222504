"""What clients and servers of Coterie that deviate can do, and what each server sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from msgspec import structs
from prepared import prepared
from scipy.stats import chisquare
from tampering import flipped

from coterie.crypto import one_hot, shared_rows
from coterie.crypto.one_hot import SEED_BYTES
from coterie.protocol.effects import Fitted
from coterie.protocol.errors import PeerError, RunError
from coterie.protocols.hidden_servers import Adding, HubRows, ServerRows
from coterie.protocols.hidden_sums import ClientRow, GroupRow, HiddenUpdate, RowsSealed, Shares, sealed_to
from coterie.protocols.sealed_groups import Step, Stepped
from coterie.protocols.setup_sums import Summand, Unblind
from coterie.runs import RunConfig
from coterie.runs.experiment import Experiment
from coterie.systems.coterie.messages import Train

SETTINGS = {"lr": 0.1, "max_epochs": 1, "noise": 0.0}


def made(settings: dict[str, Any] | None = None, **options: Any) -> Experiment:
    base = {
        "clients": 8,
        "partition": "permute:2",
        "crypto": "emulated",
        "model": "linear",
        "rounds": 3,
        "record": True,
    }
    return prepared(RunConfig("coterie", settings={**SETTINGS, **(settings or {})}, **{**base, **options}))


def party(experiment: Experiment, name: str) -> Any:
    return experiment.federation.alter(name)


def group_of(experiment: Experiment, name: str) -> int:
    group: int = party(experiment, name).row.secret.group
    return group


# ---- one malicious client


Wrong = Callable[[np.ndarray, one_hot.Shares], tuple[np.ndarray, one_hot.Shares]]


def _two_places(x: np.ndarray, good: one_hot.Shares) -> tuple[np.ndarray, one_hot.Shares]:
    seeds = bytearray(good.seeds)
    seeds[0] ^= 1
    seeds[SEED_BYTES] ^= 1
    return x, one_hot.Shares(good.word, good.check, good.master, bytes(seeds))


def _other_word(x: np.ndarray, good: one_hot.Shares) -> tuple[np.ndarray, one_hot.Shares]:
    return x, one_hot.Shares(good.word, flipped(good.check, 3), good.master, good.seeds)


def _other_seeds(x: np.ndarray, good: one_hot.Shares) -> tuple[np.ndarray, one_hot.Shares]:
    return x, one_hot.Shares(good.word, good.check, flipped(good.master, 2), good.seeds)


@pytest.mark.parametrize("wrong", [_two_places, _other_word, _other_seeds])
def test_an_upload_that_is_not_one_hot_is_not_counted_and_costs_nobody_else(
    wrong: Wrong, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, shared = made(), one_hot.shared
    honest.round(1)
    spoilt = made()
    bad = spoilt.common.clients[0]

    def sharing(x: np.ndarray, group: int, groups: int, context: bytes, secrets: Any) -> one_hot.Shares:
        good = shared(x, group, groups, context, secrets)
        return wrong(x, good)[1] if context == mine else good

    from coterie.protocols import hidden_sums

    mine = hidden_sums.context_of(party(spoilt, bad), bad, 1, 2, 0)
    monkeypatch.setattr(one_hot, "shared", sharing)
    notes = spoilt.round(1)["notes"]
    assert notes["added"] == 7
    other = next(n for n in spoilt.common.clients if group_of(spoilt, n) != group_of(spoilt, bad))
    assert (party(spoilt, other).state.weights == party(honest, other).state.weights).all()
    assert not (party(spoilt, bad).state.weights == party(spoilt, bad).common.initial).all()
    honest.close()
    spoilt.close()


def test_one_client_moves_no_group_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A well-formed upload of any words (check=tag bounds no norm) spoils the client's own group, and no other."""
    upload = ClientRow.upload

    def huge(self: Any, x: np.ndarray, r: int) -> HiddenUpdate:
        return upload(self, x + np.uint32(2**24) if self.party.name == bad else x, r)

    honest, spoilt = made(), made()
    bad = spoilt.common.clients[0]
    monkeypatch.setattr(ClientRow, "upload", huge)
    spoilt.round(1)
    monkeypatch.undo()
    honest.round(1)
    for name in spoilt.common.clients:
        same = (party(spoilt, name).state.weights == party(honest, name).state.weights).all()
        assert same == (group_of(spoilt, name) != group_of(spoilt, bad))
    honest.close()
    spoilt.close()


def test_an_alarm_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum out of range leaves the model as it is; the hub's view is that of any other round."""
    experiment = made()
    experiment.round(1)
    before = {name: party(experiment, name).state.weights.copy() for name in experiment.common.clients}
    within = shared_rows.may_wrap
    monkeypatch.setattr(shared_rows, "may_wrap", lambda total: True)
    line = experiment.round(2)
    assert not line["refused"]
    monkeypatch.setattr(shared_rows, "may_wrap", within)
    experiment.round(3)  # a sum that has wrapped may look as if it had not
    for name in experiment.common.clients:
        assert party(experiment, name).kept_back
        assert (party(experiment, name).state.weights == before[name]).all()
    experiment.close()


@pytest.mark.parametrize("server", ["hub", "helper"])
def test_a_server_that_spoils_a_row_sees_nothing_of_who_is_in_the_group(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members' trainings diverge. They upload zeros, and no message is refused or missing."""
    experiment, masked = made(model="mlp"), ServerRows.masked

    def spoilt(self: Any, fresh: np.ndarray, adding: Adding) -> Any:
        if self.party.name == server and adding.round == 1:
            signs = np.random.default_rng(0).choice([1, -1], fresh.shape[1])
            fresh = fresh.copy()
            fresh[0] += (signs * 2**29).astype(np.uint32)
        return masked(self, fresh, adding)

    monkeypatch.setattr(ServerRows, "masked", spoilt)
    lines = [experiment.round(r) for r in (1, 2, 3)]
    why = {name: party(experiment, name).kept_back for name in experiment.common.clients}
    assert {group_of(experiment, name) for name, one in why.items() if "diverged" in one} == {0}
    assert experiment.system.observe(experiment.seen)["kept_by"] == sum(map(bool, why.values()))
    assert [line["notes"]["added"] for line in lines] == [8, 8, 8]
    assert not any(line["refused"] for line in lines)
    experiment.close()


def test_after_other_rows_all_clients_refuse_and_not_one_group() -> None:
    """A helper has signed rows of one round twice, in two attempts, and the hub has spoilt group 0's in one of them. It
    gives one before a training and the other before the same training again."""
    experiment = made(model="mlp_small")
    experiment.round(1)
    clients = [party(experiment, name) for name in experiment.common.clients]

    def trained(client: Any, own: bytes) -> bool:
        client.state.round, client.row.secret.opened = 1, own
        if own == b"spoilt" and client.row.secret.group == 0:
            client.state.weights = client.state.weights + np.float32(0.1)
        work = client.train(Train(2), "hub")
        try:
            effect = next(work)
            while True:
                effect = work.send(experiment.effects.run([(client.name, effect)])[0])
        except StopIteration:
            return True
        except PeerError:
            return False

    assert [trained(client, b"clean") for client in clients] == [True] * 8
    assert [trained(client, b"clean") for client in clients] == [True] * 8
    assert [trained(client, b"spoilt") for client in clients] == [False] * 8
    assert {client.row.secret.group for client in clients} == {0, 1}
    experiment.close()


# ---- a hub that deviates


def changed_shares(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any, dict[str, Any]], dict[str, Any]]) -> None:
    from coterie.protocols import hidden_servers

    class Lying:
        def __new__(cls, *args: Any) -> Any:
            fields = dict(zip(Shares.__struct_fields__, args, strict=True))
            return Shares(**change(cls, fields))

    monkeypatch.setattr(hidden_servers.sums, "Shares", Lying)


def first_line(fields: dict[str, Any]) -> str:
    return str(fields["names"].split("\n")[0])


def test_the_helper_counts_no_upload_that_its_client_has_not_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that puts its own upload in a client's place: well-formed, but it cannot sign the helper's seeds."""
    experiment = made()
    hub = party(experiment, "hub")

    def forge(_: Any, fields: dict[str, Any]) -> dict[str, Any]:
        from coterie.protocol.messages import bundle, unbundle

        count = len(fields["names"].split("\n"))
        name = first_line(fields)
        context = hub.rows.context(name, 1)
        own = one_hot.shared(np.ones(hub.spec.size, np.uint32), 0, 2, context, hub.secrets("forged"))
        words, seeds = unbundle(fields["words"], count), unbundle(fields["seeds"], count)
        words[0] = own.word.tobytes()
        seeds[0] = sealed_to(hub, "helper", own.seeds, "upload", 1, own.check, bytes(32))
        good = one_hot.tag(context, one_hot.seeds_of(own.master, 2), own.check, one_hot.word_name(own.word))
        fields |= {"words": bundle(words), "seeds": bundle(seeds)}
        fields |= {"checks": own.check + fields["checks"][64:], "tags": good + fields["tags"][32:]}
        return fields

    changed_shares(monkeypatch, forge)
    assert experiment.round(1)["notes"]["added"] == 7
    experiment.close()


@pytest.mark.parametrize("settings", [{}, {"clusters": 1}], ids=["groups", "one group"])
@pytest.mark.parametrize("swap", ["names", "words", "rounds"])
def test_the_helper_counts_no_upload_in_another_name_or_round(
    swap: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.protocol.messages import bundle, unbundle

    def change(_: Any, fields: dict[str, Any]) -> dict[str, Any]:
        names = fields["names"].split("\n")
        if swap == "names":
            fields["names"] = "\n".join([names[1], names[0], *names[2:]])
        elif swap == "words":
            words = unbundle(fields["words"], len(names))
            fields["words"] = bundle([words[1], words[0], *words[2:]])
        else:
            fields["rounds"] = fields["rounds"] - 1
        return fields

    experiment = made({"fewest": 1, **settings})
    changed_shares(monkeypatch, change)
    added = experiment.round(1)["notes"]["added"]
    assert added == (0 if swap == "rounds" else 6)
    experiment.close()


def test_an_upload_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that relays the first round's uploads again in the second adds nothing: all are counted once."""
    experiment, sent = made(), []

    def change(_: Any, fields: dict[str, Any]) -> dict[str, Any]:
        sent.append(dict(fields))
        return {**sent[0], "round": fields["round"], "on_time": fields["on_time"]}

    changed_shares(monkeypatch, change)
    assert experiment.round(1)["notes"]["added"] == 8
    assert "skipped" in experiment.round(2)["notes"]
    experiment.close()


@pytest.mark.parametrize(("left_out", "added"), [(1, 7), (2, 0), (7, 0)])
def test_a_hub_cannot_leave_out_clients_until_one_is_alone(
    left_out: int, added: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not mind, but the helper counts, too: with two of eight away a group of three might have one."""
    add = HubRows.add

    def choosing(self: Any, r: int, on_time: int, uploads: Any, *rest: Any) -> Any:
        return add(self, r, on_time, uploads[left_out:], *rest)

    monkeypatch.setattr(HubRows, "add", choosing)
    monkeypatch.setattr(HubRows, "shows_few", lambda self, adding: "")
    experiment = made()
    notes = experiment.round(1)["notes"]
    assert notes["added"] == added
    assert ("might be of fewer than 2" in notes.get("skipped", "")) == (not added)
    experiment.close()


def test_an_upload_that_is_made_again_shows_nothing_of_its_numbers() -> None:
    """In a real run shares are fresh in every attempt. The control: one seed for two vectors shows their difference."""
    experiment = made(crypto="real")
    client, rng = party(experiment, experiment.common.clients[0]), np.random.default_rng(0)
    xs = [rng.integers(-(2**16), 2**16, client.spec.size).astype(np.uint32) for _ in range(2)]
    first, second = (client.row.upload(xs[0], 1) for _ in range(2))
    words = [np.frombuffer(one.word, "<u4") for one in (first, second)]
    assert len({first.master, second.master, first.check, second.check}) == 4
    for between in (words[0] - words[1], words[0] + words[1]):
        assert chisquare(np.bincount(between.view(np.uint8), minlength=256)).pvalue > 1e-6
        assert abs(np.corrcoef(between.view(np.int32), xs[0].view(np.int32))[0, 1]) < 5 / len(xs[0]) ** 0.5

    class Again:
        def bytes(self, count: int) -> bytes:
            return bytes(range(count))

    careless = [one_hot.shared(x, 0, 2, bytes(32), Again()).word for x in xs]  # type: ignore[arg-type]
    assert any((careless[0] - careless[1] == sign * (xs[0] - xs[1])).all() for sign in (np.uint32(1), ~np.uint32(0)))
    experiment.close()


def test_a_round_is_sealed_over_one_set_of_uploads_in_any_attempt() -> None:
    experiment = made()
    rows = party(experiment, "helper").rows
    fresh = rows.zeros()
    first = Adding(7, 2, {"client/0": 7, "client/1": 7})
    rows.masked(fresh, first)
    rows.masked(fresh, Adding(7, 2, dict(reversed(first.of.items()))))  # the same uploads
    with pytest.raises(PeerError, match="has sealed sums of other uploads"):
        rows.masked(fresh, Adding(7, 2, {"client/0": 7}))
    experiment.close()


def test_noise_is_of_clients_and_rounds_so_a_client_makes_one_upload_for_a_round() -> None:
    """A hub that drops an attempt can withhold the last row, so that a client trains from another model. Both servers'
    noise would be equal, and the difference of both sums exact."""
    experiment = made({"noise": 0.005, "fewest": 1})
    rows, adding = party(experiment, "helper").rows, Adding(7, 1, {"client/0": 7})
    fresh = rows.zeros()
    first, second = (rows.masked(one, adding)[0] for one in (fresh, fresh + np.uint32(5)))
    assert (second - first == 5).all(), "why"
    experiment.transport.retries = True
    hub, client, honest = party(experiment, "hub"), "client/0", experiment.effects.run
    with patch.object(HubRows, "give", side_effect=RunError("killed")), pytest.raises(RunError, match="killed"):
        experiment.transport.drive(hub.round(1), 1)
    assert experiment.transport.drive(hub.round(1), 1, 1)["added"] == 8  # the same numbers are the same upload
    before = party(experiment, client).state.made

    def other(wanted: Any) -> Any:
        found = honest(wanted)
        return [
            replace(one, weights=one.weights + 0.01) if name == client and isinstance(one, Fitted) else one
            for (name, _), one in zip(wanted, found, strict=True)
        ]

    with patch.object(experiment.effects, "run", other):
        notes = experiment.transport.drive(hub.round(1), 1, 2)
    assert notes["added"] == 0
    assert any("another upload for round 1" in why for why in experiment.transport.meter.refused)
    assert any("sealed sums of other uploads" in why for why in (notes["skipped"], *experiment.transport.meter.refused))
    assert party(experiment, client).state.made == before
    experiment.close()


def test_a_client_takes_no_row_that_the_helper_has_not_sealed_with_the_hub() -> None:
    experiment = made()
    hub, helper = party(experiment, "hub"), party(experiment, "helper")
    experiment.round(1)
    client = party(experiment, experiment.common.clients[0])
    client.row.secret.round = client.row.secret.rounds = 0
    from coterie.protocols.hidden_sums import Fetch

    half = helper.rows.fetch(Fetch(9, client.name), "hub").answer
    good = hub.rows._rows(9, hub.rows.secret.sealed, {client.name: half})[client.name]
    for name, wrong in {
        "row_names": flipped(good.row_names, 5),
        "nonces": flipped(good.nonces, 5),
        "signature": flipped(good.signature, 5),
        "sealed_in": 2,
        "rounds": 2,
        "theirs": flipped(good.theirs, 5),
    }.items():
        fields = {field: getattr(good, field) for field in GroupRow.__struct_fields__} | {name: wrong}
        with pytest.raises(PeerError):
            client.row.opened(GroupRow(**fields))
    with pytest.raises(PeerError, match="only the hub"):
        client.take(good, "helper")
    client.row.opened(good)
    assert not client.row.secret.lost
    with pytest.raises(PeerError, match="a row of round 1, after that of round 1"):
        client.row.opened(good)
    client.row.secret.round = client.row.secret.rounds = 0
    client.row.opened(structs.replace(good, ours=flipped(good.ours, 5)))
    assert client.row.secret.lost, "in silence: a wrong answer may hang on the row that was asked for"
    experiment.close()


def test_the_helper_forms_each_set_up_sum_once() -> None:
    experiment = made()
    helper, view = party(experiment, "helper"), experiment.transport.transcript.views["helper"]
    _, first = next(iter(view.messages(Unblind)))
    with pytest.raises(PeerError, match="sum 0 of 8 terms"):
        helper.sums.unblind(first, "hub")
    experiment.close()


# ---- what each server sees


def test_the_servers_views_say_nothing_of_groups_or_updates() -> None:
    """Equal kinds and lengths from members of different groups, and uniform bytes."""
    experiment = made()
    for r in (1, 2, 3):
        experiment.round(r)
    views = experiment.transport.transcript.views
    lengths: dict[str, set[tuple[int, ...]]] = {}
    for _, update in views["hub"].messages(HiddenUpdate):
        parts = update.word, update.check, update.master, update.seeds
        lengths.setdefault("update", set()).add(tuple(map(len, parts)))
    for _, summand in views["hub"].messages(Summand):
        lengths.setdefault(f"summand {summand.number}", set()).add((len(summand.words), len(summand.seed)))
    assert {len(found) for found in lengths.values()} == {1}
    blobs = [update.word for _, update in views["hub"].messages(HiddenUpdate)]
    blobs += [sealed.rows for _, sealed in views["hub"].messages(RowsSealed)]
    blobs += [summand.words for _, summand in views["hub"].messages(Summand)]
    blobs += [step.data for _, step in views["helper"].messages(Step) if len(step.data) > 10_000]  # rows, masked
    blobs += [step.data for _, step in views["hub"].messages(Stepped) if len(step.data) > 10_000]
    counts = np.bincount(np.frombuffer(b"".join(blobs), np.uint8), minlength=256)
    assert chisquare(counts).pvalue > 1e-6
    kinds = {type(m).__name__ for name in ("hub", "helper") for m in (s.message for s in views[name].seen) if m}
    assert "Deal" not in kinds
    assert {"HiddenUpdate", "Shares", "RowsSealed", "SharedRow", "Relayed", "Step", "Stepped"} <= kinds
    experiment.close()


def test_what_the_hub_and_helper_hold_together_is_every_sum_and_alone_nothing() -> None:
    """The control: both servers' shares give every row, one's are uniform."""
    experiment = made()
    experiment.round(1)
    hub, helper = party(experiment, "hub").rows.secret, party(experiment, "helper").rows.secret
    client = party(experiment, experiment.common.clients[0])
    both = (hub.totals + helper.totals).view(np.int32)
    model = client.common.initial + client.grid.change(both[client.row.secret.group], client.row.secret.total)
    assert np.allclose(model, client.state.weights, atol=1e-6)
    for own in (hub.totals, helper.totals):
        uniform = (own // 16 % 256).ravel()  # each weight is 16 here, and multiples of 16 are no secret
        assert chisquare(np.bincount(uniform, minlength=256)).pvalue > 1e-6
    experiment.close()
