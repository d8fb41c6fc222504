"""Groups that are made on shares: those that the same steps make in the clear, and which newcomers join them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from federation import misbehaving
from matrix import few
from msgspec.structs import replace
from prepared import prepared
from sklearn.metrics import adjusted_rand_score

from coterie.clustering.correlation import RESTARTS, grouped, in_the_clear, labelled
from coterie.clustering.evidence import BONUS, ResidualSpread, parts, row, twisted
from coterie.clustering.signature import FEATURES
from coterie.protocol.errors import CoterieWarning, PeerError, RunError, UserError
from coterie.protocols import sealed_founding, sealed_groups, setup_sums, shared_groups
from coterie.protocols.hidden_servers import Adding
from coterie.protocols.sealed_groups import AskForRow, SharedRow, Step, Stepped
from coterie.runs import RunConfig
from coterie.runs.experiment import Experiment, build

SETTINGS = {"lr": 0.1, "max_epochs": 1, "noise": 0.0, "fewest": 1}


def config(partition: str, clients: int = 12, **settings: Any) -> RunConfig:
    base = {"crypto": "emulated", "model": "linear", "rounds": 3, "record": True, "seed": 11}
    return RunConfig("coterie", clients=clients, partition=partition, settings={**SETTINGS, **settings}, **base)


def made(partition: str, wrong: Any = None, clients: int = 12, **settings: Any) -> Experiment:
    """wrong: what the fourth client makes of its honest answer to ``AskForRow``."""
    experiment = build(config(partition, clients, **settings))
    if wrong is not None:
        misbehaving(experiment.federation.alter("client/3"), AskForRow, wrong)
    experiment.set_up()
    return experiment


def groups_of(experiment: Experiment, names: Any) -> list[int]:
    return [experiment.federation.alter(name).row.secret.group for name in names]


@cache
def founded(partition: str) -> tuple[list[int], Experiment]:
    experiment = made(partition, clients=24)
    return groups_of(experiment, experiment.common.clients), experiment


@pytest.mark.parametrize("partition", ["permute:4+dirichlet:0.5", "rotate:4+dirichlet:0.3"])
def test_tasks_that_differ_are_told_apart_under_label_skew(partition: str) -> None:
    found, experiment = founded(partition)
    assert adjusted_rand_score(list(experiment.split.groups), found) > 0.95


@pytest.mark.parametrize(
    ("partition", "seed"),
    few([("swap:4+dirichlet:0.5", 22), ("permute:4+dirichlet:0.1", 27)], [("swap:4+dirichlet:0.5", 22)]),
)
def test_tasks_are_told_apart_by_few_samples_of_few_labels_in_common(partition: str, seed: int) -> None:
    """A fifth of some sixty samples of a client is held out, and most differences of groups lie between labels."""
    experiment = build(dataclasses.replace(config(partition, clients=24), seed=seed, fine_tune="held_out"))
    experiment.set_up()
    found = groups_of(experiment, experiment.common.clients)
    experiment.close()
    assert adjusted_rand_score(list(experiment.split.groups), found) == 1


def test_one_task_is_one_group_however_skewed_its_labels() -> None:
    assert set(founded("dirichlet:0.1")[0]) == {0}


def test_the_servers_together_have_the_gains_of_rows_and_make_the_groups_of_gains_in_the_clear() -> None:
    """Both servers' sums of rows are those of the groups' members; and gains of the same rows, in the clear and in
    other orders, give the same groups."""
    found, experiment = founded("permute:4+dirichlet:0.5")
    names = experiment.common.clients
    shares = [experiment.federation.alter(name).secret.groups.shared for name in ("hub", "helper")]
    rows = []
    for name in names:
        client = experiment.federation.alter(name)
        rows.append(drive(client.sums.row(), experiment, name))
    own = np.stack(rows)
    gains = own @ twisted(own).T + BONUS
    orders = [np.random.default_rng(k).permutation(len(names)).tolist() for k in range(RESTARTS)]
    clear = labelled(in_the_clear(grouped(orders, 10, 3), gains), len(names))
    assert adjusted_rand_score(clear, found) == 1
    both = (shares[0].rows + shares[1].rows).view(np.int64) * 2.0**-shared_groups.FRACTION_BITS
    for label, total in enumerate(both):
        members = [at for at, k in enumerate(found) if k == label]
        assert np.abs(total - own[members].sum(axis=0)).max() < 1e-3
    assert shares[0].members == shares[1].members == tuple(Counter(found)[k] for k in range(len(both)))


def drive(work: Any, experiment: Experiment, name: str) -> Any:
    """The result of a client's work, whose effects run at once."""
    effect = next(work)
    try:
        while True:
            effect = work.send(experiment.effects.run([(name, effect)])[0])
    except StopIteration as end:
        return end.value


def test_sums_of_gains_of_many_clients_with_strong_evidence_have_room() -> None:
    """100 clients with 256 samples of each label that count, whose groups differ three times as much as samples do."""
    draw, n, of = (
        np.random.default_rng(0),
        np.full(10, 256),
        ResidualSpread(parts(np.ones(10, bool)), np.full(2, 0.75), np.full(2, 0.25)),
    )
    means, truth = draw.normal(size=(4, 10, FEATURES)) * 0.75**0.5, np.arange(100) % 4
    scatter = draw.normal(size=(100, 10, FEATURES)) * (0.25 * 256) ** 0.5
    rows = np.stack([row(n, 256 * means[k] + noise, of) for k, noise in zip(truth, scatter, strict=True)])
    words = np.rint(rows * 2.0**shared_groups.FRACTION_BITS).astype(np.int64).view(np.uint64)
    orders = [draw.permutation(100).tolist()]
    found = labelled(in_the_clear(grouped(orders, 32, 3), shared_groups.gains_of(words).view(np.int64)), 100)
    assert adjusted_rand_score(truth, found) == 1


def test_newcomers_join_the_group_of_their_task() -> None:
    experiment = made("permute:2+dirichlet:0.5", clients=24, founders=14, newcomers=10, join_every=1)
    assert groups_of(experiment, experiment.common.clients)[14:] == [-1] * 10
    experiment.round(1)
    experiment.round(2)
    found, truth = groups_of(experiment, experiment.common.clients), list(experiment.split.groups)
    assert -1 not in found
    assert adjusted_rand_score(truth, found) > 0.95
    experiment.close()


def _refused(*_: Any) -> Any:
    raise PeerError("no")


def _unreadable(client: Any, request: AskForRow, row: SharedRow) -> SharedRow:
    return replace(row, sealed=bytes(len(row.sealed)))


@pytest.mark.parametrize("wrong", [_refused, _unreadable])
def test_a_client_without_a_row_for_the_list_costs_nobody_else_a_place(wrong: Any) -> None:
    experiment = made("permute:2+dirichlet:0.5", wrong)
    found, truth = groups_of(experiment, experiment.common.clients), list(experiment.split.groups)
    assert found.pop(3) == -1
    assert truth.pop(3) in truth
    assert adjusted_rand_score(truth, found) > 0.95
    (grouped,) = experiment.federation.alter("helper").groups.secret.grouped
    assert grouped == {*experiment.common.clients} - {"client/3"}
    experiment.close()


@pytest.mark.parametrize(("clients", "to"), few([*product((12, 24), ("helper", "hub"))], [(12, "helper"), (24, "hub")]))
def test_a_false_mark_costs_the_liar_alone_its_place(clients: int, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub tries halves of the list, and of a small one all but one client. It offers no list twice."""
    honest, asked = sealed_groups.mark, Counter[tuple[str, bytes]]()
    server = sealed_groups.mark_of

    def lying(client: Any, *of: Any) -> bytes:
        return bytes(16) if client.name == "client/3" and of[-1] == to else server(client, *of)

    def counting(key: Any, name: str, others: Any, of: bytes) -> bytes:
        asked[name, of] += 1
        return honest(key, name, others, of)

    monkeypatch.setattr(sealed_groups, "mark", counting)
    monkeypatch.setattr(sealed_groups, "mark_of", lying)
    experiment = made("permute:2+dirichlet:0.5", clients=clients)
    helper, hub = experiment.federation.alter("helper"), experiment.federation.alter("hub")
    assert set(asked.values()) == {1}
    for r in range(1, 5):
        experiment.round(r)
    found, truth = groups_of(experiment, experiment.common.clients), list(experiment.split.groups)
    assert [k for k, group in enumerate(found) if group < 0] == [3]
    assert set(asked.values()) == {1}
    assert 0 < len(hub.groups.secret.false) <= 14
    assert not any("client/3" in names for names in helper.groups.secret.grouped)
    both = [(t, k) for t, k in zip(truth, found, strict=True) if k >= 0]
    assert adjusted_rand_score(*zip(*both, strict=True)) > 0.9
    experiment.close()


@pytest.mark.parametrize(("clients", "lists"), few([(12, 1 + 12 + 15), (17, 1 + 17 + 10)], [(17, 1 + 17 + 10)]))
def test_two_liars_cost_few_others_their_place(clients: int, lists: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After all but each client the hub tries all but each two of equal blocks, as large ones as leave eight."""
    server, liars = sealed_groups.mark_of, ("client/3", "client/8")

    def lying(client: Any, *of: Any) -> bytes:
        return bytes([liars.index(client.name)] * 16) if client.name in liars else server(client, *of)

    monkeypatch.setattr(sealed_groups, "mark_of", lying)
    experiment = made("permute:2+dirichlet:0.5", clients=clients)
    placed = [name for name in experiment.common.clients if experiment.federation.alter(name).row.secret.group >= 0]
    assert len(placed) >= 8
    assert not set(liars) & set(placed)
    assert 1 + clients < len(experiment.federation.alter("hub").groups.secret.false) < lists
    experiment.close()


def test_a_helper_that_calls_all_marks_false_reads_no_weight_and_gets_few_lists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it opens of clients' rows for a list is a share of each weight, of which the hub has the other."""
    seen: list[int] = []
    opened = sealed_groups.opened_description

    def reading(*given: Any) -> Any:
        row = opened(*given)
        seen.append(row.weight)
        return row

    monkeypatch.setattr(sealed_groups, "opened_description", reading)
    monkeypatch.setattr(setup_sums, "weight_of", lambda *_: 16)
    monkeypatch.setattr(sealed_groups, "add_up", lambda marks: not list(marks))
    monkeypatch.setattr(sealed_founding, "MOST_FALSE", 5)
    with pytest.raises(RunError, match="5 lists had a false mark"):
        made("permute:2", clients=24)
    assert len(seen) == 24 + 12 + 12 + 11 + 11
    assert len(set(seen)) > 8, "as good as uniform"


def test_the_steps_of_a_grouping_are_of_a_length_that_rows_do_not_change() -> None:
    """Up to the first comparison, what travels depends on numbers of clients alone; then on steps that both learn."""
    lengths = []
    for partition in ("permute:4+dirichlet:0.5", "dirichlet:0.1"):
        views = founded(partition)[1].transport.transcript.views
        sent = [
            [len(m.data) for _, m in views[who].messages(kind)] for who, kind in (("helper", Step), ("hub", Stepped))
        ]
        lengths.append([data[:4] for data in sent])
    assert lengths[0] == lengths[1]


def test_too_few_clients_for_two_groups_are_told_so() -> None:
    with pytest.warns(CoterieWarning, match="5 clients make one group, since two of min_cluster=3 need 6"):
        build(config("permute:2", clients=5)).close()


def test_a_client_shares_its_row_afresh_when_asked_again() -> None:
    _, experiment = founded("permute:4+dirichlet:0.5")
    name = experiment.common.clients[0]
    client = experiment.federation.alter(name)
    client.row.secret.group = -1
    one, other = (drive(client.groups.describe(AskForRow(r, 0, name), "hub"), experiment, name) for r in (1, 2))
    assert one.sealed != other.sealed


@pytest.mark.parametrize("clusters", ["auto", 1])
def test_a_groups_weight_counts_the_clients_of_all_batches(clusters: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with more than 256 clients: the first batch makes the groups. A mean over it alone would be too long."""
    for module in (shared_groups, sealed_founding):
        monkeypatch.setattr(module, "FOUNDERS", 10)
    experiment = made("permute:2+dirichlet:0.5", clients=24, clusters=clusters)
    clients = [experiment.federation.alter(name) for name in experiment.common.clients]
    groups = [client.row.secret.group for client in clients]
    assert adjusted_rand_score(list(experiment.split.groups) if clusters == "auto" else [0] * 24, groups) > 0.9
    weights: Counter[int] = Counter()
    for client in clients:
        weights[client.row.secret.group] += client.sums.secret.weight
    assert [client.row.secret.total for client in clients] == [weights[k] for k in groups]
    assert {experiment.federation.alter(name).rows.secret.members for name in ("hub", "helper")} == {24}
    if clusters == "auto":
        assert [len(one) for one in experiment.federation.alter("helper").groups.secret.grouped] == [8, 8, 8]
    experiment.close()


@pytest.mark.parametrize("clusters", ["auto", 1])
def test_each_server_has_a_share_of_a_groups_weight_to_which_no_client_adds_more_than_sixteen(
    clusters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_sums, "weight_of", lambda *_: 256)  # less 1 it fills the byte that it travels in
    experiment = made("permute:2+dirichlet:0.5", clusters=clusters)
    ours, theirs = (experiment.federation.alter(name).groups.secret.shared for name in ("hub", "helper"))
    assert (ours.weights + theirs.weights).tolist() == [16 * count for count in ours.members]
    assert min(*ours.weights, *theirs.weights) > 2**32, "neither share says anything"
    experiment.close()


@pytest.mark.parametrize("server", [0, 1])
def test_a_server_that_spoils_a_groups_weight_is_not_told_who_is_in_the_group(
    server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members take their places as all others do, and keep their model in silence."""
    honest = shared_groups.found

    def spoilt(dealt: Any, *given: Any) -> Any:
        groups = yield from honest(dealt, *given)
        groups.weights[0] -= np.uint64(50 * (dealt.party == server))  # mod 256 more than all clients can have
        return groups

    monkeypatch.setattr(shared_groups, "found", spoilt)
    monkeypatch.setattr(setup_sums, "weight_of", lambda *_: 1)
    experiment = made("permute:2+dirichlet:0.5")
    lines = [experiment.round(r) for r in (1, 2)]
    assert not any(line["refused"] for line in lines)
    assert [line["notes"]["added"] for line in lines] == [12, 12]
    for name in experiment.common.clients:
        client = experiment.federation.alter(name)
        assert client.row.secret.round == 2
        moved = bool((client.state.weights != experiment.common.initial).any())
        assert (moved, bool(client.state.why)) == ((False, True) if client.row.secret.group == 0 else (True, False))
    experiment.close()


@pytest.mark.parametrize("whole", [True, pytest.param(False, marks=pytest.mark.long)], ids=["no groups", "truncated"])
def test_a_helper_that_seals_nonsense_to_a_group_is_not_told_who_is_in_it(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take part as all others do, and add nothing to the group in whose name they upload."""
    sealed = sealed_groups.SealingKey.seal

    def nonsense(self: Any, data: bytes, *of: Any) -> bytes:
        bad = of == sealed_groups._BETWEEN and sealed_groups._PLACE.unpack(data)[0] == 1
        made = sealed(self, bytes(len(data)) if bad else data, *of)
        return made if whole or not bad else made[:-1]

    honest = prepared(config("permute:2+dirichlet:0.5"), 2)
    monkeypatch.setattr(sealed_groups.SealingKey, "seal", nonsense)
    spoilt = made("permute:2+dirichlet:0.5")
    lines = [spoilt.round(r) for r in (1, 2)]
    assert not any(line["refused"] for line in lines)
    assert [line["notes"]["added"] for line in lines] == [12, 12]
    assert len(spoilt.federation.alter("helper").rows.secret.queries) == 12
    clients = [spoilt.federation.alter(name) for name in spoilt.common.clients]
    lost = [client.row.secret.lost for client in clients]
    assert 0 < sum(lost) < 12
    for name, client, is_lost in zip(spoilt.common.clients, clients, lost, strict=True):
        moved = bool((client.state.weights != spoilt.common.initial).any())
        assert (moved, bool(client.state.why)) == (not is_lost, is_lost)
        if not is_lost:
            assert (client.state.weights == honest.federation.alter(name).state.weights).all()
    honest.close()
    spoilt.close()


def _no_query(client: Any, request: Any, answer: Any) -> Any:
    return replace(answer, theirs=bytes(len(answer.theirs)))


def test_a_query_that_cannot_be_read_costs_its_client_alone() -> None:
    experiment = build(RunConfig("coterie", clients=12, settings=SETTINGS, crypto="emulated", model="linear", rounds=1))
    misbehaving(experiment.federation.alter("client/3"), sealed_groups.Join, _no_query)
    experiment.set_up()
    line = experiment.round(1)
    assert experiment.federation.alter("helper").rows.secret.queries.keys() == {*experiment.common.clients} - {
        "client/3"
    }
    assert line["notes"]["added"] == 11
    experiment.close()


def test_newcomers_make_no_step_longer() -> None:
    """A group's mean is over the weight of those that made it, so their number alone counts in (2)."""
    experiment = made("iid", clients=16, clusters=1, founders=4, newcomers=12, join_every=1)
    helper, hub = experiment.federation.alter("helper"), experiment.federation.alter("hub")
    founders = [experiment.federation.alter(name) for name in experiment.common.clients[:4]]
    total = sum(client.sums.secret.weight for client in founders)
    for r in (1, 2):
        experiment.round(r)
    assert {experiment.federation.alter(name).row.secret.total for name in experiment.common.clients} == {total}
    for server in (helper, hub):
        assert (server.rows.secret.founders, server.rows.secret.members) == (4, 16)
        assert server.rows.weight(Adding(2, 16)) == 16 * 4 / 16  # (2): sixteenths of 4 founders over 16 on time
    with pytest.raises(PeerError, match="must not be used twice"):
        helper.groups.begin(-1)
    experiment.close()


def test_too_few_clients_for_the_groups_that_are_wanted_are_said() -> None:
    with pytest.raises(UserError, match="clusters=2: 4 clients are too few for two groups of min_cluster=3"):
        build(RunConfig("coterie", clients=4, settings={"clusters": 2}, crypto="emulated"))
