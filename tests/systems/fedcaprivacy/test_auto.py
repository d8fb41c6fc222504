"""clusters=auto: how many clusters FedCAPrivacy makes, when it makes them anew, and what their numbers are."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedcaprivacy_parts import by_models
from federation import Pulled, Rig, Steady, on_the_wire, planted, rig
from hypothesis import given
from hypothesis import strategies as st
from matrix import few
from sklearn.metrics import adjusted_rand_score

from coterie.clustering.spectral import soft_spectral
from coterie.protocol.effects import Fit, Fitted
from coterie.protocol.errors import UserError
from coterie.runs import RunConfig, run
from coterie.systems.fedcaprivacy import SYSTEM, csp
from coterie.systems.fedcaprivacy.business_server import numbered_like
from coterie.systems.fedcaprivacy.messages import Clustered
from tests.systems.fedcaprivacy.test_twin import fixed_shuffles

GROUPS = [0, 1, 2, 3] * 4
TARGETS = planted(GROUPS, 40)
NEVER = 1e9  # alpha, so that only round 1 is sure to cluster
MODES = few([("paper", {}), ("hardened", {}), ("hardened", {"hardening": "rotation"})], [("paper", {})])


def noisy(targets: dict[str, np.ndarray]) -> Pulled:
    return Pulled(targets, noise=0.05)


def auto(targets: np.ndarray = TARGETS, **options: Any) -> Rig:
    return rig(SYSTEM, targets, **{"clusters": "auto", "alpha": NEVER, "effects": noisy, **by_models(**options)})


def sizes(note: dict[str, Any]) -> list[int]:
    return sorted(size for size in note["clusters"]["sizes"] if size)


def ari(groups: list[int], note: dict[str, Any]) -> float:
    return float(adjusted_rand_score(groups, [str(own) for own in note["membership"]]))


# -- how many ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "options"), MODES)
def test_planted_groups_are_found_without_their_number_and_then_kept(mode: str, options: dict[str, Any]) -> None:
    """One cluster until two rounds in succession count four; then again until nobody moves; then never."""
    run = auto(mode=mode, **options)
    notes = run.rounds(7)
    assert sizes(notes[0]) == [16]
    assert sizes(notes[-1]) == [4] * 4
    assert ari(GROUPS, notes[-1]) == 1
    first = next(r for r, note in enumerate(notes) if len(sizes(note)) == 4)
    assert 1 <= first <= 3
    assert [note["clustered"] for note in notes[first:]] == [True, True] + [False] * (len(notes) - first - 2)


@pytest.mark.parametrize(("mode", "options"), MODES)
def test_clients_that_differ_by_chance_are_one_cluster(mode: str, options: dict[str, Any]) -> None:
    run = auto(planted([0] * 16, 40), mode=mode, schedule="always", **{**options, "alpha": 0.1})
    assert [sizes(note) for note in run.rounds(4)] == [[16]] * 4


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12))
def test_the_number_moves_only_as_far_as_two_rounds_in_succession_say(counts: list[int]) -> None:
    told = iter(counts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csp, "count_clusters", lambda *args: next(told))
        provider = auto(TARGETS[:2]).party("csp")
        number, before = 1, 1
        for r, count in enumerate(counts, 1):
            now = provider.counted(r, np.zeros((2, 1)))
            lowest, highest = sorted((before, count))
            assert now == (number if lowest <= number <= highest else lowest if number < lowest else highest)
            provider.state.number, number, before = now, now, count


# -- when --------------------------------------------------------------------------------------------------------------


class Parting(Pulled):
    """Clients of one kind until round ``since``; then those of odd number are pulled elsewhere."""

    since = 4

    def fit(self, party: str, effect: Fit) -> Fitted:
        self.fits = getattr(self, "fits", 0) + 1
        if self.fits > len(self.targets) * (self.since - 1) and int(party.split("/")[1]) % 2:
            apart = {name: target + 3 for name, target in self.targets.items()}
            return Pulled(apart, noise=self.noise).fit(party, effect)
        return super().fit(party, effect)


@pytest.mark.parametrize(("mode", "options"), MODES)
def test_groups_that_form_later_are_found_although_the_schedule_says_never(mode: str, options: dict[str, Any]) -> None:
    parting: Any = lambda targets: Parting(targets, noise=0.05)  # noqa: E731
    run = auto(planted([0] * 12, 40), mode=mode, effects=parting, **options)
    notes = run.rounds(8)
    assert [len(sizes(note)) for note in notes[:4]] == [1] * 4
    assert [note["clustered"] for note in notes[:3]] == [True, True, False]
    assert ari([0, 1] * 6, notes[-1]) == 1
    assert sizes(notes[-1]) == [6, 6]


def test_a_bad_clustering_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first clustering into four mixes all groups. With auto it is made anew until it moves nobody."""
    spoilt: list[int] = []

    def clustering(rows: np.ndarray, clusters: int, *args: Any, **options: Any) -> Any:
        soft = soft_spectral(rows, clusters, *args, **options)
        if clusters == 4 and not spoilt:
            spoilt.append(1)
            soft.membership[:] = np.eye(4, dtype=bool)[np.arange(len(rows)) % 4]
        return soft

    monkeypatch.setattr(csp, "soft_spectral", clustering)
    kept = auto(clusters=4).rounds(4)
    assert all(ari(GROUPS, note) < 0.5 for note in kept)
    spoilt.clear()
    notes = auto().rounds(8)
    mixed = next(r for r, note in enumerate(notes) if len(sizes(note)) == 4)
    assert ari(GROUPS, notes[mixed]) < 0.5
    assert ari(GROUPS, notes[-1]) == 1


def test_clusters_that_never_arrived_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider counts four from round 3 on, so it makes them in round 4, and takes it that they are known."""
    told = iter([1, 1, 4, 4, 4, 4, 4])
    monkeypatch.setattr(csp, "count_clusters", lambda *args: next(told))
    run = auto()
    on_the_wire(run.transport, Clustered, lambda message: None if message.round == 4 else message)
    notes = run.rounds(7)
    assert [note["clustered"] for note in notes] == [True, True, False, False, True, True, False]
    assert "skipped" in notes[3]
    assert ari(GROUPS, notes[-1]) == 1


def test_the_schedule_is_what_happens_at_least() -> None:
    run = auto(planted([0] * 8, 40), schedule="every:3", alpha=0.1)
    assert [note["clustered"] for note in run.rounds(7)] == [True, True, False, True, False, False, True]


# -- numbers of clusters, whose number changes -------------------------------------------------------------------------


@given(st.data())
def test_new_numbers_are_the_best_by_trying_all(data: st.DataObject) -> None:
    """As many rows as possible keep theirs; what is left gets the lowest free numbers."""
    n, c = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    b = data.draw(st.integers(1, c))

    def drawn(*shape: int) -> np.ndarray:
        each = st.lists(st.booleans(), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))
        return np.array(data.draw(each)).reshape(shape)

    old, new, free = drawn(n, c), drawn(n, b), drawn(c)
    found = numbered_like(old, new, free)
    assert sorted(map(tuple, found.T.tolist())) == sorted(
        map(tuple, np.hstack([new, np.zeros((n, c - b), bool)]).T.tolist())
    )
    members = [j for j in range(b) if new[:, j].any()]

    def worth(to: tuple[int, ...]) -> tuple[int, int]:
        kept = sum(int((old[:, k] & new[:, j]).sum()) for j, k in zip(members, to, strict=True))
        return kept, sum((c - k) * int(free[k]) for k in to)

    best = max(worth(to) for to in permutations(range(c), len(members)))
    columns = [next(k for k in range(c) if (found[:, k] == new[:, j]).all()) for j in members]
    if len({tuple(new[:, j]) for j in members}) == len(members):  # columns that are equal can't be told apart
        assert worth(tuple(columns)) == best


def flags(*rows: str) -> np.ndarray:
    return np.array([[digit == "1" for digit in row] for row in rows])


def test_a_new_cluster_gets_no_number_of_who_is_away() -> None:
    hub = auto().hub
    names = hub.clients
    hub.state.phi = {name: flags(row)[0] for name, row in zip(names, ("1", "01", "001", "00001"), strict=False)}
    here = [names[0], names[1], names[8]]
    assert (hub.renumbered(here, flags("001", "100", "010")) == flags("1000", "0100", "0001")).all()
    back = [names[0], names[2], names[8]]  # now 1 is away and 2 is here
    assert (hub.renumbered(back, flags("001", "100", "010")) == flags("1000", "0010", "0001")).all()
    assert (hub.renumbered([names[8], names[9]], flags("1", "1")) == flags("0001", "0001")).all()
    hub.state.phi = {names[0]: flags("001")[0]}
    assert (hub.renumbered([names[8]], flags("1")) == flags("1")).all()  # the lowest


def test_who_is_away_keeps_its_clusters() -> None:
    """Group 0 is away while the others are taken apart."""
    links = Steady(away={(f"client/{i}", r): "offline" for i in range(0, 16, 4) for r in (3, 4, 5, 6)})
    run = auto(links=links)
    notes = run.rounds(9)
    at_home = notes[1]["membership"][0]
    for note in notes[2:6]:
        assert [note["membership"][i] for i in range(0, 16, 4)] == [at_home] * 4
    apart = {tuple(own) for i, own in enumerate(notes[5]["membership"]) if i % 4}
    assert len(apart) == 3
    assert ari(GROUPS, notes[-1]) == 1
    assert max(k for own in notes[-1]["membership"] for k in own) <= 4


def test_fewer_clusters_take_the_numbers_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([4, 4, 4, 2, 2, 2, 4, 4])
    monkeypatch.setattr(csp, "count_clusters", lambda *args: next(told))
    notes = auto().rounds(8)
    assert [len(sizes(note)) for note in notes] == [1, 4, 4, 4, 2, 2, 2, 4]
    assert {k for note in notes for own in note["membership"] for k in own} <= set(range(4))
    assert ari(GROUPS, notes[-1]) == 1


# -- settings and whole runs -------------------------------------------------------------------------------------------


def test_keys_and_shuffles_move_neither_the_number_nor_a_model() -> None:
    """Real Paillier and another permutation of the vectors give the models of the emulated run bit for bit."""
    groups = [0] * 4 + [1] * 4
    runs = [auto(planted(groups, 20), emulated=emulated) for emulated in (True, True, False)]
    numbers = []
    for r in range(1, 5):
        notes = [runs[0].round(r), runs[2].round(r)]
        with fixed_shuffles():
            notes.append(runs[1].round(r))
        assert notes[0] == notes[1] == notes[2]
        numbers.append(len(sizes(notes[0])))
        assert len({one.models().tobytes() for one in runs}) == 1
    assert (numbers[0], numbers[-1]) == (1, 2)


def test_the_printed_text_knows_no_auto() -> None:
    with pytest.raises(UserError, match=r"clusters=auto .* literal"):
        auto(mode="literal", alpha=0.1)


@pytest.mark.parametrize("mode", ["paper", pytest.param("hardened", marks=pytest.mark.long)])
def test_digits_whose_labels_mean_something_else_in_each_group(mode: str, tmp_path: Path) -> None:
    """24 clients, four groups, real training."""
    config = RunConfig("fedcaprivacy", clients=24, partition="permute:4", mode=mode, crypto="emulated", rounds=6)
    done = run(replace(config, settings={"clusters": "auto"}, out=str(tmp_path / "run")))
    assert done.summary["grouping"]["ari"] == 1
    assert done.summary["grouping"]["sizes"] == [6, 6, 6, 6]
    assert done.summary["local_accuracy"] > 0.9


def test_digits_without_groups_stay_one_cluster(tmp_path: Path) -> None:
    config = RunConfig("fedcaprivacy", clients=24, partition="iid", crypto="emulated", out=str(tmp_path / "run"))
    done = run(RunConfig(**{**vars(config), "rounds": 4, "settings": {"clusters": "auto"}}))
    assert [line["grouping"]["sizes"] for line in done.rounds] == [[24]] * 4
