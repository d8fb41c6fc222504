"""The description of a system, by which the layers above run any system without special cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.effects import Vector
from coterie.protocol.errors import UserError
from coterie.protocol.messages import ANY, HUB, Message
from coterie.protocol.names import LazyMapping, Names
from coterie.protocol.party import Handler, Party
from coterie.protocol.setup_info import Common, Own

T = TypeVar("T")
PartyFactory = Callable[[Own, Common, Any], Party]
"""Makes one party from what it alone knows, what everybody knows, and the config.

The hub also has ``round(r)`` for r = 1, 2, ..., which yields steps and returns notes for the metrics (JSON). The run
ends after a round that notes ``{"stopped": why}``. Then, or after the last round, it may have steps to ``finish()``,
which may return notes, too.
"""


@dataclass(frozen=True)
class Federation:
    """A built system: all parties by name.  look: gives a party to an observer, which must not change it.  alter: to an
    attack that changes it.
    """

    parties: Mapping[str, Party]
    hub: str
    common: Common
    look: Callable[[str], Any]
    alter: Callable[[str], Any]

    def of_role(self, role: str) -> Iterator[Any]:
        """In the order of the roster, one at a time, for an observer."""
        roster = self.common.roster
        return map(self.look, self.common.clients if role == roster.client_role else roster.of_role(role))

    def among(self, clients: Sequence[str], look: Callable[[str], Any] | None = None) -> Federation:
        return replace(self, common=replace(self.common, clients=clients), look=look or self.look)


BROKER = "broker"
"""Carries packets between machines; no party."""

BROKER_LEARNS = (
    "the sender, recipient, size and time of every sealed packet between machines, from which it can guess the steps "
    "of the protocol; nothing of any message"
)


@dataclass(frozen=True, eq=False)
class Mixture:
    """A client's several models: its probabilities are sum_m weights[m] softmax(models[m](x)).

    weights: (m,) float64 >= 0 that sum to 1.  models: (m, d) float32. Raises UserError for others.
    """

    weights: NDArray[np.float64]
    models: Vector

    def __post_init__(self) -> None:
        if self.models.ndim != 2 or self.weights.shape != self.models.shape[:1]:
            raise UserError(f"a mixture of models {self.models.shape} needs one weight each, not {self.weights.shape}")
        if not (self.weights >= 0).all() or abs(self.weights.sum() - 1) > 1e-6:
            raise UserError(f"the weights of a mixture must be at least 0 and sum to 1, not {self.weights}")


ClientModel = Vector | Mixture
"""What one client predicts with: (d,) float32, or a mixture."""


Releases = Callable[[Any, str], Mapping[type[Message], Sequence[str]]]
"""Of a config and a mode, by client message, what it tells of their data (``System.releases``)."""


def two_others(who: str) -> str:
    """What must hold of sums from which parties could take their own terms (``System.assumes``)."""
    return f"in every sum at least two {who} show nobody what they know"


def undeclared(encrypts: bool) -> str:
    """What must hold where an author does not say so."""
    if encrypts:
        return "conditions hold that its author does not name"
    return "all parties follow the protocol, and show nobody else what they see"


def telling(told: Mapping[type[Message], Sequence[str]]) -> Releases:
    return lambda config, mode: told


@dataclass(frozen=True)
class Sees:
    """The messages that a role receives, and what it learns, in words."""

    receives: tuple[type[Message], ...]
    learns: str


def of_each(found: Callable[[Any], T]) -> Callable[[Federation], Mapping[str, T]]:
    """By client, ``found(client)``: for ``System.models`` and ``System.ledger``."""
    return lambda federation: {name: found(federation.look(name)) for name in federation.common.clients}


def party_type(factory: PartyFactory) -> type[Party]:
    """The class of a factory's parties: itself, or its return annotation. Raises TypeError without one. A partial
    function with a keyword ``make`` stands for that factory.
    """
    while isinstance(factory, partial):
        factory = factory.keywords.get("make", factory.func)
    made = factory if isinstance(factory, type) else get_type_hints(factory).get("return")
    if not isinstance(made, type):
        raise TypeError(f"{factory} has no return annotation, so nobody can tell what its parties receive")
    return made


def received(
    parties: Mapping[str, type[Party]], asked: Callable[[Handler], bool]
) -> dict[str, tuple[type[Message], ...]]:
    """By role, the messages that it receives.  parties: classes by role, the hub's first."""
    hub, found = next(iter(parties)), dict[str, dict[type[Message], None]]()
    senders = {ANY, HUB}.union(*(party.roles for party in parties.values()))
    for role, party in parties.items():
        for kind, handler in party.handlers.items():
            if kind.SRC in senders and asked(handler):
                found.setdefault(role if kind.DST == ANY else kind.DST, {})[kind] = None
                for answer in handler.answers:
                    found.setdefault(hub if answer.DST == ANY else answer.DST, {})[answer] = None
    return {role: tuple(kinds) for role, kinds in found.items()}


@dataclass(frozen=True)
class System:
    """A published system or a baseline.

    config: frozen dataclass of its settings, with one documented field each.
    parties: of a config, by role, the factory of its parties: the hub's role first, the clients' last; None
    for no such party. A server is the only party of its role, and is named as it.
    parties_in: by mode, the same where they differ, but for the hub and the clients.  plain: modes without ciphers.
    also: by role of the roster, further roles of such parties, as their classes say (``also=``).
    check: raises UserError for settings that can't work among these clients.
    leads_s: of a config, by setting, how many seconds a leader waits for its members, if none says how long the hub
    waits for the leader.
    models: each client's current model (or mixture), which the observer reads. Clients that share a model share arrays.
    pool: all models, if clients choose (or mix) among several.  observe: arrays and numbers for the report.
    learns: by role, in words; or a function of a config and a mode that gives this.
    assumes: what must hold for nobody to learn more, in words; or a function as ``learns``; by default ``undeclared``.
    own_model: a client's prediction model from its own state alone, for deployments.  sent_next: a client is sent a
    round's model as the next one begins.
    counts: of a client's own state, the label counts (labels,) of its model's training data (the setting
    ``label_counts``), or None before it was told.  uncounted: why there are none.
    fine_tunes: each client has one model, which can be tuned.
    settings_in: by mode, the defaults that differ in it.
    audit: an own ``coterie.privacy.audits.Audit``, or its ``module:ATTRIBUTE``.  reproductions: ``module:ATTRIBUTE`` of
    mappings of one's own tables and figures (``reproductions.study.Item``).
    clients: of a run by default; 0 for the number that fits its data set.
    cold: why parties cannot begin with their models of a former run (``Party.last_starts``), or ""; or a function as
    ``learns``.
    delta: default share of the clients that an experiment delays.  public: default share of the training data that is
    the hub's.  needs_classes: labels must be classes.
    ledger: by client, the ``dp.ledger.Release`` of everything sent that depends on its data; None if its parties keep
    no account.
    releases: of a config and a mode, by client message, in words, each release of their data, without a proof, counted
    as sent. ``result.json`` has both as one ledger, at the setting ``dp_delta``, or 1e-5.
    """

    name: str
    title: str
    citation: str
    config: type
    parties: Callable[[Any], Mapping[str, PartyFactory | None]]
    models: Callable[[Federation], Mapping[str, ClientModel]]
    learns: Mapping[str, str] | Callable[[Any, str], Mapping[str, str]] = field(default_factory=dict)
    assumes: str | Callable[[Any, str], str] = ""
    modes: tuple[str, ...] = ("paper",)
    encrypted: bool = False
    observe: Callable[[Federation], Mapping[str, Any]] = field(default=lambda federation: {})
    own_model: Callable[[Any], ClientModel] | None = None
    sent_next: bool = False
    counts: Callable[[Any], NDArray[np.int64] | None] | None = None
    uncounted: str = ""
    fine_tunes: bool = True
    pool: Callable[[Federation], Iterable[NDArray[Any]]] | None = None
    settings_in: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    also: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    check: Callable[[Any, Common], None] = field(default=lambda config, common: None)
    leads_s: Callable[[Any], Mapping[str, float]] = field(default=lambda config: {})
    parties_in: Mapping[str, Callable[[Any], Mapping[str, PartyFactory]]] = field(default_factory=dict)
    plain: tuple[str, ...] = ()
    audit: Any = ""
    reproductions: tuple[str, ...] = ()
    clients: int = 0
    cold: str | Callable[[Any, str], str] = ""
    delta: float = 0.0
    needs_classes: bool = False
    public: float = 0.0
    ledger: Callable[[Federation], Mapping[str, Sequence[Any]]] | None = None
    releases: Releases | None = None

    def make(self, own: Own, common: Common, config: Any) -> Party:
        """Raises TypeError if the party's class acts in roles that are not described."""
        role = common.roster.by_name[own.name].role
        party = self.factories(config, common.mode)[role](own, common, config)
        if party.roles != frozenset(self.acting(role)):
            acts = f"a {role} of {self.name} acts as {', '.join(sorted(party.roles))}"
            raise TypeError(f"{acts}: its System says {', '.join(self.acting(role))} (also={{...}})")
        return party

    def acting(self, role: str) -> tuple[str, ...]:
        return role, *sorted(self.also.get(role, ()))

    def predicts(self, client: Party) -> ClientModel:
        """A client's prediction model, from its own state alone. Raises UserError without one."""
        return self._own_model()(client)

    def check_deployed(self, config: Any, patience_s: float = inf) -> None:
        """Raises UserError for what separate machines cannot do.  patience_s: how long the hub waits where no setting
        says so.
        """
        self._own_model()
        for name, waits_s in self.leads_s(config).items():
            if waits_s > patience_s / 2:  # a leader has work of its own, too
                raise UserError(
                    f"{name}={waits_s:g} is more than half of the patience, {patience_s:g} s: then the hub may give a "
                    f"leader up, and with it its cluster, while the leader waits for its members. Set {name} to "
                    f"{patience_s / 2:g} or less, or give --patience {2 * waits_s:g} or more, or set deadline_s"
                )
        if config.pretraining() is not None:
            raise UserError(
                f"{self.name} with these settings trains its first models on the clients' data, which no machine of a "
                "deployment has: set start=random"
            )

    def counts_labels(self, config: Any) -> bool:
        return bool(getattr(config, "label_counts", False))

    def check_counted(self, config: Any, task: str) -> None:
        """Raises UserError if clients cannot learn the label counts of the settings."""
        if not self.counts_labels(config):
            return
        why = "" if self.counts is not None else self.uncounted or "it has no message for them"
        why = why or ("" if task == "classes" else f"the task is {task}, which has no classes")
        if why:
            raise UserError(
                f"{self.name} tells clients no label counts: {why}. Leave label_counts out, or in a "
                "comparison give it to other methods alone: --set METHOD.label_counts=true"
            )

    def check_warm(self, config: Any, mode: str) -> None:
        """Raises UserError if parties cannot begin with former models."""
        why = self.cold(config, mode) if callable(self.cold) else self.cold
        parties = self._types(mode, config).values()
        if not why and all(one.last_starts is Party.last_starts for one in parties):
            why = "none of its parties says with which models it would (Party.last_starts)"
        if why:
            raise UserError(f"{self.name} cannot begin with the models of a former run: {why}")

    def _own_model(self) -> Callable[[Any], ClientModel]:
        if self.own_model is None:
            raise UserError(
                f"{self.name} does not say what a client predicts with: give its System an own_model, such as "
                "lambda client: client.state.weights"
            )
        return self.own_model

    def encrypts(self, mode: str) -> bool:
        return self.encrypted and mode not in self.plain

    def counted(self, config: Any, mode: str) -> Mapping[type[Message], Sequence[str]]:
        """By message of the ledger, what it tells of its sender's data."""
        return {} if self.releases is None else self.releases(config, mode)

    def factories(self, config: Any, mode: str) -> Mapping[str, PartyFactory]:
        made = self.parties_in.get(mode, self.parties)(config)
        return {role: factory for role, factory in made.items() if factory is not None}

    def roles(self, config: Any, clients: Sequence[str], mode: str = "paper") -> Mapping[str, str]:
        """By name: the servers, then these clients."""
        *servers, client = self.factories(config, mode)
        if isinstance(clients, Names):
            return LazyMapping(Names(len(clients), servers), lambda name: client if name in clients else name)
        return {**{server: server for server in servers}, **dict.fromkeys(clients, client)}

    def views(self, mode: str, config: Any = None) -> Mapping[str, Sees]:
        """What each role sees, under these or the default settings."""
        config = config or self.config(**self.defaults(mode))
        words = self.learns(config, mode) if callable(self.learns) else self.learns
        parties = self._types(mode, config)
        kinds = received(parties, lambda handler: handler.when(config, mode))
        roles = frozenset[str]().union(*(party.roles for party in parties.values()))
        return {role: Sees(kinds.get(role, ()), learns) for role, learns in words.items() if role in roles}

    def assumed(self, mode: str, config: Any = None) -> str:
        """As ``views``, what must hold."""
        config = config or self.config(**self.defaults(mode))
        said = self.assumes(config, mode) if callable(self.assumes) else self.assumes
        return said or undeclared(self.encrypts(mode))

    def kinds(self, config: Any = None) -> tuple[type[Message], ...]:
        """Every message type that a party may read, in any mode, under these or the default settings."""
        found: dict[type[Message], None] = {}
        for mode in self.modes:
            parties = self._types(mode, config or self.config(**self.defaults(mode)))
            for kinds in received(parties, lambda handler: True).values():
                found |= dict.fromkeys(kinds)
        return tuple(found)

    def _types(self, mode: str, config: Any) -> Mapping[str, type[Party]]:
        return {role: party_type(of) for role, of in self.factories(config, mode).items()}

    def seen_by(self, mode: str, config: Any = None) -> dict[str, str]:
        """In words, what each role receives and learns, and a broker."""
        own = {
            role: f"Receives {', '.join(kind.__name__ for kind in of.receives)}. Learns {of.learns}."
            for role, of in self.views(mode, config).items()
        }
        return {**own, BROKER: f"Carries sealed packets. Learns {BROKER_LEARNS}."}

    def defaults(self, mode: str) -> Mapping[str, Any]:
        return self.settings_in.get(mode, {})
