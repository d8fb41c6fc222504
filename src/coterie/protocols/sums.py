"""Sums of models that a server adds up and does not see: key, pads, key centre and noise in one object, ``Sums``.

    MEAN = Sums("mean", least=3)

    class Client(SumClient):     sums = MEAN      cipher = yield from MEAN.seal(self, weights, r)
    class Server(SumServer):     sums = MEAN      box = self.box(r); box.take(name, cipher); yield from box.mean()

**Noise.** Every client adds a share to the whole numbers that it seals: its change from the last mean that it has read,
or the initial model, on the grid of ``dp/distributed.py``. Buffers stay with their client. A sum may lack the shares of
``missing`` clients, which are absent or collude.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

import coterie.protocol.core as fl
from coterie.crypto.ckks import PublicKey, SecretKey, keygen
from coterie.crypto.ckks_parameters import named
from coterie.crypto.vector import sum_ciphers
from coterie.dp.distributed import Distributed
from coterie.dp.ledger import Release
from coterie.dp.uploads import eligible
from coterie.protocols import noise, threshold
from coterie.protocols.key_centre import KEY_CENTRE, HeldKeys, KeyCentre, Keys, Pair
from coterie.protocols.local_training import LocalTraining, ask_round, fit, refuse_unused, sample_size

OBSERVERS, COALITION = ("server", "public", "other clients"), ("server with a client",)
"""Who sees a sum; and who opens a single vector, if every client has the key."""
CENTRE_SET, SHARED_SET = "ckks-4096-add", "threshold-8192-sum"
"""Parameters of keys=centre and keys=threshold."""
REACH = 64.0
"""Of a value in a vector."""
VECTOR = "model, in sums"


def mechanism_of(config: Any, length: int) -> Distributed:
    """Of sums of so many coordinates."""
    # A client that reads the mean knows its own share, which does not count beside the missing.
    mechanism: Distributed = config.on_sums(length, read_by_makers=True)
    return mechanism


def makers(config: Any, clients: int) -> int:
    """Clients that add noise to a round's sum."""
    return sample_size(clients, config.participation)


def check_noise(config: Any, common: fl.Common) -> None:
    """Raises UserError for impossible noise; warns of a budget for no round."""
    parties, mechanism = makers(config, len(common.clients)), mechanism_of(config, len(eligible(common.spec)))
    noise.check_sums(mechanism, parties, "clients", 0.0)
    centre, clients = config.keys == "centre", common.clients
    error = named(CENTRE_SET).error(parties) if centre else noise.error_of_sums(SHARED_SET, clients)
    noise.check_sums(mechanism, parties, "clients", error * mechanism.largest_alone(parties) / REACH)
    noise.warn_of_silence(config.budget(), mechanism.release())


class Sealed(fl.State, frozen=True):
    """of: 16 bytes that name a vector, and what it is the change from."""

    round: int
    of: bytes


class Sealing(fl.SecretStruct):
    """SECRET. weights: (d,) the last mean, with this party's own buffers; None for the initial model.

    sealed: the vectors that have left this client.
    """

    weights: fl.Vector | None = None
    sealed: list[Sealed] = fl.field(default_factory=list)


class SumNoise(fl.Component):
    secret: Sealing
    LASTS = ("sealed",)

    @property
    def mechanism(self) -> Distributed:
        return mechanism_of(self.party.config, len(eligible(self.party.spec)))

    @property
    def makers(self) -> int:
        return makers(self.party.config, len(self.party.common.clients))

    @property
    def unit(self) -> float:
        return self.mechanism.largest_alone(self.makers) / REACH

    @property
    def weights(self) -> fl.Vector:
        initial: fl.Vector = self.party.common.initial
        return initial if self.secret.weights is None else self.secret.weights

    def check_budget(self, r: int) -> None:
        """Raises PeerError if the budget has no room for a vector, and none of round r was sealed."""
        sealed = self.secret.sealed
        if not self._affords() and not (sealed and sealed[-1].round == r):
            raise fl.PeerError(f"{self.party.name} has spent its privacy budget, and seals nothing in round {r}")

    def _affords(self) -> bool:
        config = self.party.config
        return not config.noisy or noise.affords(config.budget(), self.mechanism.release(), len(self.secret.sealed))

    def record(self, values: fl.Vector, r: int) -> bytes:
        """Count this vector, and return its name. Raises PeerError beyond the budget."""
        one = Sealed(r, hashlib.blake2b(self.weights.tobytes() + np.asarray(values).tobytes(), digest_size=16).digest())
        if one not in self.secret.sealed:
            if not self._affords():
                raise fl.PeerError(f"{self.party.name} has spent its privacy budget: another vector of round {r}")
            self.secret.sealed = [*self.secret.sealed, one]
        return one.of

    def added(self, name: str, values: fl.Vector, r: int, of: bytes) -> fl.Doubles:
        """(p,) the numbers of these (d,) values with this client's share of noise, in units of the cipher.

        of: names the values. Raises PeerError if another sum of the round's vectors was opened.
        """
        party, mechanism, places = self.party, self.mechanism, eligible(self.party.spec)
        turned = noise.rotation(party.common.roster.session, r)
        before, self.secret.weights = self.weights, np.where(party.spec.buffers, values, self.weights)
        numbers = mechanism.on_grid((values - before)[places], turned, party.kept("rounding", of, r))
        data = numbers.tobytes()
        secrets = party.joint.noise(name, r, data) if party.config.padded else party.kept("noise on a sum", data, r)
        return (numbers + mechanism.share(self.makers, secrets)) / self.unit

    def moved(self, opened: ArrayLike, terms: int, r: int) -> fl.Vector:
        """(d,) float32, the last mean moved by the mean change of so many clients. Raises PeerError as ``mean_change``.

        opened: (p,) their sum, in units of the cipher.
        """
        if terms < self.makers - self.party.config.missing:
            raise fl.PeerError(f"a sum of {terms} vectors: of {self.makers} shares of noise it lacks too many")
        weights, turned = self.weights.astype(np.float64), noise.rotation(self.party.common.roster.session, r)
        change = noise.mean_change(self.mechanism, np.asarray(opened) * self.unit, terms, turned)
        weights[eligible(self.party.spec)] += change
        return self.taken(weights)

    def taken(self, weights: ArrayLike) -> fl.Vector:
        """(d,) float32 this mean, which the next change starts from, with this party's own buffers."""
        self.secret.weights = np.where(self.party.spec.buffers, self.weights, weights).astype(np.float32)
        return self.secret.weights

    def releases(self) -> Sequence[Release]:
        config, sealed = self.party.config, self.secret.sealed
        if not config.noisy:
            return [Release(VECTOR, round=one.round) for one in sealed]
        found = [self.mechanism.release(one.round, OBSERVERS) for one in sealed]
        if config.keys == "centre":
            found += [self.mechanism.release_alone(VECTOR, self.makers, one.round, COALITION) for one in sealed]
        return found


SERVER, CLIENT = "server", "client"


@dataclass(frozen=True)
class SumKeys(noise.NoiseSettings, LocalTraining):
    """Settings of local training, of the key, and of noise on the sums: none without ``noise`` and ``epsilon``.

    keys: who can open: any client, by the key that it was dealt (centre), or only all of them together (threshold).
    pads: with keys=threshold, clients send under joint pads, so that none of them chooses a whole ciphertext.
    """

    keys: Literal["centre", "threshold"] = "centre"
    pads: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unused(self, "sums without noise", not self.noisy, "clip", "private_rounds", "dp_delta", "missing")
        if self.noisy and (self.founders or (self.keys == "threshold" and not self.pads)):
            raise fl.UserError(
                "noise on sums needs pads, and clients that take part from the start: leave pads=false and founders out"
            )
        self.budget()

    @property
    def noisy(self) -> bool:
        return self.noise is not None or self.epsilon is not None

    @property
    def padded(self) -> bool:
        return self.keys == "threshold" and self.pads


class Sums:
    """Sums of the clients' vectors, as long as the model, and their mean. name: of the key.  least: vectors in it."""

    def __init__(self, name: str, *, least: int = 3) -> None:
        self.name, self.least = name, least

    def declared(self, party: Any) -> tuple[threshold.Joint, ...]:
        if party.config.keys == "centre":
            return ()
        limits: dict[str, Any] = {"least": self.least, "fewest": self.least, "pads": party.config.pads}
        if party.config.noisy:
            clients = len(party.common.clients)
            limits["fewest"] = max(self.least, makers(party.config, clients) - party.config.missing)
            limits["missing"] = clients - limits["fewest"]
        return (threshold.Joint(self.name, SHARED_SET, roles=(CLIENT,), **limits),)

    def check(self, config: SumKeys, common: fl.Common) -> None:
        if config.noisy:
            check_noise(config, common)

    def ledger(self, federation: fl.Federation) -> Mapping[str, Sequence[Release]]:
        """For ``System.ledger``: all vectors that clients have sealed.

        With keys=threshold noise protects against all, also a client that reads the mean, if no more than ``missing``
        others are absent or tell their share; with keys=centre the server must also follow the protocol and collude
        with nobody.
        """
        return {client.name: client.noise.releases() for client in federation.of_role(CLIENT)}

    def assumes(self, config: SumKeys, mode: str) -> str:
        shared = (
            "no client helps the server, since all clients share one secret key; the key centre is honest at set-up; "
        )
        keys = shared if config.keys == "centre" else ""
        return f"{keys}{fl.two_others('clients')}; all parties follow the protocol"

    def length(self, party: Any) -> int:
        return len(eligible(party.spec)) if party.config.noisy else int(party.spec.size)

    def parties(
        self, server: fl.PartyFactory, client: fl.PartyFactory
    ) -> Callable[[SumKeys], Mapping[str, fl.PartyFactory | None]]:
        def centre(own: fl.Own, common: fl.Common, config: SumKeys) -> KeyCentre:
            return KeyCentre(own, common, [Pair(self.name, CLIENT, partial(keygen, CENTRE_SET))])

        return lambda config: {SERVER: server, KEY_CENTRE: centre if config.keys == "centre" else None, CLIENT: client}

    # ---- at a client

    def cost(self, client: Any, msg: fl.Message) -> fl.Cost:
        crypto_s = client.keys.public(self.name).nominal_seconds_encrypt(self.length(client))
        return fl.Cost(client.samples * client.epochs, client.spec.flops_per_sample, crypto_s)

    def seal(self, client: Any, values: fl.Vector, r: int) -> fl.Work[bytes]:
        """(d,) floats, encrypted for the sum of round r: one vector a round. Raises PeerError beyond the privacy
        budget.
        """
        key: Any
        of = client.noise.record(values, r)
        if client.config.noisy:
            values = client.noise.added(self.name, values, r, of)
        if client.config.keys == "centre":
            key = client.keys.own(self.name)
        elif client.config.padded:
            key = threshold.padding(client, self.name, r)
        else:
            return threshold.vouched(client, self.name, (yield fl.Encrypt(client.keys.public(self.name), values)), r)
        return bytes((yield fl.Encrypt(key, values)).to_bytes())

    def read(
        self, client: Any, mean: fl.Vector | None, cipher: bytes | None, count: int, r: int | None = None
    ) -> fl.Work[fl.Vector]:
        """(d,) float32 the mean that ``Box.mean`` gave for round r. Raises PeerError for an impossible one.

        r: needed for sums with noise; UserError without it. With these and keys=centre a client that misses a mean
        lacks its change from then on.
        """
        values: Any = None
        if client.config.keys == "threshold":
            values = mean if cipher is None else None
        elif mean is None and cipher is not None:
            values = yield fl.Open(client.keys.own(self.name), cipher)
        if values is None or count < self.least:
            raise fl.PeerError(f"a mean of {count} models with keys={client.config.keys}, or in another form")
        expected = client.spec.size if cipher is None else self.length(client)
        if len(values) != expected:
            raise fl.PeerError(f"a mean of {len(values)} weights; expected {expected}")
        noise: SumNoise = client.noise
        if client.config.noisy:
            if r is None:
                raise fl.UserError(
                    "a mean of a sum with noise is read by Sums.read(client, mean, cipher, count, round)"
                )
            return noise.taken(values) if cipher is None else noise.moved(values, count, r)
        return np.asarray(values if cipher is None else values / count, np.float32)


def _joint_of(config: SumKeys) -> threshold.Joint | None:
    return threshold.Joint("", "", (CLIENT,), pads=config.pads) if config.keys == "threshold" else None


class SumClient(fl.Party, role=CLIENT):
    sums: ClassVar[Sums]
    keys, joint = HeldKeys(PublicKey, SecretKey), threshold.JointKeys(lambda party: party.sums.declared(party))
    making, opening = threshold.KeyMaking(joint_of=_joint_of), threshold.KeyOpening(joint_of=_joint_of)
    pads, noise = threshold.JointPads(joint_of=_joint_of), SumNoise()

    def fit(self, start: fl.Vector, r: int) -> fl.Fit:
        """Raises PeerError beyond the privacy budget."""
        self.noise.check_budget(r)
        return fit(self, start, r)


class SumServer(fl.Party, role=SERVER):
    sums: ClassVar[Sums]
    keys, joint = Keys(PublicKey, SecretKey), threshold.JointKeys(lambda party: party.sums.declared(party))
    noise = SumNoise()

    def setup(self) -> fl.Steps[None]:
        yield from super().setup()
        if self.sums.declared(self):
            yield from threshold.make_keys(threshold.HubKey(self, self.sums.name, 0), self.clients)

    def box(self, r: int) -> Box:
        return Box(self, r)

    def ask(self, r: int, request: fl.Message, reply: type[fl.M], fold: fl.Fold[fl.M]) -> fl.Steps[dict[str, Any]]:
        return (yield from ask_round(self, r, request, reply, fold))


class Box:
    def __init__(self, hub: SumServer, r: int) -> None:
        self._hub, self._round, self._got = hub, r, dict[str, Any]()
        self._key = threshold.HubKey(hub, hub.sums.name, r, hub.config.deadline_s)

    def take(self, name: str, data: bytes) -> None:
        """Take a client's sealed vector. Raises PeerError for any other."""
        hub, length = self._hub, self._hub.sums.length(self._hub)
        if hub.config.keys == "threshold":
            read = threshold.loaded if hub.config.pads else threshold.taken
            self._got[name] = read(self._key, name, data, length)
        else:
            public = self._key.public
            self._got[name] = public.from_bytes(data, length, terms=1, blinded=0, form=public.fresh)

    def mean(self) -> fl.Steps[tuple[fl.Vector | None, bytes | None, int]]:
        """For ``Sums.read``: the mean, if clients opened it together, or the sum's ciphertext; and their number.
        Raises NoAnswerError if they are too few, or it can't be opened.
        """
        hub, sums, got = self._hub, self._hub.sums, self._got
        least = max(sums.least, hub.noise.makers - hub.config.missing) if hub.config.noisy else sums.least
        if len(got) < least:
            raise fl.NoAnswerError(f"{len(got)} models, and a sum is of {least} or more")
        if hub.config.padded:
            opened = yield from threshold.open_padded(self._key, got)
            count = len(opened.among)
            if hub.config.noisy:
                try:
                    return hub.noise.moved(opened.values, count, self._round), None, count
                except fl.PeerError as error:
                    raise fl.NoAnswerError(str(error)) from None
            return (opened.values / count).astype(np.float32), None, count
        if hub.config.keys == "centre":
            return None, sum_ciphers(got.values()).to_bytes(), len(got)
        total = {0: reduce(add, got.values())}
        opened = (yield from threshold.open_sums(self._key, total))[0]
        return (opened.values / len(got)).astype(np.float32), None, len(got)
