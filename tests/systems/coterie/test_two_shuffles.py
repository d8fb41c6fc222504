"""Neither server has a share of a row whose name it knows, so a server that deviates changes none by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coterie.crypto.signing import OpeningKey, SealingKey
from coterie.protocol.errors import CryptoError, PeerError, RunError
from coterie.protocol.messages import bundle, split
from coterie.protocols import sealed_groups
from coterie.protocols.sealed_groups import (
    ENTRY,
    GroupsFound,
    OpenRows,
    RowsRead,
    SharedRow,
    opened_description,
    opened_seeds,
)
from coterie.protocols.shared_groups import described_length
from coterie.runs.experiment import Experiment
from tests.systems.coterie.test_rows import relay, rows_of, told
from tests.systems.coterie.test_security import made, party


def opening(experiment: Experiment, name: str) -> OpeningKey:
    return OpeningKey.load(party(experiment, name).own.identity.opening)


def names_by_place(experiment: Experiment, r: int) -> list[str]:
    """Whose share the hub has at each place when rows of clients 0 to 7 are opened in this round: takes both keys."""
    helper, rows = party(experiment, "helper"), rows_of(experiment)
    bound = helper.keys.own_bytes(ENTRY), 0, told(experiment)
    inner = [
        opened_description(opening(experiment, "helper"), bound, one, described_length(helper)).ours for one in rows
    ]
    relay(helper, rows, r)
    answer = helper.groups.open(OpenRows(r, 0, told(experiment)), "hub")
    return [experiment.common.clients[inner.index(bytes(one))] for one in split(answer.ours) or ()]


def test_the_hub_reads_no_share_of_a_row_that_a_client_sends() -> None:
    experiment = made()
    views = experiment.transport.transcript.views
    sent = [(seen.src, one.sealed) for seen, one in views["hub"].messages(SharedRow)]
    (read,) = [one for _, one in views["hub"].messages(RowsRead)]
    assert len(sent) == 8
    ours = [bytes(one) for one in split(read.ours) or ()]
    assert len(set(ours)) == 8
    for _, sealed in sent:
        assert not any(one in sealed for one in ours)
        with pytest.raises((PeerError, CryptoError)):
            opening(experiment, "hub").open(sealed, "client", "helper", 0, told(experiment))
    experiment.close()


def test_a_share_that_the_hub_changes_is_any_clients() -> None:
    """A number that it adds to its share at a place shows in the steps of that place. Whose it is hangs on the helper's
    order, which is fresh in each round and independent of the order of positions."""
    experiment = made()
    first = [names_by_place(experiment, r)[0] for r in range(1, 25)]
    assert len(set(first)) > 4  # of 8 names 7.7 are expected, and 4 or fewer have a chance of 1e-5
    assert max(first.count(name) for name in first) < 16
    experiment.close()


def test_the_helper_puts_no_row_of_its_own_in_a_clients_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could give the hub a share that it knows, and so know the row. The mark of that client is missing then."""
    honest, lists = sealed_groups.opened_description, set[str]()

    def replacing(key: OpeningKey, bound: tuple[bytes, int, str], sealed: bytes, length: int) -> Any:
        row, done = honest(key, bound, sealed, length), bound[2] in lists
        lists.add(bound[2])
        return row if done else replace(row, ours=hub.seal(bytes(32), "client", "hub", *bound[1:]))

    experiment = made()
    hub = SealingKey(experiment.common.roster.by_name["hub"].sealing_key)
    experiment.close()
    monkeypatch.setattr(sealed_groups, "opened_description", replacing)
    with pytest.raises(RunError, match="37 lists had a false mark"):
        made(rounds=4)
    assert len(lists) == 1 + 8 + 28


def test_of_one_group_of_all_an_unreadable_share_costs_its_client_the_weight_alone() -> None:
    experiment = made()
    key = opening(experiment, "hub")
    assert opened_seeds(key, 0, "all", [bytes(64)], marked=False) == [bytes(16)]
    assert opened_seeds(key, 0, "all", [bytes(64)], marked=True) is None
    experiment.close()


def test_a_client_that_is_shown_other_sums_is_not_grouped_beside_the_others() -> None:
    """Its row would differ from theirs, and tell the hub its place."""
    experiment = made()
    helper, client = party(experiment, "helper"), party(experiment, "client/2")
    client.sums.secret.totals[1] = client.sums.secret.totals[1] + 2.0**-32
    relay(helper, rows_of(experiment))
    assert helper.groups.open(OpenRows(0, 0, told(experiment)), "hub").positions.tolist() == []
    assert helper.groups.secret.under_way is None
    experiment.close()


def test_no_row_is_opened_beside_fresh_ones_of_others() -> None:
    """The hub asks one client again, exchanges its row alone, and has the list opened again. The one share that is new
    would be that client's. All fresh, or all the same, show nothing."""
    experiment = made()
    helper, rows, fresh = party(experiment, "helper"), rows_of(experiment), rows_of(experiment, r=2)
    relay(helper, rows, 1)
    helper.groups.open(OpenRows(1, 0, told(experiment)), "hub")
    for again, left in (([fresh[0], *rows[1:]], [0]), ([*fresh[:7], rows[7]], [0, 1, 2, 3, 4, 5, 6])):
        relay(helper, again, 2)
        answer = helper.groups.open(OpenRows(2, 0, told(experiment)), "hub")
        assert answer.positions.tolist() == left  # which the hub knows
        assert answer.ours == bundle([])
        before = helper.groups.secret.given
        helper.groups.lasts(GroupsFound(given=before))  # also in another attempt
    for whole in (rows, fresh):
        relay(helper, whole, 3)
        assert len(helper.groups.open(OpenRows(3, 0, told(experiment)), "hub").positions) == 8
    hub = party(experiment, "hub")
    hub.groups.secret.rows = {"client/0": SharedRow(1, b"")}
    hub.groups.lasts(hub.groups.secret)
    assert not hub.groups.secret.rows
    experiment.close()


def test_a_key_that_keeps_no_secret_costs_its_client_the_place_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = sealed_groups.DESCRIBED

    class Forging:
        size, unpack_from = honest.size, honest.unpack_from

        @staticmethod
        def pack(key: bytes, weight: int, mark: bytes, ours: bytes) -> bytes:
            forged.append(key)
            return honest.pack(bytes(32) if len(forged) == 4 else key, weight, mark, ours)

    forged = list[bytes]()
    monkeypatch.setattr(sealed_groups, "DESCRIBED", Forging)
    experiment = made(rounds=5)
    assert not any(experiment.round(r)["refused"] for r in (1, 2))
    lost = [party(experiment, name).row.secret.lost for name in experiment.common.clients]
    assert sum(lost) == 1
    experiment.close()


def test_a_list_of_which_the_helper_says_that_it_reads_a_part_is_not_offered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hub then offers all others, so whose mark was not read is known. Marks of this list must not come again."""
    honest, lists = sealed_groups.HelperGroups._read, list[str]()  # a helper that deviates

    def reading(self: Any, held: Any, epoch: int, names: str) -> Any:
        lists.append(names)
        read = honest(self, held, epoch, names)
        return dict(list(read.items())[1:]) if len(lists) == 1 else read

    monkeypatch.setattr(sealed_groups.HelperGroups, "_read", reading)
    experiment = made(rounds=6)
    for r in (1, 2, 3):
        experiment.round(r)
    assert lists[0] not in lists[1:]
    assert (0, frozenset(lists[0].split("\n"))) in party(experiment, "hub").groups.secret.false
    experiment.close()
