"""A holder's part in making joint keys and handing them over, and its messages."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import coterie.protocol.core as fl
from coterie.crypto import ckks, threshold, threshold_generation
from coterie.crypto.keys import public_key
from coterie.crypto.roster import signing_key, verify_key
from coterie.crypto.signing import SIGNATURE_BYTES, Field, digest
from coterie.protocols.key_centre import Granted
from coterie.protocols.threshold import keys
from coterie.protocols.threshold.keys import AboutJoint, AskOfKey, Consent, Joint, OfKey, Terms, group, lines, text

DIGEST_BYTES = 32

# ---- messages: all between the hub and another party, but for ``Piece``


class Begin(AskOfKey, frozen=True):
    """Make a key with these holders (names, one a line). sources: the holders that hand over an existing key."""

    holders: str
    sources: str


class Committed(OfKey, frozen=True):
    """digest: of its public part; empty in a hand-over."""

    digest: bytes


class Reveal(AskOfKey, frozen=True):
    """digests: all commitments, 32 bytes each, in the holders' order."""

    digests: bytes


class Revealed(OfKey, frozen=True):
    """part: public, that for products (or nothing), and the opening of the commitment."""

    part: fl.Bundle


class Exchange(AskOfKey, frozen=True):
    """Send your pieces. parts: all revealed ones, in the holders' order; empty in a hand-over."""

    parts: fl.Bundle


class Pass(AskOfKey, frozen=True):
    """Send these new holders pieces of your share. sources: all that hand over."""

    holders: str
    sources: str


class Piece(OfKey, frozen=True):
    """SECRET, from holder to holder, sealed: half of a common seed, and a piece of the sender's share, if any.

    opened: in a hand-over, how many ciphertexts the sender has helped to open.
    """

    seed: bytes
    piece: bytes
    opened: int = 0

    def __repr__(self) -> str:
        return f"<Piece of {self.key} {self.number}>"


class Endorsed(OfKey, frozen=True):
    """signature: over the joint public key and its holders.  second: the second part for products, or nothing."""

    signature: bytes
    second: bytes


class AskTurns(AskOfKey, frozen=True):
    """For automorphisms X -> X^k."""

    elements: fl.Integers


class TurnParts(OfKey, frozen=True):
    part: bytes


class Complete(OfKey, frozen=True):
    """This holder has all pieces."""


class Lacking(AskOfKey, frozen=True):
    """Which pieces do you lack?"""


class Lacks(OfKey, frozen=True):
    """The holders whose pieces have not come, one a line."""

    names: str


class JointKey(AskOfKey, frozen=True):
    """signatures: of all holders, 64 bytes each. Older keys are erased.
    summands: how many contributions the key sums up, perhaps of former holders.
    """

    holders: str
    summands: int
    public: bytes
    signatures: bytes


class Known(OfKey, frozen=True):
    """This party has the key, and has erased its shares of older ones."""


def endorsement(common: fl.Common, key: str, terms: Terms) -> tuple[Field, ...]:
    """What each holder signs."""
    public = hashlib.sha256(terms.public).digest()
    return "joint key", common.roster.session, key, terms.number, text(terms.holders), terms.summands, public


def common_seed(a: str, b: str, of_a: bytes, of_b: bytes) -> bytes:
    (first, x), (second, y) = sorted(((a, of_a), (b, of_b)))
    return digest("common seed", first, second, x, y)


# ---- a holder's side: of a key that is being made it keeps a type for each round


class Making(fl.SecretStruct, kw_only=True, tag=True):
    """SECRET: a key that a party is about to hold, and other holders' pieces, which may come early."""

    number: int
    holders: tuple[str, ...]
    sources: tuple[str, ...]  # whose pieces make up the share; none if it is the holder's own contribution
    summands: int
    own: dict[str, bytes]  # halves of common seeds, by the other holder
    seeds: dict[str, bytes] = fl.field(default_factory=dict)  # others' halves
    pieces: dict[str, bytes] = fl.field(default_factory=dict)
    opened: int = 0  # in a hand-over, how many ciphertexts were opened before

    def lacks(self, me: str) -> list[str]:
        lacking = {name for name in self.holders if name != me and name not in self.seeds}
        return sorted(lacking | {name for name in self.sources if name not in self.pieces})

    def next(self, kind: type[N], **more: Any) -> N:
        return kind(**{name: getattr(self, name) for name in Making.__struct_fields__}, **more)


N = TypeVar("N", bound=Making)


class Inheriting(Making):
    """SECRET: to be handed over, before the exchange."""


class Committing(Making):
    """SECRET."""

    secret: bytes
    ephemeral: bytes
    shown: bytes  # what is committed to


class Revealing(Making):
    """SECRET."""

    secret: bytes
    ephemeral: bytes
    digests: bytes  # all commitments


class Exchanged(Making):
    """SECRET: pieces are under way."""

    secret: bytes | None  # None in a hand-over
    public: bytes
    turned: bool = False  # whether this holder gave its part of rotations


class Whole(Making):
    """SECRET."""

    secret: bytes | None
    public: bytes
    turned: bool
    share: bytes


MakingRound = Inheriting | Committing | Revealing | Exchanged | Whole


class Makings(fl.SecretStruct):
    rounds: dict[str, MakingRound] = fl.field(default_factory=dict)


def _cost(making: KeyMaking, msg: Any) -> fl.Cost:
    party, made = making.party, making.secret.rounds.get(msg.key)
    joint = party.joint.of(msg.key)
    if isinstance(msg, Begin | Pass):
        holders = lines(msg.holders)
        joint.checked(holders, party.common.roster)
        one = group(party.common, joint, msg.number, holders, len(holders))
        if isinstance(msg, Pass):
            return fl.Cost(crypto_s=one.seconds("handed", holders=len(holders)))
        return fl.Cost(crypto_s=one.seconds("public") + (one.seconds("first") if joint.products else 0.0))
    if made is None:
        return fl.Cost()
    one, count = group(party.common, joint, made.number, made.holders, made.summands), len(made.holders)
    if isinstance(msg, AskTurns):
        return fl.Cost(crypto_s=one.seconds("galois", rows=len(msg.elements)))
    dealing = one.seconds("handed", holders=count) if joint.threshold else 0.0
    second = one.seconds("second") if joint.products else 0.0
    return fl.Cost(crypto_s=one.seconds("joined", holders=count) + dealing + second)


class KeyMaking(AboutJoint):
    """How a party makes joint keys and takes them over, beside its ``keys`` and ``joint``. Handlers refuse whatever
    would weaken the key's ``Joint``.
    """

    secret: Makings

    def is_asked(self, kind: type[fl.Message], config: Any, mode: str) -> bool:
        joint = self.joint_of(config)
        if joint is None or joint.dealer or (kind is AskTurns and not joint.products):
            return False
        return super().is_asked(kind, config, mode)

    def granted(self, msg: Granted) -> None:
        for joint in self.party.joint.declared(self.party):
            if joint.dealer and msg.grant in ("", joint.name):
                self.secret.rounds.pop(joint.name, None)

    @fl.on(Begin, _cost, answers=Committed)
    def begin(self, msg: Begin, src: str) -> Committed:
        # in a hand-over it only waits for pieces
        party = self.party
        joint, holders, sources = party.joint.of(msg.key), lines(msg.holders), lines(msg.sources)
        joint.checked(holders, party.common.roster)
        if party.name not in holders:
            raise fl.PeerError(f"{party.name} is not among the {len(holders)} holders of key {msg.key!r}")
        known, before = party.joint.secret.terms.get(msg.key), self.secret.rounds.get(msg.key)
        last = max(known.number if known else 0, before.number if before else 0)
        if msg.number <= last:
            raise fl.PeerError(f"making {msg.number} of key {msg.key!r} after {last}")
        if joint.dealer and not sources:
            raise fl.PeerError(f"key {msg.key!r} is dealt by the key centre")
        if sources:
            self._may_pass(joint, sources)
        seeds = {
            name: party.secrets(f"joint key {msg.key} seed for {name}", msg.number).bytes(keys.SEED_BYTES)
            for name in holders
            if name != party.name
        }
        base: dict[str, Any] = {"number": msg.number, "holders": holders, "own": seeds}
        if sources:
            summands = party.joint.terms(msg.key).summands
            self.secret.rounds[msg.key] = Inheriting(sources=sources, summands=summands, **base)
            return Committed(*msg.of, b"")
        one = group(party.common, joint, msg.number, holders, len(holders))
        secret = threshold_generation.secret(one, party.secrets(f"joint key {msg.key} secret", msg.number).bytes)
        first, ephemeral = b"", b""
        if joint.products:
            first, other = secret.first(party.secrets(f"joint key {msg.key} products", msg.number).bytes)
            ephemeral = other.to_bytes()
        nonce = party.secrets(f"joint key {msg.key} nonce", msg.number).bytes(keys.SEED_BYTES)
        made = Committing(
            **base,
            sources=holders if joint.threshold else (),
            summands=len(holders),
            secret=secret.to_bytes(),
            ephemeral=ephemeral,
            shown=fl.bundle([secret.public(), first, nonce]),
        )
        self.secret.rounds[msg.key] = made
        return Committed(*msg.of, committed(made.shown))

    @fl.on(Reveal, answers=Revealed)
    def reveal(self, msg: Reveal, src: str) -> Revealed:
        made: Committing = self._at(msg, Committing)
        mine = made.holders.index(self.party.name)
        if len(msg.digests) != DIGEST_BYTES * len(made.holders):
            raise fl.PeerError(f"{len(msg.digests)} bytes of commitments of {len(made.holders)} holders")
        if msg.digests[DIGEST_BYTES * mine :][:DIGEST_BYTES] != committed(made.shown):
            raise fl.PeerError(f"the commitment of {self.party.name} was changed")
        self.secret.rounds[msg.key] = made.next(
            Revealing, secret=made.secret, ephemeral=made.ephemeral, digests=msg.digests
        )
        return Revealed(*msg.of, made.shown)

    @fl.on(Exchange, _cost, answers=(Endorsed, Complete))
    def exchange(self, msg: Exchange, src: str) -> tuple[fl.To, ...]:
        party = self.party
        made: Revealing | Inheriting = self._at(msg, Revealing, Inheriting)
        second, pieces = b"", dict[str, bytes]()
        if isinstance(made, Inheriting):
            now = made.next(Exchanged, secret=None, public=party.joint.terms(msg.key).public)
        else:
            one, parts = self._group(msg.key, made), shown_parts(msg.parts, made.holders, made.digests)
            secret = threshold_generation.Secret.load(one, made.secret)
            public = threshold_generation.joined(one, {name: part for name, (part, _) in parts.items()}).to_bytes()
            now = made.next(Exchanged, secret=made.secret, public=public)
            if party.joint.of(msg.key).products:
                firsts = {name: first for name, (_, first) in parts.items()}
                second = secret.second(threshold_generation.Secret.load(one, made.ephemeral), firsts)
            if made.sources:
                pieces = secret.dealt(party.secrets(f"joint key {msg.key} pieces", msg.number).bytes)
                now.pieces[party.name] = pieces[party.name]
        self.secret.rounds[msg.key] = now
        terms = Terms(msg.number, now.holders, now.public, now.summands)
        signature = signing_key(party.own).sign(*endorsement(party.common, msg.key, terms))
        sent = [fl.To(party.common.roster.hub, Endorsed(*msg.of, signature, second))]
        for name, seed in now.own.items():
            sent.append(fl.To(name, Piece(*msg.of, seed, pieces.get(name, b""))))
        return (*sent, *self._complete(msg))

    @fl.on(AskTurns, _cost, answers=TurnParts)
    def evaluate(self, msg: AskTurns, src: str) -> TurnParts:
        # given once: two would show their noise
        made: Exchanged | Whole = self._at(msg, Exchanged, Whole)
        joint = self.party.joint.of(msg.key)
        if made.secret is None or made.turned or not joint.products:
            raise fl.PeerError(f"making {msg.number} of key {msg.key!r} has no rotations to be made")
        one = self._group(msg.key, made)
        if tuple(map(int, msg.elements)) != one.space.elements:
            raise fl.PeerError(f"{len(msg.elements)} automorphisms that {joint.parameters} has no keys for")
        made.turned = True
        secret = threshold_generation.Secret.load(one, made.secret)
        return TurnParts(*msg.of, secret.galois(one.space.elements))

    @fl.on(Pass, _cost, answers=(Consent, Complete), when=fl.never)
    def hand_over(self, msg: Pass, src: str) -> tuple[fl.To, ...]:
        # the share is erased once all are told of the new holders
        party = self.party
        joint, holders, sources = party.joint.of(msg.key), lines(msg.holders), lines(msg.sources)
        held = party.joint.held(msg.key)
        joint.checked(holders, party.common.roster)
        self._may_pass(joint, sources)
        if msg.number <= held.number or party.name not in sources or held.passed >= msg.number:
            raise fl.PeerError(f"{party.name} hands over no share of key {msg.key!r} for making {msg.number}")
        held.passed, opened = msg.number, party.joint.secret.answered(msg.key).ciphertexts
        new = group(party.common, joint, msg.number, holders, party.joint.terms(msg.key).summands)
        pieces = threshold.Share.load(party.joint.group(msg.key), held.share).handed(
            party.name, sources, new, party.secrets(f"joint key {msg.key} pieces", msg.number).bytes
        )
        sent = [fl.To(src, Consent(*msg.of))]
        for name in holders:
            if name != party.name:
                sent.append(fl.To(name, Piece(*msg.of, b"", pieces[name], opened)))
        made = self.secret.rounds.get(msg.key)
        if party.name in holders and made is not None and made.number == msg.number:
            made.pieces[party.name] = pieces[party.name]
            made.opened = max(made.opened, opened)
            sent += self._complete(msg)
        return tuple(sent)

    @fl.on(Piece, answers=Complete)
    def take_piece(self, msg: Piece, src: str) -> tuple[fl.To, ...]:
        made = self.secret.rounds.get(msg.key)
        if made is None or made.number != msg.number or isinstance(made, Whole):
            raise fl.PeerError(f"a piece of key {msg.key!r:.40}, making {msg.number}, which is not being made")
        if not (msg.seed or msg.piece) or len(msg.seed) not in (0, keys.SEED_BYTES):
            raise fl.PeerError(f"a piece with a seed of {len(msg.seed)} bytes")
        if msg.seed and (src not in made.holders or src in made.seeds):
            raise fl.PeerError(f"a seed from {src}, which is no other holder or has sent one")
        if msg.piece and (src not in made.sources or src in made.pieces):
            raise fl.PeerError(f"a piece from {src}, which hands nothing over or has done so")
        if msg.seed:
            made.seeds[src] = msg.seed
        if msg.piece:
            made.pieces[src], made.opened = msg.piece, max(made.opened, msg.opened)
        return self._complete(msg)

    @fl.on(Lacking, answers=Lacks, when=fl.never)
    def lacking(self, msg: Lacking, src: str) -> Lacks:
        made: MakingRound = self._at(msg, Making)
        missing = () if isinstance(made, Whole) else made.lacks(self.party.name)
        return Lacks(*msg.of, text(missing))

    @fl.on(JointKey, answers=Known)
    def know(self, msg: JointKey, src: str) -> Known:
        party, joint = self.party, self.party.joint.of(msg.key)
        secret, holders = party.joint.secret, lines(msg.holders)
        known, made = secret.terms.get(msg.key), self.secret.rounds.get(msg.key)
        if joint.dealer and known is None:
            raise fl.PeerError(f"key {msg.key!r} is dealt by the key centre")
        if known is not None and msg.number <= known.number:
            raise fl.PeerError(f"key {msg.key!r} of making {msg.number} after {known.number}")
        terms = Terms(msg.number, holders, msg.public, msg.summands)
        check_endorsed(party, joint, terms, msg.signatures)
        mine = made if made is not None and made.number == msg.number else None
        secret.held.pop(msg.key, None)
        if party.name in holders:
            if not isinstance(mine, Whole) or mine.public != msg.public:
                raise fl.PeerError(f"{party.name} should hold key {msg.key!r}, and has no share of it")
            secret.held[msg.key] = keys.Held(msg.number, holders, mine.share, mine.seeds)
        if made is not None and made.number <= msg.number:
            del self.secret.rounds[msg.key]
        party.joint.learn(msg.key, terms)
        if mine is not None:  # the noise is sized for all openings under the key
            before = secret.answered(msg.key)
            secret.account(msg.key, threshold.Answered(before.digests, max(before.ciphertexts, mine.opened)))
        return Known(*msg.of)

    def _at(self, msg: OfKey, *rounds: type[Making]) -> Any:
        made = self.secret.rounds.get(msg.key)
        if made is None or made.number != msg.number:
            raise fl.PeerError(f"making {msg.number} of key {msg.key!r:.40}, which {self.party.name} has not begun")
        if not isinstance(made, rounds):
            where = type(made).__name__
            raise fl.PeerError(f"a {type(msg).__name__} of key {msg.key!r}, making {msg.number}, which is at {where}")
        return made

    def _group(self, key: str, made: Making) -> threshold.Group:
        return group(self.party.common, self.party.joint.of(key), made.number, made.holders, made.summands)

    def _may_pass(self, joint: Joint, sources: tuple[str, ...]) -> None:
        terms = self.party.joint.terms(joint.name)
        needed = joint.needed(len(terms.holders))
        if not set(sources) <= set(terms.holders) or not len(set(sources)) == len(sources) == needed:
            raise fl.PeerError(f"key {joint.name!r} is handed over by {needed} of its holders, each once")

    def _complete(self, msg: OfKey) -> tuple[fl.To, ...]:
        party, made = self.party, self.secret.rounds[msg.key]
        if not isinstance(made, Exchanged) or made.lacks(party.name):
            return ()
        one = self._group(msg.key, made)
        if made.sources:
            try:
                share = threshold.gathered(one, party.name, made.pieces)
            except fl.DecodeError as error:
                del made.pieces[keys.named(made.sources, error)]  # an unreadable piece has to come again
                return ()
        else:
            assert made.secret is not None  # only a key that is handed over has none, and it has sources
            share = threshold_generation.Secret.load(one, made.secret).share()
        whole = made.next(Whole, secret=made.secret, public=made.public, turned=made.turned, share=share.to_bytes())
        whole.seeds = {name: common_seed(party.name, name, made.own[name], seed) for name, seed in made.seeds.items()}
        whole.pieces, whole.own = {}, {}
        self.secret.rounds[msg.key] = whole
        return (fl.To(party.common.roster.hub, Complete(*msg.of)),)


def committed(shown: bytes) -> bytes:
    part, first, nonce = fl.unbundle(shown, 3)
    return threshold_generation.commitment(fl.bundle([part, first]), nonce)


def shown_parts(parts: bytes, holders: Sequence[str], digests: bytes) -> Mapping[str, tuple[bytes, bytes]]:
    """By holder, its public part and that for products. Raises PeerError unless committed."""
    found = fl.unbundle(parts, 3 * len(holders))
    shown = {}
    for i, name in enumerate(holders):
        part, first, nonce = found[3 * i : 3 * i + 3]
        threshold_generation.revealed(digests[DIGEST_BYTES * i :][:DIGEST_BYTES], fl.bundle([part, first]), nonce)
        shown[name] = part, first
    return shown


def check_endorsed(party: Any, joint: Joint, terms: Terms, signed: bytes) -> None:
    """Raises PeerError unless these may hold the key, and have all signed it."""
    holders = terms.holders
    joint.checked(holders, party.common.roster)
    if len(signed) != SIGNATURE_BYTES * len(holders):
        raise fl.PeerError(f"{len(signed)} bytes are not the signatures of {len(holders)} holders")
    fields = endorsement(party.common, joint.name, terms)
    for i, name in enumerate(holders):
        verify_key(party.common, name).verify(signed[SIGNATURE_BYTES * i :][:SIGNATURE_BYTES], *fields)
    key = public_key(terms.public)
    wanted = group(party.common, joint, terms.number, holders, terms.summands).space.identity
    if (
        not isinstance(key, ckks.PublicKey)
        or key.emulated != party.common.emulated
        or key.arrays.space.identity != wanted
    ):
        raise fl.PeerError(f"{key!r} is no joint key {joint.name!r} of this federation")
