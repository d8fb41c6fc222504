"""Joint keys, which no single party holds: parties make them, open sums with them and hand them over.

    hub --Begin / Committed--> holder            each draws a contribution, and commits to it
    hub --Reveal / Revealed--> holder            all are shown, once all are committed
    hub --Exchange / Endorsed--> holder          each joins them, signs the joint key, and sends the others
              holder --Piece (sealed)--> holder  halves of common seeds and, for t-of-n, pieces of its contribution
    hub <--Complete-- holder
    hub --JointKey / Known--> everybody          the public key, which all its holders have signed
    hub --Announce / Consent--> holder           which holders are there; this fixes the set that opens
    hub --Decrypt / Partials--> holder           one partial decryption of each ciphertext

The hub relays, adds up and learns the opened values. A false share shows only when a sum opens to nonsense.
``hand_over`` keeps the key, and assumes that holders erase old shares. docs/threshold.md says who opens what.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import msgspec

import coterie.protocol.core as fl
from coterie.crypto import threshold_generation
from coterie.crypto.ckks import PublicKey
from coterie.crypto.signing import digest
from coterie.crypto.threshold import MOST_HOLDERS, Answered, Group
from coterie.protocol.codec import content, weighs, weighted
from coterie.protocols.key_centre import EVALUATION, DealtKeys, Draw, Grant, Granted, OfGrants
from coterie.protocols.openings import Stated, state

SEED_BYTES = 32
TRIAL = -1
"""The number of the sum that tries a new key: encryptions of zero."""
KEPT_ACCOUNTS = 256
"""Keys of which a party knows what it has opened."""
# more than are made in one round
TERMS = "terms"
UNREADABLE = "its answer cannot be read"

Lost = dict[str, str]
"""By name, why a party is left out."""
Of = tuple[int, str, int]
"""Round, key and making: what a message of this protocol is about."""


@dataclass(frozen=True)
class Joint:
    """The declaration of one joint key, alike at all parties, so a hub cannot have a weaker one made.

    name: without blanks or line breaks.  roles: of parties that may hold a share.
    threshold: t, the holders that open a sum; 0 for all.  fewest: senders of a sum that a holder helps to open.
    dealer: whether the key centre deals the key; else its holders make it.
    products: whether ciphertexts can be multiplied, and rotated as the parameters' evaluation keys allow.
    pads: whether all vectors come under joint pads.  effective: with pads, the least effective number of senders by
    their weights, (sum w)^2 / sum w^2; 0: ``fewest``.
    missing: with pads, how many holders' vectors a sum may lack, all of weight 1; None: any, by any weights.
    sums: different sums of vectors that a round opens. Several have weights of 1, and no combination of them shows
    fewer than ``fewest`` vectors.
    scalars: those that a round opens for each holder.  openings: Q_D, the ciphertexts that are opened under one key.
    """

    name: str
    parameters: str
    roles: tuple[str, ...]
    threshold: int = 0
    least: int = 2
    fewest: int = 3
    dealer: bool = False
    products: bool = False
    scalars: int = 0
    pads: bool = False
    effective: float = 0.0
    missing: int | None = None
    sums: int = 1
    openings: int = 65536

    def __post_init__(self) -> None:
        if self.threshold == 1 or self.threshold < 0:
            raise fl.UserError(
                f"{self.name}: a threshold of {self.threshold} would let one holder open all: 0 or at least 2"
            )
        if self.least < max(2, self.threshold):
            raise fl.UserError(
                f"{self.name}: {self.least} holders are too few: at least 2, and as many as the threshold of "
                f"{self.threshold}"
            )
        if min(self.fewest, self.openings, self.sums) < 1 or self.scalars < 0 or not 0 <= self.effective <= self.fewest:
            raise fl.UserError(
                f"{self.name}: a sum has at least 1 sender, a key at least 1 opening, a round at least 1 sum and "
                f"0 scalars, and the effective number of senders is 0 to fewest ({self.fewest})"
            )

    @property
    def completes(self) -> bool:
        """Whether pads are completed to ciphertexts; else only sums are opened."""
        return self.pads and (self.products or self.threshold > 0)

    def needed(self, holders: int) -> int:
        return self.threshold or holders

    def tries(self, holders: int) -> int:
        """Of one sum: once, and once without each first holder where others can replace it."""
        return self.threshold + 1

    @property
    def given(self) -> bool:
        """Whether holders take c_1 of vectors from the hub."""
        return not self.pads and (self.products or self.fewest == 1)  # nobody can sign that of a product

    @property
    def balance(self) -> float:
        return self.effective or float(self.fewest)

    def single(self, senders: int, length: int) -> bool:
        return self.scalars > 0 and length == 1 and 1 <= senders < self.fewest

    def opens(self, number: int, senders: int, length: int) -> bool:
        """Whether a holder helps with a sum of enough senders, a scalar, or a trial of the key."""
        if number == TRIAL or (number < 0 and not self.given):
            return (number, senders, length) == (TRIAL, 0, 1)
        return senders >= self.fewest or self.single(senders, length)

    def checked(self, holders: Sequence[str], roster: fl.Roster) -> None:
        """Raises PeerError unless these parties may hold the key together."""
        if len(set(holders)) < len(holders) or not self.least <= len(holders) <= MOST_HOLDERS:
            limits = f"at least {self.least} holders and at most {MOST_HOLDERS}"
            raise fl.PeerError(f"key {self.name!r} is for {limits}, each once, not {len(holders)}")
        for name in holders:
            entry = roster.by_name.get(name)
            if entry is None or entry.role not in self.roles:
                raise fl.PeerError(
                    f"{name!r:.40} may not hold key {self.name!r}: it is for a {' or a '.join(self.roles)}"
                )


class OfKey(fl.OfRound, frozen=True):
    """Base of messages about one making of one key. number: of the making; it only grows."""

    ABOUT = ("round", "key", "number")
    key: str
    number: int

    @property
    def of(self) -> Of:
        return self.round, self.key, self.number


class AskOfKey(OfKey, frozen=True):
    SRC = fl.HUB


class Consent(OfKey, frozen=True):
    """This party is there, and does what was asked or announced."""


def lines(text: str) -> tuple[str, ...]:
    return tuple(text.split("\n")) if text else ()


def text(names: Iterable[str]) -> str:
    return "\n".join(names)


def group(
    common: fl.Common, joint: Joint, number: int, holders: tuple[str, ...], summands: int, label: bytes = b""
) -> Group:
    """label: given if a key centre has dealt the key."""
    own = digest("joint key", common.roster.session, joint.name, number, text(holders))
    return _group(joint, holders, label or own, common.emulated, summands)


@lru_cache(64)
def _group(joint: Joint, holders: tuple[str, ...], label: bytes, emulated: bool, summands: int) -> Group:
    return Group(joint.parameters, holders, joint.threshold, joint.openings, label, emulated, summands=summands)


def pad_context(r: int) -> bytes:
    return struct.pack("<q", r)


# ---- what a party knows and holds


class Terms(fl.State, frozen=True):
    number: int
    holders: tuple[str, ...]
    public: bytes
    summands: int  # how many contributions the key sums up
    label: bytes = b""  # names only this key; empty if the rest does (``group``)


class Held(fl.SecretStruct):
    """SECRET: a holder's share of one key."""

    number: int
    holders: tuple[str, ...]
    share: bytes
    seeds: dict[str, bytes]  # one common with each other holder, by its name
    passed: int = 0
    round: int = -1
    sums: dict[int, tuple[int, int]] = fl.field(default_factory=dict)
    tries: dict[int, int] = fl.field(default_factory=dict)  # answers given for each sum
    nonces: dict[int, bytes] = fl.field(default_factory=dict)  # of its own pads, by round


class Helped(fl.State):
    round: int
    scalars: int = 0
    sums: dict[bytes, list[bytes]] = fl.field(default_factory=dict)  # by name, the names of their vectors


class Noisy(fl.State):
    """A party's part in a noisy sum of a round."""

    round: int
    of: bytes  # names the numbers, and the parties that add noise
    opened: bytes = b""  # names the senders of the opened sum


class JointSecrets(Stated):
    """SECRET: a party's state of joint keys, by name."""

    terms: dict[str, Terms] = fl.field(default_factory=dict)
    held: dict[str, Held] = fl.field(default_factory=dict)
    numbers: dict[str, int] = fl.field(default_factory=dict)  # the hub's, of the last making
    holding: dict[str, list[str]] = fl.field(default_factory=dict)  # those that did not confirm erasure
    helped: dict[str, Helped] = fl.field(default_factory=dict)
    noisy: dict[str, Noisy] = fl.field(default_factory=dict)  # this party's part in the last noisy sum
    accounts: dict[bytes, Answered] = fl.field(default_factory=dict)  # by public key; a hand-over keeps it

    def answered(self, name: str) -> Answered:
        """Under the key of this name, including by former holders."""
        return self.accounts.get(key_digest(self.terms[name].public), Answered())

    def account(self, name: str, answered: Answered) -> None:
        key = key_digest(self.terms[name].public)
        others = [(other, kept) for other, kept in self.accounts.items() if other != key]
        self.accounts = dict([*others, (key, answered)][-KEPT_ACCOUNTS:])


def key_digest(public: bytes) -> bytes:
    return hashlib.sha256(public).digest()[:16]


class AboutJoint(OfGrants):
    """joint_of: of a config, the key's declaration, or None without a key; it determines what the party receives. By
    default the holders make a key without products.
    """

    def __init__(
        self, when: fl.When = fl.always, *, joint_of: Callable[[Any], Joint | None] = lambda config: Joint("", "", ())
    ) -> None:
        super().__init__(when)
        self.joint_of = joint_of


class JointKeys(OfGrants):
    """A party's joint keys, beside its ``keys``. declared(party): all of the federation, the same at all parties."""

    secret: JointSecrets

    def __init__(self, declared: Callable[[Any], tuple[Joint, ...]]) -> None:
        self.declared = declared

    def of(self, name: str) -> Joint:
        """Raises PeerError for an undeclared key."""
        for joint in self.declared(self.party):
            if joint.name == name:
                return joint
        raise fl.PeerError(f"{self.party.name} knows of no joint key {name!r:.40}")

    def terms(self, name: str) -> Terms:
        """Raises PeerError before this party was told."""
        if name not in self.secret.terms:
            raise fl.PeerError(f"not provided with keys yet: {self.party.name} knows no joint key {name!r:.40}")
        return self.secret.terms[name]

    def group(self, name: str) -> Group:
        terms = self.terms(name)
        return group(self.party.common, self.of(name), terms.number, terms.holders, terms.summands, terms.label)

    def held(self, name: str) -> Held:
        """SECRET. Raises PeerError if this party holds no share."""
        if name not in self.secret.held:
            raise fl.PeerError(f"{self.party.name} holds no share of key {name!r:.40}")
        return self.secret.held[name]

    def current(self, msg: AskOfKey) -> Held:
        """SECRET: the share that the hub's message is about. Raises PeerError for another key."""
        held = self.held(msg.key)
        if held.number != msg.number:
            raise fl.PeerError(f"key {msg.key!r} of making {msg.number}; {self.party.name} holds that of {held.number}")
        return held

    def learn(self, name: str, terms: Terms) -> None:
        self.secret.terms[name] = terms
        self.party.keys.forget_public(name)
        self.party.keys.secret.public[name] = terms.public

    def lasts(self, secret: JointSecrets) -> None:
        self.secret.noisy, self.secret.openings = secret.noisy, secret.openings
        if not self.party.common.emulated:  # which keep nothing secret: a repeated attempt opens once more
            self.secret.accounts = secret.accounts

    def noise(self, name: str, r: int, of: bytes) -> fl.Secrets:
        """Secret randomness for this party's noise on a sum of round r. of: all that the noise is added to, and with.

        Other numbers in the same round get other noise. Once a sum is opened, in any attempt, they raise PeerError.
        """
        last = self.secret.noisy.get(name)
        digest = hashlib.sha256(of).digest()
        if last is not None and last.round == r and last.opened and last.of != digest:
            raise fl.PeerError(f"a noisy sum of round {r} was opened, and another would be a second release")
        if last is None or (last.round, last.of) != (r, digest):
            self.secret.noisy[name] = Noisy(r, digest)
        secrets: fl.Secrets = self.party.kept(f"noise on a sum under {name}", digest, r)
        return secrets

    def state(self, key: str, r: int, among: Sequence[str], **facts: Any) -> None:
        known: dict[str, Any] = {"making": self.terms(key).number, "fewest": self.of(key).fewest}
        state(self.party, self.secret, among, key=key, round=r, **known, **facts)

    def granted(self, msg: Granted) -> None:
        granted, own = self.party.keys.secret, self.secret
        for joint in self.declared(self.party):
            name = joint.name
            if not joint.dealer or msg.grant not in ("", name) or name not in granted.public:
                continue
            label, holders = _read_terms(granted.public.get(f"{name} {TERMS}") or _parts(granted.secret[name])[0])
            joint.checked(holders, self.party.common.roster)
            own.terms[name] = Terms(msg.number, holders, granted.public[name], len(holders), label)
            own.numbers[name] = msg.number
            own.held.pop(name, None)
            if self.party.name in holders:
                _, share, *seeds = _parts(granted.secret.pop(name))  # it stands in one place only
                others = [other for other in holders if other != self.party.name]
                if len(seeds) != len(others):
                    raise fl.PeerError(f"{len(seeds)} seeds for {len(others)} other holders")
                own.held[name] = Held(msg.number, holders, share, dict(zip(others, seeds, strict=True)))


# ---- keys that a key centre deals: it draws the key, and so it sees it; then it keeps nothing


@dataclass(frozen=True)
class JointGrant(Grant):
    """first: the first holders.  works: the role that multiplies ciphertexts.  role: of later holders."""

    joint: Joint
    first: tuple[str, ...]
    works: str = ""

    def holders(self, roster: fl.Roster) -> tuple[str, ...]:
        return self.first

    def deal(self, holders: Sequence[str], draw: Draw, *, emulated: bool) -> DealtKeys:
        joint = self.joint
        if len(holders) < joint.least:
            raise fl.PeerError(f"key {joint.name!r} is for at least {joint.least} holders, not for {len(holders)}")
        label = draw(f"{self.name} label").bytes(SEED_BYTES)
        group = Group(joint.parameters, tuple(holders), joint.threshold, joint.openings, label, emulated)
        key, evaluation, shares = threshold_generation.dealt(
            group, products=joint.products, random_bytes=draw(self.name).bytes
        )
        pairs = {
            frozenset(pair): draw(f"{self.name} seed of {text(pair)}").bytes(SEED_BYTES)
            for pair in combinations(holders, 2)
        }
        terms = msgspec.msgpack.encode((label, tuple(holders)))
        secret = {}
        for name in holders:
            seeds = [pairs[frozenset((name, other))] for other in holders if other != name]
            share = shares[name].to_bytes()
            blob = fl.bundle([terms, share, *seeds])
            secret[name] = weighted(len(blob) + weighs(share) - len(share), blob)
        public = {"": key.without_products().to_bytes(), TERMS: terms}
        if not joint.products:
            return DealtKeys(secret, public)
        more = {"": key.to_bytes()} | ({EVALUATION: evaluation.to_bytes()} if evaluation is not None else {})
        return DealtKeys(secret, public, {self.works: {**public, **more}})


def _parts(blob: bytes) -> list[bytes]:
    held = bytes(content(blob))
    return fl.unbundle(held, int.from_bytes(held[:4], "little"))


def _read_terms(data: bytes) -> tuple[bytes, tuple[str, ...]]:
    try:
        return msgspec.msgpack.decode(data, type=tuple[bytes, tuple[str, ...]])
    except msgspec.MsgspecError:
        raise fl.DecodeError("the terms of a dealt key cannot be read") from None


# ---- what the hub uses


@dataclass(frozen=True)
class HubKey:
    """As the hub uses it in one round. deadline_s: of each step."""

    hub: Any
    name: str
    round: int
    deadline_s: float | None = None

    @property
    def joint(self) -> Joint:
        joint: Joint = self.hub.joint.of(self.name)
        return joint

    @property
    def terms(self) -> Terms:
        terms: Terms = self.hub.joint.terms(self.name)
        return terms

    @property
    def group(self) -> Group:
        one: Group = self.hub.joint.group(self.name)
        return one

    @property
    def public(self) -> PublicKey:
        public: PublicKey = self.hub.keys.public(self.name)
        return public

    @property
    def of(self) -> Of:
        return self.round, self.name, self.terms.number

    def gather(
        self, requests: Mapping[str, fl.Message], reply: type[fl.M], check: fl.Fold[fl.M] = fl.ignored
    ) -> fl.Steps[tuple[dict[str, fl.M], Lost]]:
        """Answers by name, in order of arrival, and reasons of failure."""
        got: dict[str, fl.M] = {}

        def keep(name: str, msg: fl.M) -> None:
            check(name, msg)
            got[name] = msg

        answers = yield from fl.for_each(requests, reply, keep, deadline_s=self.deadline_s)
        return got, dict(answers.missing)


def reasons(missing: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in missing.items()) or "nobody is missing"


def named(names: Sequence[str], error: fl.DecodeError) -> str:
    """The party that an error of ``crypto.threshold`` names; raises it again if none."""
    for name in names:
        if str(error).startswith(f"{name}: "):
            return name
    raise error
