"""What clients and servers of Coterie that deviate can do, and what each server sees."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from scipy.stats import chisquare
from tampering import flipped

from coterie.crypto import one_hot, shared_rows
from coterie.crypto.one_hot import SEED_BYTES
from coterie.crypto.signing import SealingKey
from coterie.protocol.effects import Fitted
from coterie.protocol.errors import PeerError, RunError
from coterie.protocols.anonymous import Relayed
from coterie.protocols.hidden_servers import Adding, HubRows, ServerRows
from coterie.protocols.hidden_sums import ClientRow, GroupRow, HiddenUpdate, RowsSealed, Shares, sealed_to
from coterie.protocols.sealed_groups import (
    DESCRIBED,
    ENTRY,
    AskForRow,
    GroupsFound,
    OpenRows,
    SharedRow,
    Step,
    Stepped,
)
from coterie.protocols.setup_sums import Summand, Unblind
from coterie.protocols.shared_groups import Shared, described_length
from coterie.runs import RunConfig
from coterie.runs.experiment import Experiment, build
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
    experiment = build(RunConfig("coterie", settings={**SETTINGS, **(settings or {})}, **{**base, **options}))
    experiment.set_up()
    return experiment


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

    def huge(self: Any, x: np.ndarray, r: int, helper: str) -> HiddenUpdate:
        return upload(self, x + np.uint32(2**24) if self.party.name == bad else x, r, helper)

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
        assert party(experiment, name).state.alarmed
        assert (party(experiment, name).state.weights == before[name]).all()
    experiment.close()


@pytest.mark.parametrize("server", ["hub", "helper"])
def test_a_server_that_spoils_a_row_sees_nothing_of_who_is_in_the_group(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members' trainings end in no numbers. They upload zeros, and no message is refused or missing."""
    experiment, masked = made(), ServerRows.masked

    def spoilt(self: Any, fresh: np.ndarray, adding: Adding) -> Any:
        if self.party.name == server and adding.round == 1:
            fresh = fresh.copy()
            fresh[0] += np.uint32(2**29)
        return masked(self, fresh, adding)

    monkeypatch.setattr(ServerRows, "masked", spoilt)
    honest, fitted = experiment.effects.run, []

    def diverged(*args: Any, **kwargs: Any) -> Any:
        found = honest(*args, **kwargs)
        return [broken(one) if isinstance(one, Fitted) and np.abs(one.weights).max() > 5 else one for one in found]

    def broken(one: Fitted) -> Fitted:
        fitted.append(one)
        return replace(one, weights=np.full_like(one.weights, np.nan))

    monkeypatch.setattr(experiment.effects, "run", diverged)
    lines = [experiment.round(r) for r in (1, 2, 3)]
    assert fitted, "some clients' trainings gave no numbers"
    assert [line["notes"]["added"] for line in lines] == [8, 8, 8]
    assert not any(line["refused"] for line in lines)
    experiment.close()


# ---- a hub that deviates


def changed_shares(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any, dict[str, Any]], dict[str, Any]]) -> None:
    from coterie.protocols import hidden_servers

    class Lying:
        def __new__(cls, *args: Any) -> Any:
            fields = dict(zip(Shares.__struct_fields__, args, strict=True))
            return Shares(**change(cls, fields))

    monkeypatch.setattr(hidden_servers, "Shares", Lying)


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

    def choosing(self: Any, r: int, helper: str, on_time: int, uploads: Any, *rest: Any) -> Any:
        return add(self, r, helper, on_time, uploads[left_out:], *rest)

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
    first, second = (client.row.upload(xs[0], 1, "helper") for _ in range(2))
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


def test_an_attempt_in_other_groups_lets_no_second_upload_pass() -> None:
    """The servers' noise of the first attempt comes again in the third, whatever the one between was for."""
    experiment = made({"noise": 0.005, "foundings": 2})
    client = party(experiment, "client/0")

    def uploads(since: int, more: float) -> None:
        """In an attempt of round 1 of groups of this round."""
        client.state.round, client.row.secret.since = 0, since
        work = client.handlers[Train].run(client, Train(1), "hub")
        (fitted,) = experiment.effects.run([(client.name, next(work))])
        with suppress(StopIteration):
            work.send(replace(fitted, weights=fitted.weights + np.float32(more)))

    for since, more in ((0, 0.0), (1, 0.01), (0, 0.0)):
        uploads(since, more)
    for since in (0, 1):
        with pytest.raises(PeerError, match="another upload for round 1"):
            uploads(since, 0.02)
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
        "ours": flipped(good.ours, 5),
        "theirs": flipped(good.theirs, 5),
    }.items():
        fields = {field: getattr(good, field) for field in GroupRow.__struct_fields__} | {name: wrong}
        with pytest.raises(PeerError):
            client.row.opened(GroupRow(**fields), "hub", "helper")
    with pytest.raises(PeerError):
        client.row.opened(good, "helper", "helper")
    client.row.opened(good, "hub", "helper")
    with pytest.raises(PeerError, match="a row of round 1, after that of round 1"):
        client.row.opened(good, "hub", "helper")
    experiment.close()


def rows_of(experiment: Experiment, count: int = 8) -> list[bytes]:
    """What clients seal to the helper when they are asked for a row again, as if they had no place."""
    sealed = []
    for name in experiment.common.clients[:count]:
        client = party(experiment, name)
        client.row.secret.group = -1
        work = client.groups.describe(AskForRow(1, 0, told(experiment, count)), "hub")
        sealed.append(driven(experiment, name, work).sealed)
    return sealed


def driven(experiment: Experiment, name: str, work: Any) -> Any:
    """The result of a client's work, whose effects run at once."""
    effect = next(work)
    try:
        while True:
            effect = work.send(experiment.effects.run([(name, effect)])[0])
    except StopIteration as end:
        return end.value


def told(experiment: Experiment, count: int = 8) -> str:
    return "\n".join(experiment.common.clients[:count])


def relay(helper: Any, rows: list[bytes]) -> None:
    for at, data in enumerate(rows):
        helper.groups.hold(Relayed(0, at, data), "hub")


def test_a_row_has_one_place_wherever_the_hub_puts_it() -> None:
    experiment = made()
    helper, fresh = party(experiment, "helper"), rows_of(experiment)
    relay(helper, [fresh[0], fresh[0], *fresh[2:]])
    assert helper.groups.open(OpenRows(0, 0, told(experiment)), "hub").positions.tolist() == [0, 2, 3, 4, 5, 6, 7]
    assert helper.groups.secret.under_way is None  # a list of eight needs eight clients' rows
    with pytest.raises(PeerError, match="only the hub"):
        helper.groups.open(OpenRows(0, 1, told(experiment)), "client/0")
    experiment.close()


def test_a_hub_has_no_few_clients_grouped_and_none_again() -> None:
    """It knows whose rows it relays. Of two it would learn whether they are alike; of old ones and a new one, which
    group the new one joins."""
    experiment = made()
    helper = party(experiment, "helper")
    for count, why in ((5, "5 rows; of fewer than 6"), (7, "1 clients have come or left since rows were grouped")):
        relay(helper, rows_of(experiment, count))
        with pytest.raises(PeerError, match=why):
            helper.groups.open(OpenRows(0, 0, told(experiment, count)), "hub")
        helper.groups.secret.held = {}
    views = experiment.transport.transcript.views
    relay(helper, [message.sealed for _, message in views["hub"].messages(SharedRow)])
    assert helper.groups.open(OpenRows(0, 0, told(experiment, 7)), "hub").positions.tolist() == []
    placed = made()
    client = party(placed, placed.common.clients[0])
    with pytest.raises(PeerError, match="it has its place"):
        next(client.groups.describe(AskForRow(1, 0, told(placed)), "hub"))
    experiment.close()
    placed.close()


def test_newcomers_are_not_placed_twice_with_one_more_or_less() -> None:
    """They have no place yet, so they send rows as often as they are asked. The difference of both batches' steps would
    be the group of one."""
    settings = {"founders": 8, "newcomers": 9, "join_every": 1}
    experiment = made(settings, clients=24)
    helper, names = party(experiment, "helper"), experiment.common.clients[8:17]
    for total in party(experiment, "hub").state.founded.sums:  # newcomers have no sums yet
        for name in names:
            client = party(experiment, name)
            client.sums.secret.totals[total.number] = party(experiment, "client/0").sums.secret.totals[total.number]

    def opened(some: Any, placing: int) -> Any:
        told, rows = "\n".join(some), []
        for name in some:
            rows.append(driven(experiment, name, party(experiment, name).groups.describe(AskForRow(1, 0, told), "hub")))
        for at, row in enumerate(rows):
            helper.groups.hold(Relayed(1, at, row.sealed), "hub")
        return helper.groups.open(OpenRows(1, placing, told), "hub")

    assert len(opened(names, 0).positions) == 9
    with pytest.raises(PeerError, match="1 clients have come or left"):
        opened(names[1:], 1)
    assert len(opened(names, 1).positions) == 9
    experiment.close()


def test_one_client_that_works_with_the_hub_makes_the_rows_of_all_others_but_one() -> None:
    """A limit: a row names nobody and is not signed, so who knows the seed of all clients seals it in any place. The
    helper groups one client's row with such ones."""
    experiment = made()
    helper, member, (first, *others) = party(experiment, "helper"), party(experiment, "client/1"), rows_of(experiment)
    key = SealingKey(helper.common.roster.by_name["helper"].sealing_key)
    bound, words = (member.keys.own_bytes(ENTRY), 0, told(experiment)), bytes(8 * described_length(helper))
    false = [DESCRIBED.pack(bytes([at] * 32), 16, bytes([at] * 16)) + words for at in range(1, len(others) + 1)]
    relay(helper, [first, *(key.seal(data, "client", "helper", *bound) for data in false)])
    read = helper.groups.open(OpenRows(0, 0, told(experiment)), "hub")
    assert list(read.positions) == list(range(8))
    assert helper.groups.secret.under_way is not None
    experiment.close()


def test_a_hub_cannot_describe_a_client_of_its_own() -> None:
    """It lacks the seed of clients and helper, so what it seals is no row."""
    experiment = made()
    helper, hub = party(experiment, "helper"), party(experiment, "hub")
    key = SealingKey(hub.common.roster.by_name["helper"].sealing_key)
    said = "client/0"
    data = bytes(DESCRIBED.size + 8 * described_length(hub))
    for entry, read in ((bytes(32), 0), (helper.keys.own_bytes(ENTRY), 1)):  # the second has it from a client
        relay(helper, [key.seal(data, "client", "helper", entry, 0, said)])
        if read:
            with pytest.raises(PeerError, match="1 rows; of fewer than 6"):
                helper.groups.open(OpenRows(0, 0, said), "hub")
        else:
            assert helper.groups.open(OpenRows(0, 0, said), "hub").positions.tolist() == []
    experiment.close()


def test_no_dealt_randomness_is_used_twice() -> None:
    """A hub that has rows grouped again under the same masks would learn differences of gains."""
    experiment = made()
    helper, fresh = party(experiment, "helper"), rows_of(experiment)
    for placing, why in ((-1, "placing -1 with 2 groups"), (99, "nothing is dealt for placing 99")):
        relay(helper, fresh)
        with pytest.raises(PeerError, match=why):
            helper.groups.open(OpenRows(0, placing, told(experiment)), "hub")
    relay(helper, fresh)
    helper.groups.open(OpenRows(0, 3, told(experiment)), "hub")
    relay(helper, fresh)
    with pytest.raises(PeerError, match="must not be used twice"):
        helper.groups.open(OpenRows(0, 3, told(experiment)), "hub")
    before = helper.secret.groups.shared.begun
    helper.secret.groups.shared.begun = frozenset()
    helper.groups.lasts(GroupsFound(shared=Shared(begun=before), grouped=(frozenset({"client/1"}),)))
    assert helper.secret.groups.shared.begun == before  # also where a round is attempted again
    assert helper.secret.groups.grouped == (frozenset({"client/1"}),)
    experiment.close()


def test_steps_of_a_grouping_come_in_order_and_from_the_hub() -> None:
    experiment = made()
    helper, fresh = party(experiment, "helper"), rows_of(experiment)
    with pytest.raises(PeerError, match="no grouping is under way"):
        helper.groups.step(Step(0, 0, b""), "hub")
    relay(helper, fresh)
    helper.groups.open(OpenRows(0, 0, told(experiment)), "hub")
    with pytest.raises(PeerError, match="only the hub"):
        helper.groups.step(Step(0, 0, b""), "client/0")
    with pytest.raises(PeerError, match="step 1 of a grouping after step 0"):
        helper.groups.step(Step(0, 1, b""), "hub")
    with pytest.raises(PeerError, match="a step in round 1 of a grouping of round 0"):
        helper.groups.step(Step(1, 0, b""), "hub")
    for _ in range(2):  # a step that fails leaves the grouping where it was
        with pytest.raises(PeerError, match="0 bytes where"):
            helper.groups.step(Step(0, 0, b""), "hub")
    helper.groups.lasts(helper.groups.secret)  # another attempt: other steps on what was dealt would show more
    with pytest.raises(PeerError, match="no grouping is under way"):
        helper.groups.step(Step(0, 0, b""), "hub")
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
