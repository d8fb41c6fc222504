"""One party, from a home and its plan. Only in a rehearsal do all parties share the config's seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coterie.protocol.core as fl
from coterie.deploy.account import Account, account_of
from coterie.deploy.clock import Clock, device_of
from coterie.deploy.home import Home, agreement_words, check_secret, has_agreed, keyring_of, plan_of, renewed
from coterie.deploy.own_scores import may_score, observer_of, own_scores
from coterie.deploy.own_work import OwnWork, own_work
from coterie.deploy.plan import Plan, check_parties, common_of
from coterie.deploy.store import FileStore, Kept, unpack
from coterie.runs.config import Resolved
from coterie.runs.starts import random_starts
from coterie.training.models import build as build_model
from coterie.transport.member import Member

SPOOL_BYTES = 256 << 20


@dataclass(frozen=True, eq=False)
class BuiltParty:
    home: Home
    plan: Plan
    config: Resolved
    party: fl.Party
    member: Member
    work: OwnWork
    clock: Clock

    @property
    def rounds(self) -> int:
        return self.config.rounds

    @cached_property
    def account(self) -> Account:
        return account_of(self.config.definition, self.party, self.config.own)

    @property
    def samples(self) -> int:
        return self.party.samples if "samples" in self.work.allowed else 0

    def scores(self) -> dict[str, float]:
        """The current model's, on own held-out samples, as far as it may report them."""
        model = self.own_model() if may_score(self.work) else None
        return {} if model is None else own_scores(self.work, self.observer, model, self.told)

    @cached_property
    def observer(self) -> Any:
        return observer_of(self.work)

    @property
    def told(self) -> NDArray[np.int64] | None:
        """(classes,) label counts of its model's training data, as told by messages."""
        counts = self.config.definition.counts
        return None if counts is None or self.work.data is None else counts(self.party)

    def renew(self, data: bytes) -> tuple[Any, fl.Common]:
        """Raises PeerError for another one, and NewPlanError."""
        plan = renewed(self.home, self.plan, data)
        return keyring_of(self.home, plan), replace(self.party.common, roster=plan.roster)

    def own_model(self) -> fl.ClientModel | None:
        """By the client's own state alone; None for other parties."""
        if self.party.name not in self.party.common.clients:
            return None
        return self.config.definition.predicts(self.party)

    @property
    def done(self) -> int:
        if (data := FileStore(self.home.state).load()) is None:
            return 0
        kept, _ = unpack(data, self.party)
        return max(0, min(kept.done, kept.stops or self.rounds))


def build_party(home: Home) -> BuiltParty:
    """Raises UserError for a plan or data that can't work."""
    plan = plan_of(home)
    if not has_agreed(home, plan):
        raise fl.UserError(agreement_words(home, plan))
    config = plan.resolved
    system, settings = config.definition, config.own
    check_parties(plan, config)
    check_secret(home, plan)
    model = build_model(config.model, plan.facts.input_shape, plan.facts.outputs, config.task, config.loss)
    system.check_deployed(settings)
    starts = random_starts(config.seed, settings.models, model)
    common = common_of(config, plan.roster, model.spec, starts, plan.settings.public, plan.warm)
    device, clock, epochs = device_of(home, plan, config)
    work = own_work(home, plan, config, model, device)
    rehearsal = plan.settings.rehearsal
    randomness = fl.Randomness(config.seed if rehearsal else home.seed(), emulated=common.emulated and rehearsal)
    samples = 0 if work.data is None else len(work.data.y)
    own = fl.Own(home.name, randomness, home.identity, samples, epochs, _own_starts(home, plan, starts))
    system.check(settings, common)
    party = system.make(own, common, settings)
    _remember(party, home)
    member = Member(
        home.name,
        {home.name: party},
        common.roster.hub,
        lambda name: system.acting(entry.role) if (entry := plan.roster.by_name.get(name)) is not None else (),
        keyring_of(home, plan),
        fl.Spool(SPOOL_BYTES),
    )
    return BuiltParty(home, plan, config, party, member, work, clock)


def stored_party(home: Home) -> tuple[BuiltParty, Kept]:
    """The party as of the last commit, of any run, and that commit's rest. Raises UserError."""
    at = home if home.state.exists() else home.former
    stored = None if at is None else FileStore(at.state).read()
    if at is None or stored is None:
        raise fl.UserError(f"{home.name} has no model yet: the hub has not begun. Start it with coterie deploy party")
    found = build_party(at)
    kept, _ = unpack(stored, found.party)
    return found, kept


def _remember(party: fl.Party, home: Home) -> None:
    """What a party in a further run must know of all former ones."""
    if home.run is not None or home.state.exists() or not party.remembers:
        return
    for one in home.formers:
        party.follows(stored_party(one)[0].party)


def _own_starts(home: Home, plan: Plan, starts: fl.Vector) -> fl.Vector | None:
    if not plan.warm or home.former is None or home.run is not None:
        return None
    plan.resolved.definition.check_warm(plan.resolved.own, plan.resolved.mode)
    own = stored_party(home.former)[0].party.last_starts()
    if own is not None and own.shape != starts.shape:
        raise fl.UserError(f"{home.path} has models {own.shape} of its former run, and this one has {starts.shape}")
    return own
