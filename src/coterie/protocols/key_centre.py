"""Enrolment with a key centre, which draws keys for the other parties and gives each party what it may hold.

    hub --Deal--> key_centre --Granted (signed, sealed)--> all others --Ready--> hub

It draws all keys but those for signing, by a list of **grants**, signs each grant for one recipient and one dealing,
and forgets the secret halves. A grant may be dealt again under the next number; the old one is refused from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import coterie.protocol.core as fl
from coterie.crypto.ckks import EvaluationKey
from coterie.crypto.keys import evaluation_key, public_key, secret_key
from coterie.crypto.roster import signing_key, verify_key
from coterie.crypto.signing import Field

KEY_CENTRE = "key_centre"
EVALUATION = "evaluation"


@fl.message(src=fl.HUB, dst=KEY_CENTRE)
class Deal(fl.Message, frozen=True):
    """Deal a grant for the ``number``-th time; with an empty ``grant`` all grants, for the first.

    holders: names of new ones, one a line; empty for the usual ones.
    """

    number: int
    grant: str
    holders: str


@fl.message(src=KEY_CENTRE)
class Granted(fl.Message, frozen=True):
    """names: one a line, ``secret NAME``, ``public NAME`` or ``public NAME OWNER``.  signature: over all fields, the
    recipient and the session.
    """

    number: int
    grant: str
    names: str
    keys: fl.Bundle
    signature: bytes

    def __repr__(self) -> str:
        return f"<Granted {self.grant or 'all'}, dealing {self.number}>"


class Ready(fl.Message, frozen=True):
    """grant: that this party has keys of; empty for all."""

    number: int
    grant: str


ENROLMENT = (Granted, Ready)

Draw = Callable[[str], fl.Secrets]
"""Secret randomness for one purpose."""


@dataclass(frozen=True)
class DealtKeys:
    """secret: by holder.  public: by owner ("" if all holders share it).  better: by role, public keys with more
    content.
    """

    secret: Mapping[str, bytes]
    public: Mapping[str, bytes] = field(default_factory=dict)
    better: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Dealt to {', '.join(self.secret)}>"


@dataclass(frozen=True)
class Grant(Protocol):
    """A secret that the key centre deals.

    name: without blanks or line breaks.  role: only its parties may ever hold it, whatever the hub asks for.
    """

    name: str
    role: str

    def holders(self, roster: fl.Roster) -> tuple[str, ...]:
        return tuple(roster.of_role(self.role))

    def deal(self, holders: Sequence[str], draw: Draw, *, emulated: bool) -> DealtKeys:
        """Raises PeerError for too few holders."""


@dataclass(frozen=True)
class Pair(Grant):
    """A key pair. Its holders get the secret half.  each: one pair for each holder.

    keygen(emulated, random_bytes): draws one, with ``public`` and ``to_bytes`` (``crypto/vector.py``).
    works: the role that multiplies ciphertexts, if any. It gets the evaluation key (``public evaluation``), and a
    public key that allows products.
    """

    keygen: Callable[..., Any]
    each: bool = False
    works: str = ""

    def __post_init__(self) -> None:
        if self.each and self.works:
            raise TypeError(f"{self.name}: products need one pair for a role, not one for each of its parties")

    def deal(self, holders: Sequence[str], draw: Draw, *, emulated: bool) -> DealtKeys:
        names = {h: f"{self.name} {h} key" for h in holders} if self.each else {"": f"{self.name} key"}
        owned = {owner: self.keygen(emulated=emulated, random_bytes=draw(name).bytes) for owner, name in names.items()}
        secret = {h: owned[h if self.each else ""].to_bytes() for h in holders}
        whole = {owner: key.public.to_bytes() for owner, key in owned.items()}
        if not self.works:
            return DealtKeys(secret, whole)
        without = {"": owned[""].public.without_products().to_bytes()}
        return DealtKeys(secret, without, {self.works: {**whole, EVALUATION: owned[""].evaluation().to_bytes()}})


@dataclass(frozen=True)
class Seed(Grant):
    """32 secret bytes that all holders share. also: other parties that get them."""

    also: tuple[str, ...] = ()

    def deal(self, holders: Sequence[str], draw: Draw, *, emulated: bool) -> DealtKeys:
        return DealtKeys(dict.fromkeys((*holders, *self.also), draw(f"{self.name} seed").bytes(32)))


class KeyCentre(fl.Party, role=KEY_CENTRE):
    """Deals each number of a grant once, and keeps no key."""

    class State(fl.State):
        """dealt: how often, by grant."""

        dealt: dict[str, int] = fl.field(default_factory=dict)

    state: State

    def __init__(self, own: fl.Own, common: fl.Common, grants: Sequence[Grant]) -> None:
        super().__init__(own, common)
        self.grants = {grant.name: grant for grant in grants}

    @fl.on(Deal, answers=Granted)
    def deal(self, msg: Deal, src: str) -> tuple[fl.To, ...]:
        roster = self.common.roster
        if msg.grant and msg.grant not in self.grants:
            raise fl.PeerError(f"there is no grant {msg.grant!r}")
        wanted = [self.grants[msg.grant]] if msg.grant else list(self.grants.values())
        chosen = tuple(msg.holders.split("\n")) if msg.holders else ()
        if strangers := set(chosen) - roster.by_name.keys():
            raise fl.PeerError(f"{min(strangers)!r} is not on the roster")
        if len(set(chosen)) < len(chosen) or (chosen and not msg.grant):
            raise fl.PeerError("the holders of one grant, each once, are to be named, or none at all")
        if chosen and (wrong := set(chosen) - set(roster.of_role(wanted[0].role))):
            raise fl.PeerError(f"{min(wrong)} may not hold {msg.grant}: it is for a {wanted[0].role}")
        items: dict[str, dict[str, bytes]] = {name: {} for name in roster.by_name if name != self.name}
        for grant in wanted:
            if msg.number != self.state.dealt.get(grant.name, 0) + 1:
                raise fl.PeerError(f"dealing {msg.number} of {grant.name} after {self.state.dealt.get(grant.name, 0)}")
            self.state.dealt[grant.name] = msg.number
            draw = partial(self.secrets, round=msg.number - 1)
            dealt = grant.deal(chosen or grant.holders(roster), draw, emulated=self.common.emulated)
            for name, own in items.items():
                public = {**dealt.public, **dealt.better.get(roster.by_name[name].role, {})}
                if name in dealt.secret:  # of keys that others own, a holder needs none
                    public = {owner: key for owner, key in public.items() if owner in ("", name, EVALUATION)}
                own |= {f"public {grant.name} {owner}".strip(): key for owner, key in public.items()}
                if name in dealt.secret:
                    own[f"secret {grant.name}"] = dealt.secret[name]
        return tuple(fl.To(name, self._granted(msg, name, own)) for name, own in items.items())

    def _granted(self, msg: Deal, name: str, own: Mapping[str, bytes]) -> Granted:
        bare = Granted(msg.number, msg.grant, "\n".join(own), fl.bundle(list(own.values())), b"")
        return fl.changed(bare, signature=signing_key(self.own).sign(*_signed(self.common, name, bare)))


def _signed(common: fl.Common, recipient: str, msg: Granted) -> tuple[Field, ...]:
    return "granted", common.roster.session, recipient, msg.number, msg.grant, msg.names, msg.keys


PK = TypeVar("PK")
SK = TypeVar("SK")


class KeyStore(fl.SecretStruct):
    """SECRET: a party's granted keys. dealt: the number of the last dealing, by grant ("" for all)."""

    secret: dict[str, bytes] = fl.field(default_factory=dict)
    public: dict[str, bytes] = fl.field(default_factory=dict)
    dealt: dict[str, int] = fl.field(default_factory=dict)


class OfGrants(fl.Component):
    def granted(self, msg: Granted) -> None:
        """A verified message was stored. Raises PeerError if something in it is unusable."""


class Keys(fl.Component, Generic[PK, SK]):
    """The keys of one scheme that a party is granted: ``Keys(PublicKey, SecretKey)`` at the hub, which has a key
    centre deal before round 1; ``HeldKeys`` at others.
    """

    secret: KeyStore
    takes: ClassVar[tuple[type[fl.Message], ...]] = ENROLMENT

    def __init__(self, public: type[PK], secret: type[SK]) -> None:
        self.kinds = public, secret

    def setup(self) -> fl.Steps[None]:
        if KEY_CENTRE in self.party.common.roster.by_name:
            yield from _dealt(self, Deal(1, "", ""))

    def store(self, msg: Granted) -> None:
        """Raises PeerError if the key centre did not sign these keys or the dealing is old."""
        signer = verify_key(self.party.common, KEY_CENTRE)
        signer.verify(msg.signature, *_signed(self.party.common, self.party.name, msg))
        keys = self.secret
        before = [keys.dealt.get(msg.grant, 0), keys.dealt.get("", 0)] if msg.grant else keys.dealt.values()
        if msg.number <= (last := max(before, default=0)):
            raise fl.PeerError(f"dealing {msg.number} after {last}: already provided with keys")
        names = msg.names.split("\n") if msg.names else []
        items = dict(zip(names, fl.unbundle(msg.keys, len(names)), strict=True))
        if any(not name.startswith(("secret ", "public ")) for name in names):
            raise fl.PeerError("a granted key is neither secret nor public")
        if msg.grant:  # of an earlier dealing nothing is kept
            keys.secret.pop(msg.grant, None)
            self.forget_public(msg.grant)
        for name, data in items.items():
            kind, _, rest = name.partition(" ")
            {"secret": keys.secret, "public": keys.public}[kind][rest] = data
        keys.dealt[msg.grant] = msg.number
        for name, component in self.party.parts.items():
            if isinstance(component, OfGrants):
                getattr(self.party, name).granted(msg)

    def forget_public(self, name: str) -> None:
        self.secret.public = {known: key for known, key in self.secret.public.items() if known.split(" ")[0] != name}

    def public(self, name: str) -> PK:
        """Of a grant (``NAME`` or ``NAME OWNER``). Raises PeerError for a missing or unusable one."""
        return cast(PK, self._usable(public_key(self._one(self.secret.public, name)), self.kinds[0], name))

    def own(self, name: str) -> SK:
        """SECRET: of a grant. Raises PeerError for a missing or unusable one."""
        return cast(SK, self._usable(secret_key(self.own_bytes(name)), self.kinds[1], name))

    def own_bytes(self, name: str) -> bytes:
        """SECRET. Raises PeerError before the grant."""
        return self._one(self.secret.secret, name)

    def evaluation(self, name: str) -> EvaluationKey:
        """Raises PeerError before the grant."""
        return evaluation_key(self._one(self.secret.public, f"{name} {EVALUATION}"))

    def _usable(self, key: Any, kind: type[Any], name: str) -> Any:
        if not isinstance(key, kind) or key.emulated != self.party.common.emulated:
            raise fl.PeerError(f"{self.party.name} was granted {key!r} as {name}, which is no key for this federation")
        return key

    def _one(self, keys: Mapping[str, bytes], name: str) -> bytes:
        if name not in keys:
            raise fl.PeerError(f"not provided with keys yet: {self.party.name} has no {name}")
        return keys[name]


class HeldKeys(Keys[PK, SK]):
    takes = ()

    @fl.on(Granted, answers=Ready)
    def keep(self, msg: Granted, src: str) -> fl.To:
        self.store(msg)
        return fl.To(self.party.common.roster.hub, Ready(msg.number, msg.grant))


def deal_again(hub: Any, grant: str, holders: Sequence[str]) -> fl.Steps[None]:
    """Have one grant dealt anew, and wait until all have their part."""
    dealt = hub.keys.secret.dealt
    number = max(dealt.get(grant, 0), dealt.get("", 0)) + 1
    yield from _dealt(hub.keys, Deal(number, grant, "\n".join(holders)))


def _dealt(keys: Keys[Any, Any], deal: Deal) -> fl.Steps[None]:
    common = keys.party.common
    others, ready = common.roster.by_name.keys() - {keys.party.name, KEY_CENTRE}, set[str]()

    def greet(name: str, msg: Ready) -> None:
        if name in ready or name not in others or (msg.number, msg.grant) != (deal.number, deal.grant):
            raise fl.PeerError(f"{name} is ready for dealing {msg.number}, or has been before")
        ready.add(name)

    yield from fl.post({KEY_CENTRE: deal})
    yield from fl.take(Granted, lambda name, msg: keys.store(msg), at_least=1)
    if not others:
        return
    try:
        yield from fl.take(Ready, greet, at_least=len(others))
    except fl.NoAnswerError as error:
        missing, clients = sorted(others - ready), frozenset(common.clients)
        if not clients.issuperset(missing) or len(ready & clients) < (common.quorum or len(clients)):
            needed = f"{common.quorum} clients" if common.quorum else "all clients"
            raise fl.NoAnswerError(
                f"{error}: {needed} and all servers must have keys; {', '.join(missing)} have none"
            ) from None
