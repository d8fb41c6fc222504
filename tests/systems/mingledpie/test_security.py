"""What the parties of MingledPie find out, measured on recorded views, beside closed forms.

The documentation's numbers are made by ``benchmarks.security``; here are fast versions of the same measurements,
the attacks' own oracles, and that what scores the attacks is the truth.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import Steady, planted, rig
from mingling import coefficients

from benchmarks.security import mingledpie as study
from benchmarks.security.__main__ import main
from benchmarks.security.compared import compared
from benchmarks.security.mingledpie import play
from coterie.clustering.identity_law import IdentityLaw
from coterie.crypto.ckks import keygen as ckks_keygen
from coterie.privacy.attacks.identity import expected_accuracy
from coterie.privacy.attacks.result import AttackResult, Expected
from coterie.privacy.audits import Finding
from coterie.privacy.audits import mingledpie as audit
from coterie.privacy.audits.mingledpie import Opener, opener
from coterie.privacy.plain import ATTACKS, NONE_IN_THE_CLEAR, plain_findings, plain_updates
from coterie.privacy.views import by_round
from coterie.protocol.errors import CoterieError, UserError
from coterie.runs import RunConfig
from coterie.runs.recorded import recorded_run
from coterie.systems.mingledpie import SYSTEM, observe
from coterie.systems.mingledpie.messages import HUB, Mingled, Update
from coterie.transport.transcript import View

LAW = IdentityLaw(5, 0.5, 2)
UNEQUAL = (10, 10, 10, 20, 70)
MODES: dict[str, dict[str, Any]] = study.FORMS
CKKS_ERROR = 1e-6
DOCS = Path(__file__).parents[3] / "docs" / "security" / "mingledpie.json"


def even(clients: int = 120, clusters: int = 5) -> np.ndarray:
    return np.arange(clients) % clusters


def sized(sizes: tuple[int, ...]) -> np.ndarray:
    return np.repeat(np.arange(len(sizes)), sizes)


def by_a_set(rounds: list[audit.IdentityRound]) -> list[Finding]:
    return audit.by_one_set(rounds) + audit.by_sizes(rounds)


def read(played: Any) -> list[audit.IdentityRound]:
    """Rounds as the audit sees them."""
    opens = opener(played.federation, played.views)
    return [one for one, _ in audit.recorded_rounds(played.views, played.clients, played.config, played.mode, opens)]


def found(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def agree(findings: list[Finding], n: int = 0, **options: Any) -> dict[str, Any]:
    """One result of several runs beside its closed form, within three standard errors."""
    row = compared([f.results[n] for f in findings], [f.expected[n] for f in findings], **options)
    assert row["agrees"], row
    return row


# -- what scores the attacks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_the_views_give_the_servers_sets_and_the_true_clusters(mode: str) -> None:
    """By the clients' own memory, in every round, also while clients change, are away and share layers."""
    groups = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    run = rig(
        SYSTEM,
        planted(groups, 20, apart=3.0),
        clusters=3,
        lr=1.0,
        shared_layers="bias",
        links=Steady(away={("client/5", 2): "offline"}),
        **MODES[mode],
    )
    views = run.transport.transcript.views
    rebuilt: np.ndarray = run.common.starts
    for r in (1, 2, 3):
        run.round(r)
        opens = opener(run.federation, views)
        rebuilt = opens.rebuilt(audit.mingled(views)[r], rebuilt)
        assert (rebuilt == run.party("client/0").models()).all()
        *_, (one, models) = audit.recorded_rounds(views, run.common.clients, run.hub.config, run.common.mode, opens)
        there = [i for i in range(12) if (i, r) != (5, 2)]
        assert (one.number, sorted(one.who.tolist())) == (r, there)
        true = np.array([own[0] for own in observe(run.federation)["membership"]])
        assert (one.truth == true[one.who]).all()
        for i, own in zip(one.who, one.sets, strict=True):
            secret = run.party(f"client/{i}").secret
            assert (own == (secret.sets[secret.cluster] if mode == "paper" else np.ones(3, bool))).all()
        targets = planted(groups, 20, apart=3.0)[one.who]
        assert np.abs(models - targets).max() < 1e-5  # a step of length 1 ends in the client's own target


def test_an_indicator_that_is_not_one_hot_has_no_true_cluster() -> None:
    class Lying:
        def update(self, message: Any) -> tuple[np.ndarray, np.ndarray]:
            return np.zeros(3), np.array([0.5, 0.5, 0, 0, 0])

    played = play([even(10)])
    with pytest.raises(UserError, match="indicator of client/0 is not one-hot"):
        list(audit.recorded_rounds(played.views, played.clients, played.config, "paper", Lying()))  # type: ignore[arg-type]


def test_views_without_what_an_audit_needs_are_refused() -> None:
    run, _ = trained("mingledpie", clients=3, rounds=1, partition="iid")
    begun = [seen for seen in run.views["client/0"].seen if seen.kind == "Granted"]
    for views, says in (
        ({HUB: run.views[HUB]}, "no client's view holds the clients' key"),
        ({"client/0": View("client/0", "client")}, "holds no keys: record from the set-up on"),
        ({"client/0": View("client/0", "client", begun)}, "no client's view holds the initial models"),
        ({**run.views, HUB: View(HUB, HUB)}, "holds no updates"),
    ):
        with pytest.raises(UserError, match=says):
            audit.passive(replace(run, views=views))
    assert plain_findings(run) == ([], dict.fromkeys([attack.name for attack in ATTACKS], NONE_IN_THE_CLEAR))


# -- one set -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "p", "threshold", "counts", "theory"),
    [
        (5, 0.5, 2, "false_positives", 0.2909),  # the 29 % of the paper's table II
        pytest.param(5, 0.5, 2, "identities", 0.3467, marks=pytest.mark.long),
        pytest.param(5, 0.25, 2, "identities", 0.4297, marks=pytest.mark.long),
        pytest.param(10, 0.25, 3, "identities", 0.2712, marks=pytest.mark.long),
    ],
)
def test_a_uniform_guess_within_the_set_is_right_as_often_as_it_should(
    k: int, p: float, threshold: int, counts: str, theory: float
) -> None:
    settings: dict[str, Any] = {"clusters": k, "p": p, "threshold": threshold, "threshold_counts": counts}
    runs = [audit.by_one_set(read(play([even(clusters=k)], seed=seed, **settings)))[0] for seed in range(2)]
    row = agree(runs)
    assert row["closed_form"] == pytest.approx(theory, abs=5e-5)
    assert (row["clients"], row["chance"]) == (240, pytest.approx(1 / k))


def test_as_printed_every_set_is_all_clusters_and_tells_nothing() -> None:
    findings = by_a_set(read(play([even(20)], mode="literal")))
    assert agree([findings[0]])["measured"] == pytest.approx(0.2)
    assert [f.name for f in findings] == ["server: true cluster", "server knowing the sizes: true cluster"]


@pytest.mark.long
def test_known_and_estimated_sizes_break_theorem_2() -> None:
    """Sizes 10, 10, 10, 20, 70: .68 and .67, three standard errors and more above the bound of 1/2."""
    runs = [by_a_set(read(play([sized(UNEQUAL)], seed=seed))) for seed in range(3)]
    uniform, known, estimated = (list(of) for of in zip(*runs, strict=True))
    assert agree(uniform)["measured"] < LAW.bounds[1]
    row = agree(known)
    assert row["closed_form"] == pytest.approx(0.6833, abs=5e-5)
    assert row["measured"] - 3 * row["standard_error"] > LAW.bounds[1]
    row = agree(estimated, spread=True)
    assert row["closed_form"] == pytest.approx(0.67, abs=0.02)
    assert row["measured"] > LAW.bounds[1]


# -- several sets ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_every_new_key_tells_more_unless_sets_are_kept() -> None:
    """k = 5, p = 1/2: .35, .56, .73, .85, .92 after 1 to 5 sets."""
    script = [even(60)] * 5
    changes = {"p_changes": "2:0.5,3:0.5,4:0.5,5:0.5"}
    runs = [read(play(script, seed=seed, **changes)) for seed in range(2)]
    (later, again) = ([audit.by_all_keys(run)[0] for run in runs], [audit.by_one_set(run)[0] for run in runs])
    theory = [agree(later, n)["closed_form"] for n in range(4)]
    assert np.round(theory, 2).tolist() == [0.56, 0.73, 0.85, 0.92]
    assert agree(again, 4)["closed_form"] == pytest.approx(0.3467, abs=5e-5)
    rounds = read(play(script[:3], keep_sets=True, p_changes="2:0.5,3:0.5"))
    assert all((one.sets == rounds[0].sets).all() for one in rounds)
    assert audit.by_all_keys(rounds) == []
    agree(audit.by_one_set(rounds[-1:])[:1])


def test_changing_p_gives_sets_of_other_laws() -> None:
    rounds = read(play([even(60)] * 3, p_changes="3:0.25"))
    assert [one.keys for one in rounds] == [0, 0, 3]
    assert rounds[1].law == LAW
    assert rounds[2].law == IdentityLaw(5, 0.25, 2)
    assert (rounds[0].sets == rounds[1].sets).all()  # the same keys: the sets are kept
    (finding,) = audit.by_all_keys(rounds)
    assert agree([finding])["closed_form"] == expected_accuracy([LAW, IdentityLaw(5, 0.25, 2)]).accuracy
    kept = play([even(10)], keep_sets=True, p_changes="3:0.25").config
    assert [audit.law_of(kept, "paper", r) for r in (2, 3)] == [LAW, None]  # from then on sets of both laws are about


@pytest.mark.long
def test_an_intersection_of_who_moved_or_was_away_has_no_closed_form() -> None:
    truth = even(20)
    moved = truth.copy()
    moved[0] = (truth[0] + 1) % 5
    for script in ([truth, moved], [moved, truth]):
        (finding,) = audit.by_all_keys(read(play(script, p_changes="2:0.5")))
        assert finding.expected == ()
    rounds = read(play([truth, truth], p_changes="2:0.5"))
    there = np.arange(20) > 0
    first = replace(rounds[0], who=rounds[0].who[there], sets=rounds[0].sets[there], truth=rounds[0].truth[there])
    (finding,) = audit.by_all_keys([first, rounds[1]])
    assert finding.expected == ()
    assert finding.results[0].n == 20


# -- a change of cluster -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_two_sets_of_a_client_that_changed_tell_a_little_more_than_one() -> None:
    """k = 5: .408 instead of .347, and a client that comes back shows its first set again."""
    first = even()
    second = (first + np.random.default_rng(5).integers(1, 5, 120)) % 5
    both = []
    for seed in range(2):
        rounds = read(play([first, second, first], seed=seed))
        alone, by_both = audit.by_changes(rounds[:2])
        both.append(by_both)
        assert alone.results[0].n == by_both.results[0].n == int((rounds[0].sets != rounds[1].sets).any(1).sum())
        assert (rounds[2].sets == rounds[0].sets).all()
        assert audit.by_changes(rounds)[1].results[0].n == alone.results[0].n  # of round 3 now, not of 2
        assert audit.by_changes(rounds[:1]) == []
    assert agree(both)["closed_form"] == pytest.approx(0.4078, abs=5e-5)


# -- hardened, and the shared key --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["hardened, products", "hardened, uploads"])
def test_hardened_leaves_the_server_its_prior_and_no_sizes(mode: str) -> None:
    sizes = (1, 2, 3, 4, 10)
    played = play([sized(sizes)], **MODES[mode])
    hub = played.views[HUB]
    sent = [(message, seen.size) for seen, message in hub.messages(Update)]
    assert {(len(message.identities), size) for message, size in sent} == {(0, sent[0][1])}
    (mingled,) = {len(message.sizes) for _, message in played.views["client/0"].messages(Mingled)}
    assert mingled == 0  # what the server itself says of the sums
    guess, by_size = by_a_set(read(played))
    assert (guess.results[0].value, by_size.results[0].value) == pytest.approx((0.2, 10 / 20))
    assert guess.results[0].leak == by_size.results[0].leak == 0
    assert (guess.expected, by_size.expected) == ((), ())


@pytest.mark.parametrize(("mode", "emulated"), [("paper", False), *((mode, True) for mode in MODES if mode != "paper")])
def test_the_server_and_one_client_open_every_update(mode: str, emulated: bool) -> None:
    """In real CKKS, too: client/1's key, from its own view, on what client/0 sent, from the server's."""
    truth = [0, 1, 1, 2, 4]
    played = play([truth], emulated=emulated, **MODES[mode])
    helper = opener(played.federation, {"client/1": played.views["client/1"]})
    for name, message in by_round(played.views[HUB], Update)[1].items():
        model, indicator = helper.update(message)
        own = truth[played.clients.index(name)]
        assert np.abs(model - played.starts[own]).max() < CKKS_ERROR
        assert np.abs(indicator - np.eye(5)[own]).max() < CKKS_ERROR
    other = ckks_keygen(
        helper.rebuild.layout.parameters.name, emulated=emulated, random_bytes=np.random.default_rng(9).bytes
    )
    with pytest.raises(CoterieError, match="encrypted under key"):
        Opener(helper.rebuild, other).update(message)


# -- what a client learns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_client_learns_the_coefficients_and_who_is_alone(mode: str) -> None:
    """H by its definition; and the model of a cluster of one is that client's own, with every client."""
    truth = sized((1, 2, 3, 5, 9))
    played = play([truth], **MODES[mode])
    (one,) = read(played)
    opens = opener(played.federation, played.views)
    (message,) = (m for _, m in played.views["client/7"].messages(Mingled))
    counts = np.rint(opens.counts(message))
    if mode == "paper":
        assert (counts == coefficients(one.sets, truth)).all()
    else:
        assert counts.tolist() == [1, 2, 3, 5, 9]
    sizes, alone = audit.by_coefficients(played.views, [one], opens)
    assert sizes.results == (AttackResult("true clusters of known size (share)", 1.0, 0.0, 1.0, 20),)
    assert alone.results[0].value == 1 / 20


def test_a_cluster_of_one_shows_its_member() -> None:
    """In every mode: exact sums hide nobody who is alone. (Seed 3 is one where the three groups part.)"""
    groups = [0, 0, 0, 1, 1, 1, 2]
    targets = planted(groups, 20, apart=3.0)
    run = rig(SYSTEM, targets, mode="hardened", clusters=3, lr=1.0, seed=3)
    run.rounds(3)
    clusters = [own[0] for own in observe(run.federation)["membership"]]
    assert clusters.count(clusters[6]) == 1
    for i in range(7):  # a step of length 1 ends in the client's own target
        assert np.abs(run.party(f"client/{i}").models()[clusters[6]] - targets[6]).max() < 1e-5


# -- preference profiling ----------------------------------------------------------------------------------------------


def trained(system: str, settings: dict[str, Any] | None = None, **given: Any) -> tuple[Any, Any]:
    options: dict[str, Any] = {"clients": 20, "rounds": 2, "partition": "labelsets:5", "crypto": "emulated", **given}
    run, experiment = recorded_run(RunConfig(system, record=True, settings=settings or {}, **options))
    experiment.close()
    return run, experiment


def test_local_models_tell_labels_unless_they_are_encrypted() -> None:
    """In round 1 IFCA and MingledPie train the same models: the one shows them, of the other a client's key does."""
    plain, _ = trained("ifca", {"clusters": 5})
    mingled, experiment = trained("mingledpie", {"clusters": 5})
    updates = next(plain_updates(plain))
    steps = updates.steps[np.argsort(updates.clients)]
    opens = opener(mingled.federation, mingled.views)
    one, models = next(audit.recorded_rounds(mingled.views, mingled.clients, mingled.settings, mingled.mode, opens))
    assert one.who.tolist() == list(range(20))
    starts = experiment.common.starts
    assert np.abs(models - starts[one.truth] - steps).max() < 1e-5
    open_hub = found(plain_findings(plain)[0])
    shares = open_hub["server: label shares"].results
    assert shares[0].value > 0.8
    assert shares[0].value > 5 * shares[0].chance_sd
    closed_hub = found(audit.passive(mingled))
    assert not [name for name in closed_hub if name.startswith("server") and "label" in name and "key" not in name]
    helped = closed_hub["server with any client's key: label shares"].results
    assert helped[0].value == pytest.approx(shares[0].value, abs=1e-3)
    assert helped[1].value == pytest.approx(shares[1].value, abs=0.1)  # amplified noise, rounding
    assert closed_hub["server with any client's key: true cluster"].row()["value"] == 1


# -- findings and the file ---------------------------------------------------------------------------------------------


def test_numbers_beside_their_closed_forms() -> None:
    results = [AttackResult("x", value, 0.1, 1.0, 25) for value in (0.5, 0.6)]
    expected = [Expected(0.5, 0.5, 0.5)] * 2  # a standard error of .1 each
    row = compared(results, expected)
    assert (row["measured"], row["closed_form"], row["clients"], row["runs"]) == (0.55, 0.5, 50, 2)
    assert (row["standard_error"], row["errors_off"]) == pytest.approx((0.1 / 2**0.5, 0.05 / (0.1 / 2**0.5)))
    assert row["agrees"]
    assert not compared([AttackResult("x", 0.95, 0.1, 1.0, 100)], expected[:1])["agrees"]
    sure = [Expected(0.5, 0.0, 0.0)]
    assert compared([AttackResult("x", 0.5, 0.1, 1.0, 9)], sure)["errors_off"] == 0
    one_off, many_off = (compared([AttackResult("x", value, 0.1, 1.0, 100)], sure) for value in (0.49, 0.46))
    assert (one_off["agrees"], one_off["errors_off"]) == (True, pytest.approx(-1))
    assert (many_off["agrees"], many_off["errors_off"]) == (False, pytest.approx(-4))
    by_spread = compared(results, expected, spread=True)
    assert by_spread["standard_error"] == pytest.approx(np.std([0, 0.1], ddof=1) / 2**0.5)
    with pytest.raises(UserError, match="2 seeds"):
        compared(results[:1], expected[:1], spread=True)
    with pytest.raises(UserError, match="0 results with 0"):
        Finding("nobody", "nothing", "other", ())


def test_the_documentations_numbers_agree_with_their_closed_forms() -> None:
    content = json.loads(DOCS.read_text())
    assert content["command"] == "python -m benchmarks.security mingledpie docs/security/mingledpie.json"
    rows = [row for section in content.values() if isinstance(section, list) for row in section]
    held = [row for row in rows if "closed_form" in row]
    assert len(held) == content["closed_forms"]["compared"] > 40
    assert content["closed_forms"]["off"] == []
    for row in held:
        exact = abs(row["measured"] - row["closed_form"]) < 1e-9
        assert exact or abs(row["measured"] - row["closed_form"]) <= 3 * row["standard_error"]
    broken = [row for row in rows if row.get("within_theorem_2") is False]
    assert [row["who"].split(":")[0] for row in broken] == ["server knowing the sizes", "server estimating the sizes"]


@pytest.mark.long
def test_the_command_writes_such_a_file(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "mingledpie.json"
    main(["mingledpie", str(out), "--seeds", "1", "--clients", "20", "--rounds", "2"])
    new, old = json.loads(out.read_text()), json.loads(DOCS.read_text())
    assert new.keys() == old.keys() | {"version", "commit", "machine"}  # the record is older than these
    assert new["closed_forms"]["off"] == []
