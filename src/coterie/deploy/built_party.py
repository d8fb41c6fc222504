"""One party, its member and its effects, from a home and its plan.

Only in a rehearsal (``deploy try``) do all parties share the seed of the config.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.form import read_data
from coterie.data.targets import Targets
from coterie.deploy.account import Account, account_of
from coterie.deploy.clock import Clock, RehearsedClock
from coterie.deploy.home import Home, check_agreed, check_plan, keyring_of, plan_of, take_plan
from coterie.deploy.logs import event
from coterie.deploy.names import hosts_of, is_loopback
from coterie.deploy.plan import NewPlanError, Plan, plan_hash
from coterie.deploy.store import FileStore, Kept, unpack
from coterie.devices.links import FleetLinks
from coterie.devices.profiles import Profile, fleet
from coterie.protocol.effects import Vector
from coterie.protocol.errors import UserError
from coterie.protocol.party import Party
from coterie.protocol.randomness import Randomness
from coterie.protocol.setup_info import Common, Own
from coterie.protocol.spool import Spool
from coterie.protocol.system import ClientModel, System
from coterie.record.comparison import PRIOR
from coterie.runs.config import Resolved
from coterie.runs.evaluation import Evaluator
from coterie.runs.experiment import delays_of, epochs_of
from coterie.runs.forms import scored_forms
from coterie.runs.interpreter import LocalEffects
from coterie.runs.keyring import PartyKeys
from coterie.runs.metrics import class_weights, metrics_of, named
from coterie.runs.on_data import ClientData, TensorSamples
from coterie.runs.starts import random_starts
from coterie.training.model import Model
from coterie.training.models import build as build_model
from coterie.transport.member import Member
from coterie.transport.wire import Links

DEVICE = "device.toml"
SPOOL_BYTES = 256 << 20


@dataclass(frozen=True, eq=False)
class BuiltParty:
    """What a node needs. effects: with its own data alone.  links: of the simulated devices, in a rehearsal.

    data: its own samples, or None.  allowed: scores that the operator asks for and the owner allows.
    """

    home: Home
    plan: Plan
    config: Resolved
    party: Party
    member: Member
    effects: LocalEffects
    model: Model
    data: ClientData | None
    links: Links | None
    allowed: tuple[str, ...]

    @property
    def rounds(self) -> int:
        return self.config.rounds

    @cached_property
    def account(self) -> Account:
        return account_of(self.config.definition, self.party, self.config.own)

    def clock(self) -> Clock:
        if self.links is None:
            return Clock(self.plan.settings.begins_s)
        return RehearsedClock(self.home.name, [one.name for one in self.plan.roster.entries], self.links)

    @property
    def samples(self) -> int:
        return self.party.samples if "samples" in self.allowed else 0

    @cached_property
    def observer(self) -> Evaluator | None:
        """Of its own data; None without data."""
        if self.data is None:
            return None
        effects, config = self.effects, self.config
        return Evaluator(
            self.model,
            {self.party.name: self.data},
            effects.how["device"],
            targets=Targets(config.task),
            metrics=metrics_of(named(config.metrics), config.task),
        )

    def scores(self) -> dict[str, float]:
        """Its current model's scores on its own held-out samples that it may report (``local_accuracy``), and those
        with the prior of its labels (``prior_local_accuracy``).
        """
        wanted = [name for name in self.allowed if name.startswith(("local_", PRIOR))]
        tested = self.data is not None and len(self.data.test) > 0
        model = self.own_model() if wanted and tested else None
        if model is None or self.observer is None:
            return {}
        models = {self.party.name: model}
        found = self.observer.scores(models).means()
        if (
            self.told is not None
            and self.config.class_weights is None
            and any(name.startswith(PRIOR) for name in wanted)
        ):
            told, seed = {self.party.name: self.told}, self.config.seed
            forms = scored_forms(self.observer, models, seed, told=told, mixes=("local",))
            found |= {f"{PRIOR}{name}": value for name, value in forms[PRIOR].means().items()} if PRIOR in forms else {}
        return {name: found[name] for name in wanted if name in found and np.isfinite(found[name])}

    @property
    def told(self) -> NDArray[np.int64] | None:
        """(classes,) the label counts of its model's training data, as messages have told it."""
        counts = self.config.definition.counts
        return None if counts is None or self.data is None else counts(self.party)

    def renew(self, data: bytes) -> tuple[PartyKeys, Common]:
        """Take in a newer plan with its keys and public facts. Raises PeerError for another one, and NewPlanError."""
        if check_plan(self.home, data)[1].run > self.plan.run:
            raise NewPlanError(data)
        plan = take_plan(self.home, data)
        event("plan", plan=plan.version, plan_sha256=plan_hash(plan))
        return keyring_of(self.home, plan), replace(self.party.common, roster=plan.roster)

    def own_model(self) -> ClientModel | None:
        """The client's current model, by its own state alone; None for a party without."""
        if self.party.name not in self.party.common.clients:
            return None
        return self.config.definition.predicts(self.party)


def build_party(home: Home) -> BuiltParty:
    """The party of this home, by its plan. Raises UserError for a plan or data that cannot work."""
    plan = plan_of(home)
    check_agreed(home, plan)
    config = plan.resolved
    system, settings, names = _system(plan, config)
    _check_secret(home, plan, config)
    model = build_model(config.model, plan.facts.input_shape, plan.facts.outputs, config.task, config.loss)
    system.check_deployed(settings)
    emulated = config.crypto == "emulated" or not system.encrypted
    starts = random_starts(config.seed, settings.models, model)
    known = (plan.roster, names, model.spec, starts, config.mode, emulated, plan.settings.public)
    common = Common(*known, deployed=True, warm=plan.warm)
    keyring, identity = keyring_of(home, plan), home.identity
    data = _data(home, plan)
    if data is None and home.name in names:
        raise UserError(f"{home.path} has no data, and {home.name} trains: join again with --data")
    rehearsal = plan.settings.rehearsal
    devices, links, epochs = _device(home, config, settings, names, rehearsal)
    seed = config.seed if rehearsal else home.seed()
    randomness = Randomness(seed, emulated=emulated and rehearsal)
    samples = 0 if data is None else len(data.y)
    own = Own(home.name, randomness, identity, samples, epochs, _own_starts(home, plan, starts))
    system.check(settings, common)
    party = system.make(own, common, settings)
    member = Member(
        home.name,
        {home.name: party},
        common.roster.hub,
        lambda name: system.acting(entry.role) if (entry := plan.roster.by_name.get(name)) is not None else (),
        keyring,
        Spool(SPOOL_BYTES),
    )
    effects = LocalEffects(
        model,
        {} if data is None else {home.name: data},
        config.how if rehearsal else {"precision": config.precision, "device": _accelerator(home)},
        emulated=emulated,
        devices=devices,
        class_weights=class_weights(config.class_weights, Targets(config.task), plan.facts.outputs),
    )
    allowed = tuple(name for name in plan.settings.scores if name in home.report)
    return BuiltParty(home, plan, config, party, member, effects, model, data, links, allowed)


def stored_party(home: Home) -> tuple[BuiltParty, Kept]:
    """The party of a home in its state of the last commit, of any run, and the rest of that. Raises UserError."""
    at = home if home.state.exists() else home.former
    stored = None if at is None else FileStore(at.state).read()
    if at is None or stored is None:
        raise UserError(f"{home.name} has no model yet: the hub has not begun. Start it with coterie deploy party")
    found = build_party(at)
    kept, _ = unpack(stored, found.party)
    return found, kept


def _own_starts(home: Home, plan: Plan, starts: Vector) -> Vector | None:
    if not plan.warm or home.former is None or home.run is not None:
        return None
    plan.resolved.definition.check_warm(plan.resolved.own, plan.resolved.mode)
    own = stored_party(home.former)[0].party.last_starts()
    if own is not None and own.shape != starts.shape:
        raise UserError(f"{home.path} has models {own.shape} of its former run, and this one has {starts.shape}")
    return own


def _check_secret(home: Home, plan: Plan, config: Resolved) -> None:
    """Raises UserError for a plan by which a party between machines would keep nothing secret."""
    if plan.settings.rehearsal and not all(is_loopback(host) for host in hosts_of(home.server)):
        raise UserError(
            f"version {plan.version} of the plan is a rehearsal, whose parties share a seed, and the server of "
            f"{home.path} is not on this machine: ask the operator why"
        )
    if config.crypto == "emulated" and not plan.settings.rehearsal:
        raise UserError(
            f"version {plan.version} of the plan has emulated ciphers, which keep nothing secret: ask the operator why"
        )


def _data(home: Home, plan: Plan) -> ClientData | None:
    if not home.data.exists():
        return None
    own = read_data(home.data, plan.facts, tests=home.name != plan.roster.hub)
    # clone: memory of torch's own, which begins at a multiple of 64 bytes, as in a simulation
    x, y, x_test, y_test = (torch.from_numpy(array).clone() for array in (own.x, own.y, own.x_test, own.y_test))
    return ClientData(x, y, np.arange(len(y_test)), TensorSamples(x_test, y_test))


def _system(plan: Plan, config: Resolved) -> tuple[System, Any, Sequence[str]]:
    system, settings = config.definition, config.own
    client_role = plan.client_role
    names = plan.roster.of_role(client_role)
    wanted, found = system.roles(settings, names, config.mode), {one.name: one.role for one in plan.roster.entries}
    if list(wanted.items()) != list(found.items()):
        servers = ", ".join(name for name, role in wanted.items() if role != client_role)
        raise UserError(
            f"{system.name} in mode {config.mode} has the parties {servers}, in this order, and then any number of "
            f"role {client_role}; the roster has {', '.join(f'{name} ({role})' for name, role in found.items())}"
        )
    return system, settings, names


def _device(
    home: Home, config: Resolved, settings: Any, names: Sequence[str], rehearsal: bool
) -> tuple[dict[str, Profile], Links | None, int]:
    if rehearsal:
        profiles = dict(zip(names, fleet(config.devices, len(names), config.seed), strict=True))
        links = FleetLinks(profiles, config.seed, delays_of(config, names, settings))
        own = {name: one for name, one in profiles.items() if name == home.name}
        return own, links, epochs_of(profiles, settings, config.seed).get(home.name, 1)
    if home.name not in names:
        return {}, None, 1
    file, most = home.path / DEVICE, int(getattr(settings, "max_epochs", 1))
    (device,) = fleet(str(file) if file.exists() else "uniform", 1, 0)
    return {home.name: device}, None, min(home.about.epochs or most, most)


def _accelerator(home: Home) -> str:
    wanted, there = home.about.accelerator, torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise UserError(f"{home.path} says that it has a GPU (accelerator cuda), but torch finds none here")
    return "cuda" if there and wanted == "auto" else "cpu" if wanted == "auto" else wanted
