"""Who receives what, who is late and who is away, in a set-up or in rounds: every system in every mode."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from every_system import CASES, Case, after, first, made, one_mode, parameters
from federation import Rig, Steady

import coterie.method as fl
from coterie.baselines import secagg
from coterie.baselines.secagg import Client, SecAggConfig, Server
from coterie.protocol.errors import RunError
from coterie.protocol.system import Mixture
from coterie.protocols.key_centre import KEY_CENTRE
from coterie.runs import registry

ROUNDS = 4
GONE = "client/5"
DEALS_NONE = ("ofl", "secagg")
KEYED = [case for case in CASES if registry.get(case[0]).encrypts(case[1]) and case[0] not in DEALS_NONE]


def finite(run: Rig) -> bool:
    models = run.system.models(run.federation).values()
    return all(np.isfinite(model.models if isinstance(model, Mixture) else model).all() for model in models)


@pytest.mark.parametrize("case", parameters(CASES))
def test_each_role_receives_what_its_system_says(case: Case) -> None:
    """With these settings, and nothing else; and of a sealed message the hub reads nothing."""
    run = after(case, 1)
    run.links.away = {("client/5", 2): "offline"}
    for r in range(2, ROUNDS + 1):
        run.round(r)
    run.finish(ROUNDS)
    views = run.system.views(case[1], run.config)
    said = {role: {kind.__name__ for kind in sees.receives} for role, sees in views.items()}
    assert run.transport.transcript is not None
    for view in run.transport.transcript.views.values():
        assert view.kinds() <= said[view.role], view.role
        relayed = [one for one in view.seen if one.message is None]
        assert not relayed or view.party == run.federation.hub


@pytest.mark.parametrize("case", parameters(CASES, one_mode))
def test_who_comes_and_goes_ends_no_run(case: Case) -> None:
    """A third of the clients is away in each round, or fails in it: models stay finite, and nobody is refused."""
    source = np.random.default_rng(1)
    names = [f"client/{i}" for i in range(6)]
    away = {
        (name, r): str(source.choice(["offline", "dropped"]))
        for r in range(1, 7)
        for name in names
        if source.random() < 1 / 3
    }
    run = after(case)
    run.links.away = away
    notes = run.rounds(6)
    assert finite(run)
    assert any("skipped" not in note for note in notes)


def waits(case: Case) -> bool:
    """Until a deadline, and not for everybody. (A holder of a joint key is waited for.)"""
    known = {field.name for field in fields(registry.get(case[0]).config)}
    return "deadline_s" in known and case[2].get("keys") != "threshold"


@pytest.mark.parametrize("case", parameters([case for case in CASES if waits(case)], one_mode))
def test_a_slow_client_holds_up_no_round(case: Case) -> None:
    """It needs longer than a round waits, in every round."""
    name, mode, settings = case
    run = made((name, mode, {**settings, "deadline_s": 10.0}), links=Steady(slow={"client/0": 15.0}))
    before = run.transport.clock_s
    run.rounds(ROUNDS)
    assert finite(run)
    assert run.transport.clock_s - before < 15.0 * ROUNDS * 3


# -- what must hold ----------------------------------------------------------------------------------------------------


def without(name: str, case: Case, **options: Any) -> Any:
    return made(case, links=Steady(away={(name, 0): "offline"}), **options)


@pytest.mark.parametrize("case", parameters(CASES, one_mode))
def test_a_quorum_of_clients_begins(case: Case) -> None:
    """The client that was away is refused or passed over, and all others train."""
    run = without(GONE, case, quorum=4)
    start = run.system.models(run.federation)
    notes = [run.round(r) for r in (1, 2)]
    assert not [one["skipped"] for one in notes if "skipped" in one]
    ended = run.system.models(run.federation)
    assert any(ended[name] is not start[name] for name in run.common.clients[:-1])


@pytest.mark.parametrize("case", parameters([case for case in KEYED if case[2].get("keys") != "threshold"], first))
def test_without_a_quorum_the_set_up_names_who_is_missing(case: Case) -> None:
    with pytest.raises(RunError, match=f"all clients and all servers must have keys; {GONE} have none"):
        without(GONE, case)
    with pytest.raises(RunError, match=f"6 clients and all servers must have keys; {GONE} have none"):
        without(GONE, case, quorum=6)


@pytest.mark.parametrize("name", ["csp", "key_centre"])
def test_every_server_must_be_there(name: str) -> None:
    with pytest.raises(RunError, match=r"csp have none|waits for 1 Granted"):
        without(name, ("fedcaprivacy", "paper", {"clusters": 2}), quorum=4)


@pytest.mark.parametrize("name", registry.SYSTEMS)
def test_a_method_that_hides_something_says_who_must_not_help_whom(name: str) -> None:
    system = registry.get(name)
    for mode in system.modes:
        words = system.assumed(mode)
        assert not words.endswith(".")  # it stands in a sentence
        assert bool(re.search("collude|helps? the server", words)) == system.encrypts(mode)
        roles = set(system.factories(system.config(**system.defaults(mode)), mode))
        assert "key centre" not in words or KEY_CENTRE in roles


ALONE = "the server follows the protocol; no two rounds of nearly the same model differ in one client alone, "
COUNTS = "; two clients of each list of label counts keep their keys from the server"
FOLLOWED = "all parties follow the protocol, and show nobody else what they see"
GROUPING = "; both servers follow the protocol while groups are made"
BESIDE = "show nobody what they know"


@pytest.mark.parametrize(
    ("name", "settings", "there", "absent"),
    [
        ("fedavg", {}, [FOLLOWED], [COUNTS]),
        ("fedavg", {"label_counts": True}, [f"{FOLLOWED}{COUNTS}"], []),
        ("secagg", {}, ["fewer than 2t - n help the server", "0.6667 of n (a share of 0.33 is", ALONE], [COUNTS]),
        ("secagg", {"threshold": 0.75}, ["above a share of 0.75 of n (a share of 0.50 is few enough)"], []),
        ("secagg", {"threshold": 0.5}, ["(none is few enough)"], []),
        ("secagg", {"label_counts": True}, [ALONE, COUNTS], []),
        ("ofl", {}, ["the server does not collude with all leaders but one; "], ["key centre"]),
        ("ofl", {"threshold": 3}, ["fewer than 3 leaders collude with the server; "], ["all leaders but one"]),
        ("ofl", {"keys": "dealer"}, ["the key centre forgets the leaders' key"], []),
        ("mingledpie", {}, ["all clients share one secret key", "every difference of sums"], ["holders of shares"]),
        (
            "mingledpie",
            {"keys": "threshold"},
            ["fewer holders of shares than open a sum help the server; ", "every difference of sums"],
            ["one secret key", "key centre"],
        ),
        (
            "pafed",
            {},
            ["helper do not collude, which would open every update", "no client helps the aggr"],
            ["committee"],
        ),
        (
            "pafed",
            {"keys": "threshold"},
            [
                "aggregator and helper do not collude: together they open models and cosines, ",
                "with as many of the committee as open, updates; no client helps the aggregator",
            ],
            ["every update"],
        ),
        ("coterie", {}, [GROUPING], []),
        ("coterie", {"clusters": 1}, ["no client helps one of them"], ["follow"]),
    ],
)
def test_what_must_hold_follows_the_settings(
    name: str, settings: dict[str, object], there: list[str], absent: list[str]
) -> None:
    system = registry.get(name)
    said = system.assumed("paper", system.config(**settings))
    assert [words for words in there if words not in said] == []
    assert [words for words in absent if words in said] == []


@pytest.mark.parametrize("name", registry.SYSTEMS)
def test_where_parties_see_a_hidden_sum_two_terms_must_stay_unknown(name: str) -> None:
    """Whoever knows all terms of a sum but one has the last."""
    system = registry.get(name)
    for mode in system.modes:
        assert (BESIDE in system.assumed(mode)) == system.encrypts(mode)


def test_without_an_authors_words_nothing_is_promised_of_what_is_encrypted() -> None:
    plain = replace(registry.get("fedavg"), assumes="")
    assert plain.assumed("paper") == FOLLOWED
    assert replace(plain, encrypted=True).assumed("paper") == "conditions hold that its author does not name"
    assert replace(plain, encrypted=True, plain=("paper",)).assumed("paper") == FOLLOWED
    hidden = fl.system("own", SecAggConfig, Server, Client, described_in=secagg.__name__, encrypted=True)
    said = hidden.assumed("paper", SecAggConfig(label_counts=True))
    assert said == f"conditions hold that its author does not name{COUNTS}"
