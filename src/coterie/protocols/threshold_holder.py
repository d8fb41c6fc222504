"""A party's side of joint keys: it makes them with others, holds its share, and gives partial decryptions.

Every handler refuses what does not come from the hub (but for pieces, which come from other holders), what belongs to
another making of the key, and whatever would weaken what is declared (``Joint``). No error holds anything secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from coterie.crypto import threshold
from coterie.crypto.ckks import PublicKey, SecretKey
from coterie.crypto.keys import public_key
from coterie.crypto.roster import signing_key, verify_key
from coterie.protocol.errors import DecodeError, PeerError
from coterie.protocol.messages import bundle, unbundle
from coterie.protocol.party import Cost, To, from_hub, on
from coterie.protocols.key_centre import Granted, Keyed, KeyHolder
from coterie.protocols.threshold_asked import announced, asked
from coterie.protocols.threshold_dealt import held_by_dealer, terms_by_dealer
from coterie.protocols.threshold_kept import Held, JointSecrets, Making, Terms
from coterie.protocols.threshold_parts import (
    DIGEST_BYTES,
    SEED_BYTES,
    SIGNATURE_BYTES,
    Announce,
    Begin,
    Committed,
    Complete,
    Decrypt,
    Endorsed,
    Evaluate,
    Evaluated,
    Exchange,
    Joint,
    JointKey,
    Known,
    Lacking,
    Lacks,
    OfKey,
    Partials,
    Pass,
    Passed,
    Piece,
    Present,
    Reveal,
    Revealed,
    common_seed,
    endorsement,
    group,
    lines,
    text,
)


def joint_of(party: Any, name: str) -> Joint:
    """The declaration of a key. Raises PeerError for one that is not declared."""
    for joint in party.joints():
        if joint.name == name:
            return joint  # type: ignore[no-any-return]
    raise PeerError(f"{party.name} knows of no joint key {name!r:.40}")


def terms_of(party: Keyed[Any, Any], name: str) -> Terms:
    """Who holds the key now, as this party was told. Raises PeerError before it was."""
    secrets: JointSecrets = party.secret.joint  # type: ignore[attr-defined]
    if name not in secrets.terms:
        raise PeerError(f"not provided with keys yet: {party.name} knows no joint key {name!r:.40}")
    return secrets.terms[name]


def group_of(party: Any, name: str) -> threshold.Group:
    """The group that holds the key now."""
    terms = terms_of(party, name)
    return group(party.common, joint_of(party, name), terms.number, terms.holders, terms.summands, terms.label)


def learn(party: Any, name: str, terms: Terms) -> None:
    """Know this key from now on, and no older one of the name."""
    party.secret.joint.terms[name] = terms
    keys = party.secret.keys
    keys.public = {known: key for known, key in keys.public.items() if known.split(" ")[0] != name}
    keys.public[name] = terms.public


def check_endorsed(party: Any, joint: Joint, terms: Terms, signed: bytes) -> None:
    """Raises PeerError unless these may hold the key, and all of them have signed it."""
    holders = terms.holders
    joint.checked(holders, party.common.roster)
    if len(signed) != SIGNATURE_BYTES * len(holders):
        raise PeerError(f"{len(signed)} bytes are not the signatures of {len(holders)} holders")
    fields = endorsement(party.common, joint.name, terms.number, holders, terms.summands, terms.public)
    for i, name in enumerate(holders):
        verify_key(party.common, name).verify(signed[SIGNATURE_BYTES * i :][:SIGNATURE_BYTES], *fields)
    key = public_key(terms.public)
    wanted = group(party.common, joint, terms.number, holders, terms.summands).space.identity
    if not isinstance(key, PublicKey) or key.emulated != party.common.emulated or key.arrays.space.identity != wanted:
        raise PeerError(f"{key!r} is no joint key {joint.name!r} of this federation")


def _cost(party: Any, msg: Any) -> Cost:
    """The nominal work of what a holder is asked for. Raises PeerError for a key or holders that cannot be."""
    secrets: JointSecrets = party.secret.joint
    joint, made, held = joint_of(party, msg.key), secrets.making.get(msg.key), secrets.held.get(msg.key)
    if isinstance(msg, Begin | Pass):
        holders = lines(msg.holders)
        joint.checked(holders, party.common.roster)
        one = group(party.common, joint, msg.number, holders, len(holders))
        if isinstance(msg, Pass):
            return Cost(crypto_s=one.seconds("handed", holders=len(holders)))
        return Cost(crypto_s=one.seconds("public") + (one.seconds("first") if joint.products else 0.0))
    if isinstance(msg, Decrypt):
        one, sums = group_of(party, msg.key), [held.sums.get(int(n), (0, 1)) for n in msg.numbers] if held else []
        spent = sum(one.seconds("partial", length, holders=one.needed) for _, length in sums)
        if joint.pads:
            spent += sum(one.seconds("c1", length, holders=senders) for senders, length in sums if senders > 1)
        return Cost(crypto_s=spent)
    if made is None:
        return Cost()
    one, count = group(party.common, joint, made.number, made.holders, made.summands), len(made.holders)
    if isinstance(msg, Evaluate):
        return Cost(crypto_s=one.seconds("galois", rows=len(msg.elements)))
    dealing = one.seconds("handed", holders=count) if joint.threshold else 0.0
    second = one.seconds("second") if joint.products else 0.0
    return Cost(crypto_s=one.seconds("joined", holders=count) + dealing + second)


class JointParty(KeyHolder[PublicKey, SecretKey]):
    """A party that uses joint keys, and may hold shares of them. A subclass declares them: ``joints()``."""

    class Secret(Keyed.Secret):
        """joint: what it knows and holds of joint keys."""

        joint: JointSecrets = msgspec.field(default_factory=JointSecrets)

    secret: Secret

    def joints(self) -> tuple[Joint, ...]:
        """All joint keys of the federation; the same at all parties."""
        raise NotImplementedError

    def lasts(self, state: Any, secret: Any) -> None:
        """What was opened. (With emulated keys, which keep nothing secret, a repeated attempt opens it once more.)"""
        super().lasts(state, secret)
        if not self.common.emulated:
            self.secret.joint.accounts = secret.joint.accounts

    # ---- making

    @on(Begin, _cost)
    def begin(self, msg: Begin, src: str) -> Committed:
        """Draw a contribution and commit to it; for a key that is handed over, only wait for pieces."""
        from_hub(self, msg, src)
        joint, holders, sources = joint_of(self, msg.key), lines(msg.holders), lines(msg.sources)
        joint.checked(holders, self.common.roster)
        if self.name not in holders:
            raise PeerError(f"{self.name} is not among the {len(holders)} holders of key {msg.key!r}")
        known, before = self.secret.joint.terms.get(msg.key), self.secret.joint.making.get(msg.key)
        last = max(known.number if known else 0, before.number if before else 0)
        if msg.number <= last:
            raise PeerError(f"making {msg.number} of key {msg.key!r} after {last}")
        if joint.dealer and not sources:
            raise PeerError(f"key {msg.key!r} is dealt by the key centre")
        if sources:
            self._may_pass(joint, sources)
        summands = terms_of(self, msg.key).summands if sources else len(holders)
        made = Making(msg.number, holders, sources, summands, bool(sources))
        self.secret.joint.making[msg.key] = made
        made.own = {
            name: self.secrets(f"joint key {msg.key} seed for {name}", msg.number).bytes(SEED_BYTES)
            for name in holders
            if name != self.name
        }
        if sources:
            return Committed(msg.round, msg.key, msg.number, b"")
        if joint.threshold:
            made.sources = holders
        one = group(self.common, joint, msg.number, holders, summands)
        secret = threshold.secret(one, self.secrets(f"joint key {msg.key} secret", msg.number).bytes)
        first = b""
        if joint.products:
            first, ephemeral = secret.first(self.secrets(f"joint key {msg.key} products", msg.number).bytes)
            made.ephemeral = ephemeral.to_bytes()
        nonce = self.secrets(f"joint key {msg.key} nonce", msg.number).bytes(SEED_BYTES)
        made.secret, made.shown = secret.to_bytes(), bundle([secret.public(), first, nonce])
        return Committed(msg.round, msg.key, msg.number, committed(made.shown))

    @on(Reveal)
    def reveal(self, msg: Reveal, src: str) -> Revealed:
        """Show the contribution, now that all are committed to theirs."""
        made = self._making(msg, src)
        mine = made.holders.index(self.name)
        if made.handed or made.digests or len(msg.digests) != DIGEST_BYTES * len(made.holders):
            raise PeerError(f"{len(msg.digests)} bytes of commitments of {len(made.holders)} holders, or not the first")
        if msg.digests[DIGEST_BYTES * mine :][:DIGEST_BYTES] != committed(made.shown):
            raise PeerError(f"the commitment of {self.name} was changed")
        made.digests = msg.digests
        return Revealed(msg.round, msg.key, msg.number, made.shown)

    @on(Exchange, _cost)
    def exchange(self, msg: Exchange, src: str) -> tuple[To, ...]:
        """Join all parts, sign the joint key, and send the other holders their pieces."""
        made, joint = self._making(msg, src), joint_of(self, msg.key)
        if made.public or not (made.handed or made.digests):
            raise PeerError(f"making {msg.number} of key {msg.key!r} is not at its exchange")
        one, second, pieces = self._new(msg, made), b"", dict[str, bytes]()
        if made.handed:
            made.public = terms_of(self, msg.key).public
        else:
            parts = shown_parts(msg.parts, made.holders, made.digests)
            secret = threshold.Secret.load(one, made.secret)
            made.public = threshold.joined(one, {name: part for name, (part, _) in parts.items()}).to_bytes()
            if joint.products:
                firsts = {name: first for name, (_, first) in parts.items()}
                second = secret.second(threshold.Secret.load(one, made.ephemeral), firsts)
                made.ephemeral = b""
            if made.sources:
                pieces = secret.dealt(self.secrets(f"joint key {msg.key} pieces", msg.number).bytes)
                made.pieces[self.name] = pieces[self.name]
        fields = endorsement(self.common, msg.key, msg.number, made.holders, made.summands, made.public)
        signature = signing_key(self.own).sign(*fields)
        sent = [To(self.common.roster.hub, Endorsed(msg.round, msg.key, msg.number, signature, second))]
        for name, seed in made.own.items():
            sent.append(To(name, Piece(msg.round, msg.key, msg.number, seed, pieces.get(name, b""))))
        return (*sent, *self._whole(msg, made))

    @on(Evaluate, _cost)
    def evaluate(self, msg: Evaluate, src: str) -> Evaluated:
        """This holder's part of the keys for rotations, which only the hub needs. Once: two would show their noise."""
        made, joint = self._making(msg, src), joint_of(self, msg.key)
        if not made.secret or not made.public or made.turned or not joint.products:
            raise PeerError(f"making {msg.number} of key {msg.key!r} is not where rotations are made")
        one = self._new(msg, made)
        if tuple(map(int, msg.elements)) != one.space.elements:
            raise PeerError(f"{len(msg.elements)} automorphisms that {joint.parameters} has no keys for")
        made.turned = True
        secret = threshold.Secret.load(one, made.secret)
        return Evaluated(msg.round, msg.key, msg.number, secret.galois(one.space.elements))

    @on(Pass, _cost)
    def hand_over(self, msg: Pass, src: str) -> tuple[To, ...]:
        """Send the new holders pieces of the share. The share itself is erased when all are told of the new holders."""
        from_hub(self, msg, src)
        joint, holders, sources = joint_of(self, msg.key), lines(msg.holders), lines(msg.sources)
        held = self._held(msg.key)
        joint.checked(holders, self.common.roster)
        self._may_pass(joint, sources)
        if msg.number <= held.number or self.name not in sources or held.passed >= msg.number:
            raise PeerError(f"{self.name} hands over no share of key {msg.key!r} for making {msg.number}")
        held.passed, opened = msg.number, self.secret.joint.answered(msg.key).ciphertexts
        new = group(self.common, joint, msg.number, holders, terms_of(self, msg.key).summands)
        pieces = threshold.Share.load(group_of(self, msg.key), held.share).handed(
            self.name, sources, new, self.secrets(f"joint key {msg.key} pieces", msg.number).bytes
        )
        sent = [To(src, Passed(msg.round, msg.key, msg.number))]
        for name in holders:
            if name != self.name:
                sent.append(To(name, Piece(msg.round, msg.key, msg.number, b"", pieces[name], opened)))
        made = self.secret.joint.making.get(msg.key)
        if self.name in holders and made is not None and made.number == msg.number:
            made.pieces[self.name] = pieces[self.name]
            made.opened = max(made.opened, opened)
            sent += self._whole(msg, made)
        return tuple(sent)

    @on(Piece)
    def take_piece(self, msg: Piece, src: str) -> tuple[To, ...]:
        """Keep what another holder has sent, each thing once."""
        made = self.secret.joint.making.get(msg.key)
        if made is None or made.number != msg.number or made.share:
            raise PeerError(f"a piece of key {msg.key!r:.40}, making {msg.number}, which is not being made")
        if not (msg.seed or msg.piece) or len(msg.seed) not in (0, SEED_BYTES):
            raise PeerError(f"a piece with a seed of {len(msg.seed)} bytes")
        if msg.seed and (src not in made.holders or src in made.seeds):
            raise PeerError(f"a seed from {src}, which is no other holder or has sent one")
        if msg.piece and (src not in made.sources or src in made.pieces):
            raise PeerError(f"a piece from {src}, which hands nothing over or has done so")
        if msg.seed:
            made.seeds[src] = msg.seed
        if msg.piece:
            made.pieces[src], made.opened = msg.piece, max(made.opened, msg.opened)
        return self._whole(msg, made)

    @on(Lacking)
    def lacking(self, msg: Lacking, src: str) -> Lacks:
        """Whose pieces are missing."""
        made = self._making(msg, src)
        return Lacks(msg.round, msg.key, msg.number, text(made.lacks(self.name)))

    @on(JointKey)
    def know(self, msg: JointKey, src: str) -> Known:
        """Use this key from now on, and erase what was held of older ones."""
        from_hub(self, msg, src)
        joint, holders = joint_of(self, msg.key), lines(msg.holders)
        known, made = self.secret.joint.terms.get(msg.key), self.secret.joint.making.get(msg.key)
        if joint.dealer and known is None:
            raise PeerError(f"key {msg.key!r} is dealt by the key centre")
        if known is not None and msg.number <= known.number:
            raise PeerError(f"key {msg.key!r} of making {msg.number} after {known.number}")
        terms = Terms(msg.number, holders, msg.public, msg.summands)
        check_endorsed(self, joint, terms, msg.signatures)
        mine = made is not None and made.number == msg.number
        if self.name in holders and not (mine and made is not None and made.share and made.public == msg.public):
            raise PeerError(f"{self.name} should hold key {msg.key!r}, and has no share of it")
        self.secret.joint.held.pop(msg.key, None)
        if made is not None and made.number <= msg.number:
            del self.secret.joint.making[msg.key]
        if mine and made is not None and self.name in holders:
            self.secret.joint.held[msg.key] = Held(msg.number, holders, made.share, made.seeds)
        learn(self, msg.key, terms)
        if mine and made is not None:  # the noise is sized for all openings under the key
            before = self.secret.joint.answered(msg.key)
            total = max(before.ciphertexts, made.opened)
            self.secret.joint.account(msg.key, threshold.Answered(before.digests, total))
        return Known(msg.round, msg.key, msg.number)

    def granted(self, msg: Granted) -> None:
        """Keep keys from the key centre; of joint ones the share, too."""
        super().granted(msg)
        for joint in self.joints():
            if joint.dealer and (terms := terms_by_dealer(self, joint, msg)) is not None:
                learn(self, joint.name, terms)
                self.secret.joint.making.pop(joint.name, None)
                self.secret.joint.held.pop(joint.name, None)
                if (held := held_by_dealer(self, joint, terms)) is not None:
                    self.secret.joint.held[joint.name] = held

    # ---- opening

    @on(Announce)
    def announce(self, msg: Announce, src: str) -> Present:
        """Say that this holder is there, if these sums may be opened."""
        announced(self, joint_of(self, msg.key), self._current(msg, src), msg)
        return Present(msg.round, msg.key, msg.number)

    @on(Decrypt, _cost)
    def decrypt(self, msg: Decrypt, src: str) -> Partials:
        """Partial decryptions of announced sums, one of a ciphertext, for a set of holders that is fixed."""
        held, joint, among = self._current(msg, src), joint_of(self, msg.key), lines(msg.among)
        one, numbers = group_of(self, msg.key), [int(number) for number in msg.numbers]
        if msg.round != held.round or not numbers or len(set(numbers)) < len(numbers):
            raise PeerError(f"{len(numbers)} sums of round {msg.round}; announced are those of round {held.round}")
        right = set(among) <= set(held.holders) and len(set(among)) == len(among) == one.needed
        if not right or self.name not in among:
            raise PeerError(f"a sum is opened by {one.needed} holders, each once and this one among them")
        share, parts, answered = threshold.Share.load(one, held.share), [], self.secret.joint.answered(msg.key)
        for number, data in zip(numbers, unbundle(msg.ciphers, len(numbers)), strict=True):
            request = asked(self, joint, one, held, number, data)
            tries = held.tries.get(number, 0) + 1
            if tries > joint.tries(len(held.holders)):
                raise PeerError(f"sum {number} of round {msg.round} was opened {tries - 1} times")
            held.tries[number] = tries
            zero = threshold.Zero(self.name, held.seeds)
            part, answered = threshold.partial(one, share, request, self.name, among, zero, answered)
            self.secret.joint.account(msg.key, answered)
            parts.append(part)
        return Partials(msg.round, msg.key, msg.number, bundle(parts))

    # ---- what the handlers share

    def _making(self, msg: OfKey, src: str) -> Making:
        """The making that a message of the hub is about. Raises PeerError for another."""
        from_hub(self, msg, src)
        made = self.secret.joint.making.get(msg.key)
        if made is None or made.number != msg.number:
            raise PeerError(f"making {msg.number} of key {msg.key!r:.40}, which {self.name} has not begun")
        return made

    def _held(self, name: str) -> Held:
        if name not in self.secret.joint.held:
            raise PeerError(f"{self.name} holds no share of key {name!r:.40}")
        return self.secret.joint.held[name]

    def _current(self, msg: OfKey, src: str) -> Held:
        """The share of the key that a message of the hub is about. Raises PeerError for another."""
        from_hub(self, msg, src)
        held = self._held(msg.key)
        if held.number != msg.number:
            raise PeerError(f"key {msg.key!r} of making {msg.number}; {self.name} holds that of {held.number}")
        return held

    def _new(self, msg: OfKey, made: Making) -> threshold.Group:
        """The group whose key is being made."""
        return group(self.common, joint_of(self, msg.key), msg.number, made.holders, made.summands)

    def _may_pass(self, joint: Joint, sources: tuple[str, ...]) -> None:
        """Raises PeerError unless these are as many of the known holders as open a sum."""
        terms = terms_of(self, joint.name)
        needed = joint.needed(len(terms.holders))
        if not set(sources) <= set(terms.holders) or not len(set(sources)) == len(sources) == needed:
            raise PeerError(f"key {joint.name!r} is handed over by {needed} of its holders, each once")

    def _whole(self, msg: OfKey, made: Making) -> tuple[To, ...]:
        """Tell the hub, as soon as the share is whole. A piece that cannot be read is as good as none."""
        if not made.public or made.share or made.lacks(self.name):
            return ()
        one = self._new(msg, made)
        if made.sources:
            try:
                share = threshold.gathered(one, self.name, made.pieces)
            except DecodeError as error:
                del made.pieces[named(made.sources, error)]
                return ()
        else:
            share = threshold.Secret.load(one, made.secret).share()
        made.share = share.to_bytes()
        made.seeds = {name: common_seed(self.name, name, made.own[name], seed) for name, seed in made.seeds.items()}
        made.pieces, made.own = {}, {}
        return (To(self.common.roster.hub, Complete(msg.round, msg.key, msg.number)),)


def named(names: Sequence[str], error: DecodeError) -> str:
    """Whose part an error of ``crypto.threshold`` is about. Raises it again if it names nobody."""
    for name in names:
        if str(error).startswith(f"{name}: "):
            return name
    raise error


def committed(shown: bytes) -> bytes:
    """The commitment to what a holder will show."""
    part, first, nonce = unbundle(shown, 3)
    return threshold.commitment(bundle([part, first]), nonce)


def shown_parts(parts: bytes, holders: Sequence[str], digests: bytes) -> Mapping[str, tuple[bytes, bytes]]:
    """By holder what it has shown: its public part, and that for products. Raises PeerError unless it was committed."""
    found = unbundle(parts, 3 * len(holders))
    shown = {}
    for i, name in enumerate(holders):
        part, first, nonce = found[3 * i : 3 * i + 3]
        threshold.revealed(digests[DIGEST_BYTES * i :][:DIGEST_BYTES], bundle([part, first]), nonce)
        shown[name] = part, first
    return shown
