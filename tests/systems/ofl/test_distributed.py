"""mechanism=distributed: leaders open one exact sum of whole numbers, whose noise suffices, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from federation import planted
from matrix import few
from ofl_parts import Mortal, ofl, uploads

import coterie
from coterie.crypto import threshold_pads
from coterie.dp.ledger import Ledger
from coterie.dp.uploads import shared_set
from coterie.protocol.errors import CoterieWarning, UserError
from coterie.protocols.threshold import OpenedSum
from coterie.runs import build
from coterie.runs.options import RunConfig
from coterie.systems.ofl import SYSTEM
from coterie.systems.ofl.config import OFLConfig
from coterie.systems.ofl.messages import MODEL, Upload

SIZE = 24
TARGETS = planted([0, 0, 0, 1, 1, 1, 2, 2, 2], SIZE)
SUMS = {"mechanism": "distributed", "clusters": 3, "recluster_every": 9, "clip": 5.0, "noise": 0.02, "missing": 0}


def opened(made: Any, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The opened sums of all later rounds, in steps of the grid."""
    from coterie.systems.ofl import global_aggregation as module

    found: list[np.ndarray] = []
    whole = module.open_padded

    def watched(*args: Any) -> Any:
        one: OpenedSum = yield from whole(*args)
        found.append(one.values * made.config.unit(SIZE, len(TARGETS)))
        return one

    monkeypatch.setattr(module, "open_padded", watched)
    return found


@pytest.mark.parametrize("emulated", [True, False])
@pytest.mark.parametrize("noise_by", few(["leaders", "members"], ["leaders"]))
def test_the_opened_sum_is_exactly_that_of_the_numbers_and_the_noise(
    noise_by: str, emulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a twin that adds up what clients upload, and leaders' noise that it knows. Real ciphers, too."""
    noise: list[np.ndarray] = []
    share = coterie.dp.distributed.Distributed.share

    def watched(self: Any, parties: int, secrets: Any) -> np.ndarray:
        noise.append(share(self, parties, secrets))
        return noise[-1]

    monkeypatch.setattr("coterie.dp.distributed.Distributed.share", watched)
    made = ofl(TARGETS, emulated=emulated, **SUMS, noise_by=noise_by)
    sums = opened(made, monkeypatch)
    made.round(1)
    session, leaders = made.common.roster.session, set(made.hub.state.leaders.values())
    numbers = {name: made.party(name).secret.office.numbers for name in leaders}
    for name in leaders:  # its members' uploads, and one more that an honest client could have made: its own
        own = numbers[name].copy()
        members = set(made.party(name).secret.office.members) - {name}
        for member in members:
            upload = uploads(made)[member, 1]
            assert (np.rint(upload.values) == upload.values).all()
            own[shared_set(np.arange(SIZE), len(upload.values), session, member, 1)] -= upload.values
        assert made.config.sums(SIZE).fits(own, len(TARGETS) if noise_by == "members" else 0)
        assert own.any()
    assert len(noise) == (len(leaders) if noise_by == "leaders" else len(TARGETS))
    total = sum(numbers.values()) + (sum(noise) if noise_by == "leaders" else 0)
    np.testing.assert_allclose(sums[0], total, rtol=0, atol=0.01)


def test_the_model_moves_by_the_mean_change() -> None:
    """With next to no noise, and changes within the clip: FedAvg without weights, of all clients."""
    made = ofl(TARGETS, **{**SUMS, "full_samples": 1, "noise": 0.003})
    before = made.hub.state.weights.copy()
    made.round(1)
    changes = [made.party(name).state.weights - before for name in made.common.clients]
    assert max(np.linalg.norm(change) for change in changes) > 0.1
    moved = made.hub.state.weights - before
    np.testing.assert_allclose(moved, np.mean(list(trained(made)), axis=0) - before, atol=0.02)


def trained(made: Any) -> list[np.ndarray]:
    """What clients have trained from the common start: a step towards their targets."""
    start = np.asarray(made.common.initial, np.float64)
    return [start - made.config.lr * (start - target) for target in TARGETS]


@pytest.mark.parametrize("lie", ["without one", "by weights"])
def test_a_server_gets_no_sum_that_lacks_noise(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.systems.ofl import global_aggregation as module

    made = ofl(TARGETS, **SUMS)
    made.round(1)
    whole = module.open_padded

    def lying(key: Any, sent: Any) -> Any:
        if lie == "without one":
            return (yield from whole(key, dict(list(sent.items())[1:])))
        return (yield from whole(key, sent, weights=dict(zip(sent, (1, 1, 2), strict=True))))

    monkeypatch.setattr(module, "open_padded", lying)
    before = made.hub.state.weights.copy()
    assert "skipped" in made.round(2)
    assert any("it lacks noise" in reason for reason in made.refused), made.refused
    np.testing.assert_array_equal(made.hub.state.weights, before)


def test_after_a_drop_out_the_others_add_noise_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that is gone before it encrypts: other shares, of a larger variance, by the same clip and z."""
    drawn: list[tuple[int, np.ndarray]] = []
    share = coterie.dp.distributed.Distributed.share

    def watched(self: Any, parties: int, secrets: Any) -> np.ndarray:
        drawn.append((parties, share(self, parties, secrets)))
        return drawn[-1][1]

    monkeypatch.setattr("coterie.dp.distributed.Distributed.share", watched)
    links = Mortal()
    made = ofl(TARGETS, links=links, **{**SUMS, "deadline_s": 1000.0})
    made.round(1)
    links.dies = {(made.hub.state.leaders[0], 2)}
    drawn.clear()
    assert "skipped" not in made.round(2)
    assert [parties for parties, _ in drawn] == [2, 2]


def test_a_second_sum_of_a_round_is_refused_in_any_attempt() -> None:
    """The same numbers get the same noise. Others would be a second release."""
    made = ofl(TARGETS, emulated=False, **SUMS)
    made.round(1)
    leader = made.party(made.hub.state.leaders[0])
    joint = leader.joint
    assert joint.secret.noisy[MODEL].opened
    of = joint.secret.noisy[MODEL].of
    with pytest.raises(Exception, match="second release"):
        joint.noise(MODEL, 1, b"other numbers")
    assert joint.secret.noisy[MODEL].of == of
    joint.noise(MODEL, 2, b"other numbers")
    assert not joint.secret.noisy[MODEL].opened


@pytest.mark.parametrize(("noise_by", "missing"), [("leaders", 1), ("members", 5)])
def test_another_attempt_opens_no_sum_of_other_leaders(noise_by: str, missing: int) -> None:
    """Members repeat their uploads, noise included: the difference of both sums would be one cluster's."""
    links = Mortal()
    made = ofl(TARGETS, links=links, **{**SUMS, "deadline_s": 1000.0, "missing": missing}, noise_by=noise_by)
    made.round(1)
    marks = {name: (party.state, party.secret) for name, party in made.federation.parties.items()}
    kept = copy.deepcopy(marks)
    assert "skipped" not in made.round(2)
    uploaded = {key: upload.values for key, upload in uploads(made).items()}
    for name, party in made.federation.parties.items():
        was = party.state, party.secret
        party.state, party.secret = kept[name]
        party.lasts(*was)
    links.dies = {(made.hub.state.leaders[0], 2)}
    assert "skipped" in made.round(2)
    assert any("would be a second release" in reason for reason in made.refused), made.refused
    again = uploads(made)
    assert all((again[key].values == values).all() for key, values in uploaded.items())


def test_the_server_learns_nothing_of_an_upload_in_a_status_report() -> None:
    made = ofl(TARGETS, **{**SUMS, "recluster_every": 1})
    made.rounds(3)
    assert all(not made.hub.report(name).update.any() for name in made.common.clients)
    assert all(made.party(name).state.released for name in made.common.clients)


@pytest.mark.parametrize("noise_by", ["leaders", "members"])
def test_the_ledger_says_against_whom(noise_by: str) -> None:
    made = ofl(TARGETS, **{**SUMS, "noise": 2.0, "missing": 1}, noise_by=noise_by)
    made.rounds(2)
    mechanism = made.config.sums(SIZE)
    for own in SYSTEM.ledger(made.federation).values():
        leader, others = own[0], own[1]
        assert others == mechanism.release(1, others.against)
        if noise_by == "leaders":
            assert leader.against == ("own leader",)
            assert others.against == ("server", "other leaders", "other clients", "public")
            assert leader.mechanism == "none"
        else:
            assert leader.against == ("own leader", "other leaders")
            assert others.against == ("server", "other clients", "public")
            assert leader.noise_multiplier == pytest.approx(2.0 / np.sqrt(len(TARGETS) - 2))
        assert len(own) == 4


@pytest.mark.parametrize(
    ("noise_by", "near"),
    [("leaders", ["own leader", "other leaders"]), ("members", ["own leader", "other leaders"])],
)
def test_whoever_adds_noise_knows_a_share_of_it(noise_by: str, near: list[str]) -> None:
    """Without ``missing`` no leader's share is to spare. A member's own share never counts against itself."""
    made = ofl(TARGETS, **{**SUMS, "noise": 2.0}, noise_by=noise_by)
    made.round(1)
    for own in SYSTEM.ledger(made.federation).values():
        said = Ledger(tuple(own))
        epsilons = {name: said.epsilon(1e-5, "replace one client", name) for name in said.observers}
        assert [name for name, epsilon in epsilons.items() if epsilon > epsilons["public"]] == near


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_a_member_that_reads_the_model_faces_the_noise_of_the_ledger(missing: int) -> None:
    """It knows its own share, and of the others' as many are absent or tell theirs as may be missing."""
    mechanism = ofl(TARGETS, **{**SUMS, "noise": 2.0, "missing": missing}, noise_by="members").config.sums(SIZE)
    unknown = len(TARGETS) - missing - 1
    counted = (mechanism.release(1, ("other clients",)).noise_multiplier * mechanism.sensitivity) ** 2
    assert unknown * mechanism.variance(len(TARGETS)) == pytest.approx(counted)


def test_a_leader_knows_its_own_members_noise() -> None:
    """The opened sum less what one leader has seen has the noise of the other clusters' members, and no more."""
    made = ofl(TARGETS, **{**SUMS, "noise": 2.0, "missing": 1, "full_samples": 1}, noise_by="members")
    made.round(1)
    mechanism, leaders = made.config.sums(SIZE), list(made.hub.state.leaders.values())
    total = sum(made.party(name).secret.office.numbers for name in leaders)
    rest = total - made.party(leaders[0]).secret.office.numbers
    others = len(TARGETS) - len(made.party(leaders[0]).secret.office.members)
    deviation = np.sqrt(others * mechanism.variance(len(TARGETS)))
    assert deviation < mechanism.noise_multiplier * mechanism.sensitivity
    assert rest.std() == pytest.approx(deviation, rel=0.4)


def test_a_spent_budget_ends_uploads() -> None:
    made = ofl(TARGETS, **{**SUMS, "noise": None}, epsilon=4.0, private_rounds=2)
    made.rounds(4)
    assert {len(made.party(name).state.released) for name in made.common.clients} == {2}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda u: replace_values(u, u.values + np.float32(0.5)),
        lambda u: replace_values(u, u.values * np.float32(50)),
    ],
    ids=["not whole", "too long"],
)
def test_a_leader_refuses_numbers_that_no_honest_client_sends(wrong: Any) -> None:
    made = ofl(TARGETS, **SUMS)
    made.round(1)
    leader = made.party(made.hub.state.leaders[0])
    (member, _), upload = next(iter(uploads(made).items()))
    leader.check_length(member, upload)
    with pytest.raises(Exception, match="larger values than an honest member sends"):
        leader.check_length(member, wrong(upload))


def replace_values(upload: Upload, values: np.ndarray) -> Upload:
    import msgspec

    return msgspec.structs.replace(upload, values=values.astype(np.float32))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"detection": "norms"}, "opens one sum of all leaders a round"),
        ({"threshold": 2}, "opens one sum of all leaders a round"),
        ({"epsilon2": 3.0}, "no effect with mechanism=distributed"),
    ],
    ids=str,
)
def test_settings_that_open_more_than_the_sum_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        OFLConfig(mechanism="distributed", **settings)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"missing": 2}, "missing: 2 leaders add noise, .* shares of 2 need"),
        ({"missing": 16, "noise_by": "members"}, "missing: 16 members add noise, .* shares of 17 need"),
        ({"noise": 2000.0}, "too large for the cipher"),
        ({"noise": 900.0, "noise_by": "members"}, "too large for uploads"),
        ({"noise": 1e-3}, "noise of variance"),
    ],
    ids=str,
)
def test_noise_that_is_not_possible_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        build(RunConfig("ofl", data="digits", rounds=1, settings={"mechanism": "distributed", **settings}))


def test_little_noise_is_warned_of_where_a_budget_allows_no_upload() -> None:
    with pytest.warns(CoterieWarning, match="allows no upload"):
        ofl(TARGETS, **{**SUMS, "noise": 0.05}, epsilon=1.0)


def test_a_padded_sum_is_exact_to_a_hundredth_of_a_step() -> None:
    """The stated bound on the error of real sums, in steps, with ten thousand clients."""
    config = OFLConfig(mechanism="distributed", epsilon=8.0)
    from coterie.crypto.threshold import Group

    names = tuple(f"client/{i}" for i in range(4))
    group = Group("threshold-8192-sum", names, 0, emulated=True, summands=4)
    error = threshold_pads.padded_error(group, dict.fromkeys(names, 1))
    assert error * config.unit(178_110, 10_000) < 0.01
