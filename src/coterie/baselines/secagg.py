"""Secure aggregation: Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", ACM CCS
2017.

FedAvg, of which the server sees the sums alone. The numbers of rounds are those of the paper's figure 4.

    server  --Enrol-->    client  --Enrolled-->   server     rounds 0 and 1: a key for pads, and shares of two secrets
    server  --Collect-->  client  --Collected-->  server     round 2: the trained model, weighted by samples, under pads
    server  --Confirm-->  client  --Confirmed-->  server     round 3: a signature over who is in the sum
    server  --Unmask-->   client  --Unmasked-->   server     round 4: shares of the pads that are left

Client u adds PRG(b_u) and, with each other client v, +-PRG(s_uv) to its vector (``crypto/marks.py``). t of the n
clients that a round asks open b_u if u is in the sum, or else the key of which all s_uv follow. **Never both**: a
client tells shares for one list only, in all attempts of a round, which t clients have signed. Pads follow from the
global model, too: clients that are sent different ones make no sum (Pasquini, Francati, Ateniese, "Eluding secure
aggregation in federated learning via model inconsistency", CCS 2022).

**A round is secure alone, not two together**: docs/comparisons.md has that, and what each party sees. A round with
fewer than t clients in any step is skipped.

Decided here: parties' keys for sealing and signing are those of the roster, so the paper's rounds 0 and 1 are one
exchange. By a signed hash of b_u the server notices a wrong share, and skips the round. Nobody can bound a single
client's numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

import coterie.method as fl
from coterie.crypto import marks, shared_seed
from coterie.crypto.packing import Lanes
from coterie.crypto.roster import signing_key, verify_key
from coterie.crypto.signing import SIGNATURE_BYTES, OpeningKey, SealingKey, digest

FEWEST = 3
"""Clients in a sum: of two, each could take its own off."""
LANES = Lanes(fraction_bits=20, value_bits=52, guard_bits=10)
"""A weight times the client's samples is rounded to 2^-20 and lies within 2^31; a sum has 1,024 of them."""
PAD_S, AGREE_S, SEAL_S = 3e-9, 1e-4, 3e-4
"""Nominal seconds of a byte of pad, of a key agreement, and of a sealed share."""


@fl.settings
class SecAggConfig(fl.Averaging):
    """threshold: more than this share of the n clients that a round asks must answer in each step, or it is skipped. So
    many, t, can open a client's vector together with the server; 2t - n can with one that deviates.
    """

    threshold: Annotated[float, fl.Meta(ge=0.5, lt=1)] = 2 / 3

    def needed(self, asked: int) -> int:
        """t of so many clients."""
        return max(FEWEST, int(self.threshold * asked + 1e-9) + 1)


@fl.message(src="server", dst="client")
class Enrol(fl.OfRound, frozen=True):
    """names: of all clients that this round asks, one a line."""

    names: str


@fl.message(src="client", dst="server", tells=())
class Enrolled(fl.OfRound, frozen=True):
    """credential: of ``Credential``.  shares: of its two secrets, sealed for the others in the order of names."""

    credential: bytes
    shares: fl.Bundle


@fl.message(src="server", dst="client")
class Collect(fl.OfModel, frozen=True):
    """Train on the global model. members: those that enrolled, one a line.  credentials: of all.  shares: sealed for
    the recipient.
    """

    members: str
    credentials: bytes
    shares: fl.Bundle


@fl.message(src="client", dst="server", tells=(fl.FromTraining("trained model and number of samples, in sums"),))
class Collected(fl.OfRound, frozen=True):
    """padded: (d + 1,) words: samples times trained model, and samples."""

    padded: fl.Integers


@fl.message(src="server", dst="client")
class Confirm(fl.OfRound, frozen=True):
    """names: of those in the sum, one a line."""

    names: str


@fl.message(src="client", dst="server", tells=())
class Confirmed(fl.OfRound, frozen=True):
    proof: bytes


@fl.message(src="server", dst="client")
class Unmask(fl.OfRound, frozen=True):
    """names: as confirmed.  signers: those that confirmed, one a line.  proofs: the signature of each."""

    names: str
    signers: str
    proofs: bytes


@fl.message(src="client", dst="server", tells=())
class Unmasked(fl.OfRound, frozen=True):
    """shares: for each member one share, of b if it is in the sum and else of its key; empty if it got a wrong one."""

    shares: fl.Bundle


@dataclass(frozen=True)
class Credential:
    """key: public, for one round's pads.  mark: the hash of b.  proof: a signature over both."""

    key: bytes
    mark: bytes
    proof: bytes

    SIZE = 32 + 32 + SIGNATURE_BYTES

    @classmethod
    def load(cls, data: bytes) -> Credential:
        if len(data) != cls.SIZE:
            raise fl.DecodeError(f"{len(data)} bytes are no credential of {cls.SIZE}")
        return cls(data[:32], data[32:64], data[64:])

    def to_bytes(self) -> bytes:
        return self.key + self.mark + self.proof


def round_of(common: fl.Common, r: int, names: str) -> bytes:
    return digest("coterie/secagg/1", common.roster.session, r, names)


def credential_fields(of: bytes, key: bytes, mark: bytes) -> tuple[str, bytes, bytes, bytes]:
    return "secagg credential", of, key, mark


def pads_of(of: bytes, weights: fl.Vector) -> bytes:
    # pads of clients that were sent different models do not cancel
    return digest("coterie/secagg pads/1", of, weights.tobytes())


def mark_of(seed: bytes) -> bytes:
    return digest("coterie/secagg mark/1", seed)


def lines(text: str) -> tuple[str, ...]:
    """Raises PeerError for a name that stands twice."""
    names = tuple(text.split("\n"))
    if len({*names}) < len(names):
        raise fl.PeerError("a list that names a client twice")
    return names


def split_bytes(data: bytes, count: int, size: int) -> list[bytes]:
    """Raises PeerError for another length."""
    if len(data) != count * size:
        raise fl.PeerError(f"{len(data)} bytes, where {count} parts have {size} each")
    return [data[at : at + size] for at in range(0, len(data), size)]


def checked(
    common: fl.Common, of: bytes, members: Sequence[str], credentials: Iterable[Credential]
) -> dict[str, Credential]:
    """Raises PeerError for a forged credential."""
    found = dict(zip(members, credentials, strict=True))
    for name, one in found.items():
        verify_key(common, name).verify(one.proof, *credential_fields(of, one.key, one.mark))
    return found


class Client(fl.Client):
    class Secret(fl.SecretStruct):
        """SECRET, of one round. round: the last one that it enrolled for.  names: whom that asks, one a line.
        key: 32 bytes, of the pads with others.  seed: b.  own: its shares of both.  members: those that enrolled, once
        it has sent its vector.  held: by the others, the sealed shares.  sum: the list that it confirmed.
        signed: round, names and sum of the last list that it confirmed in any attempt.
        """

        round: int = 0
        names: str = ""
        key: bytes = b""
        seed: bytes = b""
        own: bytes = b""
        members: tuple[str, ...] = ()
        held: dict[str, bytes] = fl.field(default_factory=dict)
        sum: str = ""
        told: bool = False
        signed: tuple[int, str, str] = (0, "", "")

    secret: Secret
    config: SecAggConfig
    LASTS = ("signed",)  # with another sum of the round, holders would tell both shares of one client

    def enrol_cost(self, msg: Enrol) -> fl.Cost:
        return fl.Cost(crypto_s=SEAL_S * min(msg.names.count("\n"), len(self.clients)))

    @fl.on(Enrol, enrol_cost, answers=Enrolled)
    def enrol(self, msg: Enrol, src: str) -> Enrolled:
        """Rounds 0 and 1, once a round."""
        r, names = msg.round, lines(msg.names)
        before, asked, _ = self.secret.signed
        if r <= self.secret.round or r < before or (r == before and msg.names != asked):
            raise fl.PeerError(f"asked to enrol for round {r} after round {max(self.secret.round, before)}")
        self._check_asked(r, names)
        of, source = round_of(self.common, r, msg.names), self.secrets("shares of pads", r)
        needed = self.config.needed(len(names))
        (key, seed), both = shared_seed.shared(names, needed, source.bytes, 2)
        public, mark = OpeningKey(key).public.to_bytes(), mark_of(seed)
        proof = signing_key(self.own).sign(*credential_fields(of, public, mark))
        sealed = [
            SealingKey(self.common.roster.by_name[name].sealing_key).seal(both[name], self.name, name, of)
            for name in names
            if name != self.name
        ]
        new = {"round": r, "names": msg.names, "key": key, "seed": seed, "own": both[self.name], "members": ()}
        self.secret = fl.changed(self.secret, **new, held={}, sum="", told=False)  # the rest stays
        return Enrolled(r, Credential(public, mark, proof).to_bytes(), fl.bundle(sealed))

    def _check_asked(self, r: int, names: Sequence[str]) -> None:
        expected = fl.sample_size(len(fl.joined(self.clients, self.config, r)), self.config.participation)
        roster = self.common.roster.by_name
        strangers = [name for name in names if name not in roster or roster[name].role != self.role]
        if strangers or self.name not in names or len(names) != expected:
            raise fl.PeerError(f"asked to enrol among {len(names)} names, {len(strangers)} of them no clients")

    def collect_cost(self, msg: Collect) -> fl.Cost:
        others = min(msg.members.count("\n"), len(self.clients))
        pads_s = PAD_S * 8 * (self.spec.size + 1) * (others + 1)
        return replace(fl.training(self, msg), crypto_s=pads_s + 2 * AGREE_S * others)

    @fl.on(Collect, collect_cost, answers=Collected)
    def collect(self, msg: Collect, src: str) -> fl.Work[Collected]:
        """Round 2. Once a round."""
        secret, members = self.secret, lines(msg.members)
        if msg.round != secret.round or secret.members:
            raise fl.PeerError(f"asked for a vector of round {msg.round}, which it has not enrolled for, or has sent")
        if not {self.name} <= {*members} <= {*lines(secret.names)} or len(members) < self._needed():
            raise fl.PeerError(f"{len(members)} members of a round that needs {self._needed()} of those it asked")
        of = round_of(self.common, msg.round, secret.names)
        parts = split_bytes(msg.credentials, len(members), Credential.SIZE)
        found = checked(self.common, of, members, map(Credential.load, parts))
        others = [name for name in members if name != self.name]
        held = dict(zip(others, fl.unbundle(msg.shares, len(others)), strict=True))
        fitted: fl.Fitted = yield from self.trained(self.model(msg), msg.round)
        x = np.append(fitted.weights.astype(np.float64) * fitted.samples, float(fitted.samples) / (1 << 20))
        try:
            words = LANES.quantise(x).view(np.uint64)
        except fl.CapacityError as error:
            raise fl.PeerError(f"{self.name}: its trained model does not fit a sum: {error}") from None
        keys = {name: SealingKey(found[name].key) for name in others}
        pads = pads_of(of, msg.weights)
        y = marks.masked(words, secret.seed, OpeningKey(secret.key), self.name, keys, pads)
        secret.members, secret.held = members, held
        return Collected(msg.round, y.view(np.int64))

    def _needed(self) -> int:
        return self.config.needed(len(lines(self.secret.names)))

    @fl.on(Confirm, answers=Confirmed)
    def confirm(self, msg: Confirm, src: str) -> Confirmed:
        """Round 3. One list a round."""
        secret, names = self.secret, lines(msg.names)
        if msg.round != secret.round or not {self.name} <= {*names} <= {*secret.members}:
            raise fl.PeerError(f"a sum of {len(names)} in round {msg.round}, which is not one of its members")
        one = msg.round, secret.names, msg.names
        if secret.signed[0] == msg.round and secret.signed != one:
            raise fl.PeerError(f"a second sum in round {msg.round}")
        if len(names) < self._needed():
            raise fl.PeerError(f"a sum of {len(names)}, where {self._needed()} are needed")
        secret.sum, secret.signed = msg.names, one
        return Confirmed(msg.round, signing_key(self.own).sign(*self._sum(self.name, msg.names)))

    def _sum(self, signer: str, names: str) -> tuple[str, bytes, str, str]:
        return sum_fields(round_of(self.common, self.secret.round, self.secret.names), signer, names)

    def unmask_cost(self, msg: Unmask) -> fl.Cost:
        return fl.Cost(crypto_s=(AGREE_S + SEAL_S) * min(msg.names.count("\n") + 1, len(self.clients)))

    @fl.on(Unmask, unmask_cost, answers=Unmasked)
    def unmask(self, msg: Unmask, src: str) -> Unmasked:
        """Round 4, once a round."""
        secret, signers = self.secret, lines(msg.signers)
        if msg.round != secret.round or not secret.sum or msg.names != secret.sum:
            raise fl.PeerError(f"asked for shares of a sum of round {msg.round} that it has not confirmed")
        if secret.told:
            raise fl.PeerError(f"asked for a second time for shares of round {msg.round}")
        inside = lines(secret.sum)
        if not {*signers} <= {*inside} or len(signers) < self._needed():
            raise fl.PeerError(f"{len(signers)} have signed the sum, where {self._needed()} are needed")
        for name, proof in zip(signers, split_bytes(msg.proofs, len(signers), SIGNATURE_BYTES), strict=True):
            verify_key(self.common, name).verify(proof, *self._sum(name, secret.sum))
        given = [self._share(name, of_seed=name in inside) for name in secret.members]
        secret.told, secret.key, secret.seed, secret.own, secret.held = True, b"", b"", b"", {}
        return Unmasked(msg.round, fl.bundle(given))

    def _share(self, name: str, *, of_seed: bool) -> bytes:
        """Empty if what it was sent does not open."""
        both = self.secret.own if name == self.name else b""
        if name != self.name and self.own.identity is not None:
            of = round_of(self.common, self.secret.round, self.secret.names)
            with suppress(fl.PeerError):
                key = OpeningKey.load(self.own.identity.opening)
                both = key.open(self.secret.held[name], name, self.name, of)
        at = shared_seed.SHARE_BYTES if of_seed else 0
        return both[at : at + shared_seed.SHARE_BYTES]


def sum_fields(of: bytes, signer: str, names: str) -> tuple[str, bytes, str, str]:
    return "secagg sum", of, signer, names


class Server(fl.Server):
    config: SecAggConfig

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        asked = tuple(fl.asked_in(self.clients, self.config, self.randomness.seed, r))
        try:
            inside = yield from self._summed(r, asked)
        except (fl.NoAnswerError, fl.PeerError) as error:
            return {"participants": 0, "asked": len(asked), "skipped": str(error)}
        return {"participants": inside, "asked": len(asked)}

    def _summed(self, r: int, asked: Sequence[str]) -> fl.Steps[int]:
        told, size = "\n".join(asked), self.spec.size + 1
        of, shares = round_of(self.common, r, told), dict[str, list[bytes]]()
        credentials = dict[str, Credential]()

        def enrolled(name: str, answer: Enrolled) -> None:
            one = Credential.load(answer.credential)
            sealed = fl.unbundle(answer.shares, len(asked) - 1)
            checked(self.common, of, [name], [one])
            SealingKey(one.key).seal(b"", name, name)  # else nobody could make its pads with this one
            credentials[name], shares[name] = one, sealed

        yield from self._step(dict.fromkeys(asked, Enrol(r, told)), Enrolled, enrolled, asked)
        members = tuple(name for name in asked if name in credentials)

        def collect(name: str) -> Collect:
            sealed = [
                shares[other][[one for one in asked if one != other].index(name)] for other in members if other != name
            ]
            every = b"".join(credentials[other].to_bytes() for other in members)
            weights, digest = self.state.weights, self.spec.digest
            return Collect(r, digest, weights, "\n".join(members), every, fl.bundle(sealed))

        total, inside = np.zeros(size, np.uint64), list[str]()

        def collected(name: str, answer: Collected) -> None:
            nonlocal total
            if answer.padded.shape != (size,):
                raise fl.PeerError(f"{name}: {len(answer.padded)} words; expected {size}")
            total = total + answer.padded.view(np.uint64)
            inside.append(name)

        requests = fl.LazyMapping(members, collect, held=1)
        yield from self._step(requests, Collected, collected, asked)
        names, proofs = "\n".join(name for name in members if name in inside), dict[str, bytes]()

        def confirmed(name: str, answer: Confirmed) -> None:
            verify_key(self.common, name).verify(answer.proof, *sum_fields(of, name, names))
            proofs[name] = answer.proof

        yield from self._step(dict.fromkeys(lines(names), Confirm(r, names)), Confirmed, confirmed, asked)
        given = {member: dict[str, bytes]() for member in members}

        def unmasked(name: str, answer: Unmasked) -> None:
            for member, share in zip(members, fl.unbundle(answer.shares, len(members)), strict=True):
                if len(share) == shared_seed.SHARE_BYTES:
                    given[member][name] = share

        request = Unmask(r, names, "\n".join(proofs), b"".join(proofs.values()))
        yield from self._step(dict.fromkeys(proofs, request), Unmasked, unmasked, asked)
        opened = self._opened(asked, credentials, {*inside}, given)
        pads = PAD_S * 8 * size * len(inside) * (1 + len(members) - len(inside))
        yield from fl.spend(fl.Cost(crypto_s=pads))
        gone = {name: OpeningKey(opened[name]) for name in members if name not in inside}
        there = {name: SealingKey(credentials[name].key) for name in inside}
        seeds, named = [opened[name] for name in inside], pads_of(of, self.state.weights)
        self._move(r, marks.unmasked(total, seeds, gone, there, named), len(inside))
        return len(inside)

    def _step(
        self, requests: Mapping[str, fl.Message], reply: type[Any], fold: Any, asked: Sequence[str]
    ) -> fl.Steps[None]:
        """Raises NoAnswerError if fewer than t answer."""
        answers = yield from fl.ask_all(self, requests, reply, fold)
        needed = self.config.needed(len(asked))
        if len(answers.got) < needed:
            raise fl.NoAnswerError(f"{len(answers.got)} of {len(asked)} answered in step {reply.__name__} of {needed}")

    def _opened(
        self,
        asked: Sequence[str],
        credentials: Mapping[str, Credential],
        inside: set[str],
        given: Mapping[str, Mapping[str, bytes]],
    ) -> dict[str, bytes]:
        """By member b or, outside the sum, its key. Raises PeerError if the shares give another one."""
        needed, found = self.config.needed(len(asked)), dict[str, bytes]()
        for name, shares in given.items():
            if len(shares) < needed:
                raise fl.PeerError(f"{len(shares)} shares of a secret of {name}, of which {needed} are needed")
            found[name] = shared_seed.joined(asked, dict(list(shares.items())[:needed]))
            one = credentials[name]
            if not (mark_of(found[name]) == one.mark if name in inside else _public(found[name]) == one.key):
                raise fl.PeerError(f"the shares of {name} give another secret: it or a holder lied")
        return found

    def _move(self, r: int, total: fl.Words64, count: int) -> None:
        """Raises PeerError for a sum that no honest clients have."""
        values = total.view(np.int64)
        samples = int(values[-1])
        if not count <= samples <= count * fl.MOST_SAMPLES:
            raise fl.PeerError(f"a sum of {samples} samples of {count} clients: one of them lied")
        gather, mean = self.gather(), LANES.dequantise(values[:-1]) / samples
        fl.check_model(self.spec, self.spec.digest, mean.astype(np.float32))
        gather.means[0].take(mean, samples)
        self.state.weights = gather.moved(self.state.weights, step=self.config.server_step(r))


def assumes(config: SecAggConfig, mode: str) -> str:
    # 2 threshold - 1 of n is below 2t - n for every n
    few = int(100 * (2 * config.threshold - 1) + 1e-9) / 100
    some = f"a share of {few:.2f} is few enough" if few else "none is few enough"
    return (
        "of the n clients that a round asks fewer than 2t - n help the server, where t is the least number above a "
        f"share of {config.threshold:.4g} of n ({some}); {fl.two_others('clients')}; the server follows the protocol; "
        "no two rounds of nearly the same model differ in one client alone, whose model the difference would show"
    )


def _public(key: bytes) -> bytes:
    return OpeningKey(key).public.to_bytes()


def check(config: SecAggConfig, common: fl.Common) -> None:
    """Raises UserError for rounds, at first or when all have joined, with too few clients for a sum, or too many for
    its words.
    """
    for clients in (fl.joined(common.clients, config, 1), common.clients):
        asked = fl.sample_size(len(clients), config.participation)
        if not FEWEST <= config.needed(asked) <= asked <= LANES.max_terms:
            raise fl.UserError(
                f"secagg adds up {FEWEST} to {LANES.max_terms} clients a round, not {asked} with threshold="
                f"{config.threshold:g}: change participation or the number of clients"
            )


SYSTEM = fl.system(
    "secagg",
    SecAggConfig,
    Server,
    Client,
    described_in=__name__,
    learns={
        "server": "the sum of the models weighted by samples, and of the samples, of each round, and who is in it, by "
        "name; so of two rounds that differ in one client, its samples, and its model if both sent nearly the same; "
        "from one round no client's model",
        "client": "the global model of every round that it takes part in, and who else does, by name",
    },
    assumes=assumes,
    check=check,
    encrypted=True,
)
