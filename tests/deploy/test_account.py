"""A party's own ledger between machines: what its process has released, in every attempt, and its scores; and that it
agrees with the ledger of a run in one process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command
from every_system import CASES, TARGETS, Case, made, own_messages, parameters
from federation import rig
from nodes import Doom, Killed, Nodes, nodes

from coterie.data.form import SampleForm
from coterie.deploy.account import Account, account_of
from coterie.deploy.built_party import build_party
from coterie.deploy.home import Home
from coterie.deploy.hub import HubNode
from coterie.deploy.plan import Settings
from coterie.deploy.store import FileStore, Kept, pack
from coterie.dp.gaussian import noise_multiplier
from coterie.dp.ledger import DELTA, Entries, Ledger, Release, add, ledger_of
from coterie.operate import authority, founding, joining
from coterie.operate.members import PlannedMember
from coterie.protocol.errors import RunError
from coterie.protocols.openings import state
from coterie.runs import registry
from coterie.runs.config import RunConfig
from coterie.runs.outcome import releases

ROUNDS = 3
UPDATE = Release("trained model and number of samples")


class Run:
    """A run of nodes, each with the account of its party. scores: reported by client/1."""

    def __init__(
        self, name: str, failing: int = 0, scores: Any = None, at: frozenset[int] = frozenset(), **settings: Any
    ):
        self.apart: Nodes = nodes(rig(registry.get(name), TARGETS, delta=0.0, **settings), name, TARGETS)
        self.failing, self.scores, self.kept = failing, scores or {}, dict[str, Kept]()
        self.apart.dooms = {"client/1": Doom(at)}
        self.apart.run(ROUNDS, self.live)

    def live(self, name: str, rounds: int) -> None:
        while True:
            node = self.apart.node(name, scores=lambda r: self.scores if name == "client/1" else {})
            made = self.apart.made
            node.account = account_of(self.apart.system, self.apart.parties[name], made.config)
            self.kept[name] = node.kept
            try:
                if isinstance(node, HubNode):
                    self._fails(node)
                self.apart.drive(node, rounds)
            except Killed:
                continue
            self.kept[name] = node.kept
            return

    def _fails(self, node: Any) -> None:
        honest = node.member.party.round

        def run(r: int) -> Any:
            notes = yield from honest(r)
            if r == 2 and self.failing:
                self.failing -= 1
                raise RunError("something was missing")
            return notes

        node.member.party.round = run

    def released(self, name: str = "client/1") -> dict[str, list[int]]:
        return {entry.release.what: entry.rounds for entry in self.kept[name].released}


def test_every_update_is_counted_and_scores_are_releases_without_a_proof() -> None:
    run = Run("fedavg", scores={"local_accuracy": 0.25, "local_loss": 1.0})
    assert run.released("client/0") == {UPDATE.what: [1, 2, 3]}
    scored = [0, 1, 2, 3]
    assert run.released() == {UPDATE.what: [1, 2, 3], "score local_accuracy": scored, "score local_loss": scored}
    assert run.released("server") == {}
    ledger = ledger_of(run.kept["client/1"].released)
    assert {one.mechanism for one in ledger.releases} == {"none"}
    assert ledger.epsilon(1e-5) == float("inf")


def test_what_an_undone_attempt_has_sent_was_sent() -> None:
    assert Run("fedavg", failing=2).released() == {UPDATE.what: [1, 2, 2, 2, 3]}


def test_dp_sgd_gives_a_partys_own_account_the_proof_of_its_steps() -> None:
    run = Run("fedavg", sample_noise=1.5, batch_size=5)
    (entry,) = run.kept["client/1"].released
    party = run.apart.parties["client/1"]
    steps = party.epochs * -(-party.samples // 5)
    proof = Release(UPDATE.what, "gaussian", 0.75, 2 / 5, draws=steps, sampled=5 / party.samples, hidden=True)
    assert (entry.release, entry.rounds) == (proof, [1, 2, 3])


@pytest.mark.parametrize("at", [3, 12, 21, *(pytest.param(at, marks=pytest.mark.long) for at in (6, 9, 15, 18))])
def test_a_party_that_is_killed_counts_what_it_has_sent_once(at: int) -> None:
    run = Run("fedavg", at=frozenset({at}))
    assert run.apart.dooms["client/1"].died == 1
    assert set(run.released()[UPDATE.what]) == {1, 2, 3}
    assert run.released()[UPDATE.what] == [1, 2, 3]


NOISY: list[Case] = [
    ("ofl", "hardened", {"clusters": 2, "mechanism": "standard", "epsilon": 8.0, "private_rounds": 3}),
    ("ofl", "paper", {"clusters": 2, "mechanism": "distributed", "epsilon": 8.0, "missing": 0}),
    ("ofl", "paper", {"clusters": 2, "mechanism": "distributed", "noise_by": "members", "epsilon": 8.0}),
    ("own_page:SYSTEM", "paper", {"keys": "threshold", "epsilon": 8.0}),
    ("own_page:SYSTEM", "paper", {"noise": 1.0}),
    ("dp_fedavg", "paper", {"epsilon": 8.0}),
    ("fedavg", "paper", {"sample_noise": 1.0, "batch_size": 5}),
    ("coterie", "paper", {"clusters": 1, "epsilon": 8.0}),
]
"""With proofs, which must agree by observer."""


def alone(case: Case) -> dict[str, Sequence[Release]]:
    """By client, its own account of a deployment."""
    apart = nodes(made(case), case[0], TARGETS)
    nodes_of: dict[str, Any] = {}

    def live(name: str, rounds: int) -> None:
        node = nodes_of[name] = apart.node(name)
        node.account = account_of(apart.system, apart.parties[name], apart.made.config)
        apart.drive(node, rounds)

    apart.run(ROUNDS, live)
    return {name: ledger_of(nodes_of[name].kept.released).releases for name in apart.made.common.clients}


def together(case: Case) -> dict[str, Sequence[Release]]:
    """The same of a run in one process, as ``result.json`` counts it."""
    run = made(case)
    sent: list[tuple[int, Mapping[str, Sequence[str]]]] = [(0, run.transport.meter.released)]
    for r in range(1, ROUNDS + 1):
        run.round(r)
        sent.append((r, run.transport.meter.released))
    if run.hub.finishes:
        run.finish(ROUNDS)
        sent.append((ROUNDS, run.transport.meter.released))
    owns = {name: run.owns[name] for name in run.common.clients}
    found = releases(run.system, run.config, run.common.mode, run.federation, owns, sent)
    return {name: found.get(name, ()) for name in owns}


@pytest.mark.parametrize("case", parameters(CASES + NOISY, lambda case: case in NOISY or own_messages(case)))
def test_each_party_s_account_is_the_ledger_of_the_run_in_one_process(case: Case) -> None:
    """Between machines two kinds more are counted, which these runs have not: scores, and attempts given up."""
    accounts, ledgers = alone(case), together(case)
    assert any(accounts.values()) == (case[0] != "local")
    for client, own in ledgers.items():
        assert sorted(map(str, accounts[client])) == sorted(map(str, own)), client
        said = [Ledger(tuple(found)).statement(DELTA) for found in (accounts[client], own)]
        assert [(one["epsilon"], one["against"]) for one in said[:1]] == [(said[1]["epsilon"], said[1]["against"])]


def test_an_epsilon_is_that_of_all_releases_with_their_attempts() -> None:
    entries: Entries = []
    noisy = Release("vector", "gaussian", np.float64(noise_multiplier(4.0, 1e-5)), 0.1)
    add(entries, noisy, Release("vector", "gaussian", noisy.noise_multiplier, 0.1, round=2))
    of = Account()
    assert len(entries) == 1
    assert ledger_of(entries).epsilon(1e-5) == pytest.approx(Ledger((noisy, noisy)).epsilon(1e-5))
    told = of.facts(entries)
    assert told["epsilon"] == {"replace one sample": pytest.approx(6.0, abs=0.05), "replace one client": "infinite"}
    assert told["released"] == {"vector": 2}
    said = of.in_words(entries)
    assert said.startswith("vector: epsilon 5.99")
    add(entries, Release("score local_accuracy", round=1))
    assert of.in_words(entries).endswith("no proof for: score local_accuracy")
    assert of.facts(entries)["epsilon"]["replace one sample"] == "infinite"
    assert of.in_words([]) == "nothing was released yet"
    assert "no epsilon is known" in Account(kept=False).in_words([])


def joined(tmp_path: Path, system: str, **settings: Any) -> Home:
    """The home of a client of a new deployment."""
    x = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(40) % 2)
    names = ("a", "b", "c", "d")
    members = (PlannedMember("server", "server", "hub.example.org"), *(PlannedMember(one, "client") for one in names))
    where, study = Settings("nats://hub.example.org:4222"), tmp_path / "study"
    founding.init(study, RunConfig(system, rounds=2, settings=settings), members, where, SampleForm((8,), 2))
    for name in ("b", "a"):
        home, request = joining.join(authority.invite(study, name), tmp_path / name, tmp_path / "own.npz", out=tmp_path)
        joining.accept(home, authority.approve(study, request.read_text()).certificate.read_text())
    return home


def test_export_states_the_epsilon_of_the_home(cli: Command, tmp_path: Path) -> None:
    home = joined(tmp_path, "fedavg")
    party, kept = build_party(home).party, Kept(era=(1, 0))
    add(kept.released, Release(UPDATE.what, round=1), Release("score local_loss", round=1))
    now = party.state, party.secret
    FileStore(home.state).save(pack(kept, now, now))
    ended = cli("export", str(home.path), "--out", "a.safetensors")
    assert (ended.code, ended.err) == (0, "")
    assert f"Released of its data so far: no proof for: {UPDATE.what}; score local_loss." in ended.out
    assert "statements" not in ended.out


def test_export_gives_the_signed_statements_of_what_a_home_has_opened(cli: Command, tmp_path: Path) -> None:
    home = joined(tmp_path, "ofl", clusters=2, mechanism="standard", detection="none")
    party: Any = build_party(home).party
    known = {"key": "model", "making": 1, "fewest": 2, "length": 7, "cipher": bytes(32)}
    state(party, party.secret.joint, ["a"], {"a": 1}, round=1, **known)
    now = party.state, party.secret
    FileStore(home.state).save(pack(Kept(era=(1, 0)), now, now))
    ended = cli("export", str(home.path), "--out", "a.safetensors")
    assert "Signed statements of 1 openings, for coterie audit: a.openings.json" in ended.out
    audited = cli("audit", "a.openings.json")
    assert audited.code == 1
    assert "Wrong: a, statement 1, round 1: a sum of 1 vectors, of fewer than 2" in audited.out
