"""What the parties of MingledPie find out from their views, with closed forms.

The server's attacks take only the sets that it was sent. For the truth, the clients' one secret key opens every update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.clustering.identity_law import IdentityLaw
from coterie.privacy.attacks import identity
from coterie.privacy.attacks.result import AttackResult, Expected
from coterie.privacy.audits import Audit, Finding, Measured, Recorded, View, attack
from coterie.privacy.measures import profiles
from coterie.privacy.views import by_round, held_key
from coterie.systems.mingledpie.config import MingledPieConfig
from coterie.systems.mingledpie.layout import Rebuilding
from coterie.systems.mingledpie.messages import CLIENT, HUB, USER, Mingled, Parameters, Update

Sets = NDArray[np.bool_]
Doubles = NDArray[np.float64]
_HOME = 0.9  # how sure the server is that a client has stayed in its cluster; any share near 1 ranks alike


@dataclass(frozen=True)
class Opener:
    """What the clients' secret key opens. rebuild: what clients do with sums."""

    rebuild: Rebuilding
    key: Any

    def update(self, message: Update) -> tuple[Doubles, Doubles]:
        """The model (d,) and the indicator (k,)."""
        layout, k = self.rebuild.layout, self.rebuild.layout.clusters
        first, *rest = self._opened(message.ciphers, layout.lengths)
        if layout.kind == "uploads":
            blocks = first.reshape(k, -1)
            own, indicator = blocks[np.argmax(blocks[:, -1])][:-1], blocks[:, -1]
        else:
            own = first[: layout.own]
            indicator = first[layout.own :] if layout.kind == "mingled" else np.concatenate(rest[:k])
        model = np.zeros(layout.spec.size)
        model[~layout.common] = own
        if layout.shared:
            model[layout.common] = rest[-1]
        return model, indicator

    def counts(self, message: Mingled) -> Doubles:
        """H, (k, k); or the sizes of the true clusters, (k,)."""
        return self.rebuild.layout.parts(self._opened(message.ciphers, self.rebuild.layout.widths))[1]

    def rebuilt(self, message: Mingled, models: NDArray[Any]) -> NDArray[Any]:
        """The cluster models (k, d) that a client makes of it and of the round before's."""
        try:
            opened = tuple(self._opened(message.ciphers, self.rebuild.layout.widths))
            return self.rebuild(opened, models, tuple(map(int, message.sizes)), message.participants).models
        except (fl.PeerError, fl.CryptoError):  # one broken update can make such sums; clients then keep their models
            return models

    def _opened(self, ciphers: bytes, lengths: Sequence[int]) -> list[Doubles]:
        """The vectors of a bundle; an empty part is a sum of nothing."""
        parts = fl.unbundle(ciphers, len(lengths))
        public = self.key.public
        return [
            np.asarray(self.key.decrypt(public.from_bytes(part, n))) if part else np.zeros(n)
            for part, n in zip(parts, lengths, strict=True)
        ]


def opener(federation: fl.Federation, views: Mapping[str, View]) -> Opener:
    """With the key in any client's view. Raises UserError where recording began too late."""
    holder = next((view for view in views.values() if view.role == CLIENT), None)
    if holder is None:
        raise fl.UserError("no client's view holds the clients' key: record from the set-up on")
    return Opener(next(federation.of_role(CLIENT)).rebuild, held_key(holder, USER))


def keys_of(config: MingledPieConfig, r: int) -> int:
    """The number of round r's keys, under which a client shows one set per cluster."""
    return 0 if config.keep_sets else max(since for since in config.rates() if since <= r)


def law_of(config: MingledPieConfig, mode: str, r: int) -> IdentityLaw | None:
    """Of round r's sets; None if clients name no clusters or keep sets of two laws."""
    p, k = config.rate(r), config.clusters
    if config.kind(mode) != "mingled" or (config.keep_sets and p != config.rate(0)):
        return None
    return IdentityLaw(k, p, k) if mode == "literal" else config.law(p)  # as printed, all clusters match


@dataclass(frozen=True, eq=False)
class IdentityRound:
    """What the server knows of one round, and the truth.

    keys, law: of the sets.  who: (n,) numbers of the clients.  truth: (n,) clusters.  sets: (n, k) bool, all True where
    clients name none.
    """

    number: int
    keys: int
    law: IdentityLaw | None
    who: NDArray[np.int64]
    sets: Sets
    truth: NDArray[np.int64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.bincount(self.truth, minlength=self.sets.shape[1])


def mingled(views: Mapping[str, View]) -> dict[int, Mingled]:
    """By round; all clients are sent the same."""
    return {message.round: message for view in views.values() for _, message in view.messages(Mingled)}


def recorded_rounds(
    views: Mapping[str, View], clients: Sequence[str], config: MingledPieConfig, mode: str, opener: Opener
) -> Iterator[tuple[IdentityRound, Doubles]]:
    """Each round with updates, and its clients' models (n, d) as their key opens them."""
    for r, arrived in by_round(views.get(HUB, View(HUB, HUB)), Update).items():
        sent = {name: arrived[name] for name in clients if name in arrived}
        sets = np.zeros((len(sent), config.clusters), np.bool_)
        models, truth = [], []
        for row, (name, message) in zip(sets, sent.items(), strict=True):
            model, indicator = opener.update(message)
            if sorted(np.rint(indicator)) != [*[0.0] * (config.clusters - 1), 1.0]:
                raise fl.UserError(f"round {r}: the indicator of {name} is not one-hot, so it has no true cluster")
            row[message.identities if len(message.identities) else slice(None)] = True
            models.append(model)
            truth.append(int(np.argmax(indicator)))
        who = np.array([clients.index(name) for name in sent])
        yield (
            IdentityRound(r, keys_of(config, r), law_of(config, mode, r), who, sets, np.array(truth)),
            np.stack(models),
        )


def _guessed(who: str, one: IdentityRound, prior: Doubles | None, form: Expected | None) -> Measured:
    result = identity.identity_accuracy(identity.cluster_posterior(one.sets, prior), one.truth, prior)
    return Measured(who, "true cluster", result, form)


@attack("cluster-identity", "server", "groups")
def by_one_set(rounds: Sequence[IdentityRound]) -> Iterator[Measured]:
    """Guesses a client's true cluster among those that it joins, all equally likely."""
    for one in rounds:
        form = None if one.law is None else identity.expected_accuracy(one.law, shares=one.sizes.astype(np.float64))
        yield _guessed("server", one, None, form)


@attack("cluster-identity-by-size", "server knowing or estimating the clusters' sizes", "groups")
def by_sizes(rounds: Sequence[IdentityRound]) -> Iterator[Measured]:
    """Guesses the largest of the clusters that a client joins."""
    for one in rounds:
        law, sizes = one.law, one.sizes.astype(np.float64)
        form = None if law is None else identity.expected_accuracy(law, sizes)
        yield _guessed("server knowing the sizes", one, sizes, form)
        if law is not None and law.p_correct() < 1:
            estimates = identity.estimated_sizes(one.sets, law.p_correct())
            form = identity.expected_by_estimates(law, one.sets, one.truth)
            yield _guessed("server estimating the sizes", one, estimates, form)


@attack("identity-intersection", "server", "groups")
def by_all_keys(rounds: Sequence[IdentityRound]) -> Iterator[Measured]:
    """Finds a client's true cluster as the one that is in all sets that it drew.

    Under 2, 3, ... keys, as if clients stayed in their clusters. The closed form holds if all have.
    """
    last = _last_by_keys(rounds)
    for count in range(2, len(last) + 1):
        past, now = last[:count], last[count - 1]
        sets = np.zeros((count, *now.sets.shape), np.bool_)
        truth = np.full((count, len(now.who)), -1)  # -1: was away
        for m, one in enumerate(past):
            here, there = np.nonzero(now.who[:, None] == one.who)
            sets[m, here], truth[m, here] = one.sets[there], one.truth[there]
        result = identity.identity_accuracy(identity.cluster_posterior(sets, home_share=_HOME), now.truth)
        laws = [one.law for one in past if one.law]
        stayed = (truth == now.truth).all() and len(laws) == count
        form = identity.expected_accuracy(laws, shares=now.sizes) if stayed else None
        yield Measured("server intersecting sets of several keys", "true cluster", result, form)


@attack("identity-changes", "server", "groups")
def by_changes(rounds: Sequence[IdentityRound]) -> Iterator[Measured]:
    """Finds a client's true cluster from the sets of the other clusters that it has been in.

    Beyond the last set alone, of clients with several under the same keys. The closed form holds for two.
    """
    for now in _last_by_keys(rounds):
        shown: dict[int, dict[bytes, Sets]] = {}
        for one in rounds:
            if one.keys == now.keys:
                for i, row in zip(one.who, one.sets, strict=True):
                    shown.setdefault(int(i), {})[row.tobytes()] = row
        moved = [n for n, i in enumerate(now.who) if len(shown[int(i)]) > 1]
        if not moved:
            continue
        posterior = []
        for n in moved:
            others = [row for row in shown[int(now.who[n])].values() if (row != now.sets[n]).any()]
            posterior.append(identity.change_posterior(np.stack([now.sets[n], *others[: identity.MOST_SETS - 1]]))[0])
        result = identity.identity_accuracy(identity.cluster_posterior(now.sets[moved]), now.truth[moved])
        yield Measured("server", "true cluster of who has changed, by the set of now", result)
        two_each = all(len(shown[int(now.who[n])]) == 2 for n in moved)
        form = identity.expected_after_change(now.law) if now.law is not None and two_each else None
        result = identity.identity_accuracy(np.stack(posterior), now.truth[moved])
        yield Measured("server", "true cluster of who has changed, by all sets", result, form)


@attack("sums", "client", "other")
def by_coefficients(views: Mapping[str, View], rounds: Sequence[IdentityRound], opener: Opener) -> Iterator[Measured]:
    """Reads the true clusters' sizes off the sums that it opens."""
    sums = mingled(views)
    for one in rounds:
        if one.number in sums:
            counts, n = np.rint(opener.counts(sums[one.number])), len(one.who)
            sizes = np.diag(counts) if counts.ndim == 2 else counts
            known, alone = float((sizes == one.sizes).mean()), float((sizes == 1).sum()) / n
            result = AttackResult("true clusters of known size (share)", known, 0.0, 1.0, n)
            yield Measured("client", "sizes of the true clusters", result)
            result = AttackResult("clients alone in a cluster (share)", alone, 0.0, 1.0, n)
            yield Measured("client", "models of clients alone in a cluster", result, topic="models")


@attack("shared-key", "server with any client's key", "groups")
def by_key(
    run: Recorded, start: NDArray[Any], opened: Sequence[tuple[IdentityRound, Doubles]], opens: Opener
) -> Iterator[Measured]:
    """Opens every update, and reads label shares off it.

    start: (k, d) the initial models.
    """
    who, k = "server with any client's key", run.settings.clusters
    sums, models = mingled(run.views), start
    for one, trained in opened:
        result = AttackResult("true cluster guessed (share)", 1.0, 1 / k, 1.0, len(one.who))
        yield Measured(who, "true cluster", result)
        if len(one.who) > 1:
            yield from profiles(who, trained - models[one.truth], run.label_counts[one.who], run.spec)
        if one.number in sums:
            models = opens.rebuilt(sums[one.number], models)


def passive(run: Recorded) -> list[Finding]:
    """Raises UserError for a record without updates, or without the clients' key."""
    if run.settings.keys == "threshold":
        raise fl.UserError("with keys=threshold no view holds a key to score them by: audit a run with keys=shared")
    opens, start = opener(run.federation, run.views), _start(run.views, run.settings.clusters)
    opened = list(recorded_rounds(run.views, run.clients, run.settings, run.mode, opens))
    if not opened:
        raise fl.UserError("the server's view holds no updates: nothing was sent that could be attacked")
    rounds = [one for one, _ in opened]
    found = by_one_set(rounds) + by_sizes(rounds)
    if any(one.law for one in rounds) or not all(one.sets.all() for one in rounds):
        found += by_all_keys(rounds) + by_changes(rounds)
    return found + by_key(run, start, opened, opens) + by_coefficients(run.views, rounds, opens)


def _start(views: Mapping[str, View], clusters: int) -> NDArray[Any]:
    """(k, d) theta_j^0, which the server publishes."""
    for view in views.values():
        for _, message in view.messages(Parameters):
            return np.asarray(message.start).reshape(clusters, -1)
    raise fl.UserError("no client's view holds the initial models: record from the set-up on")


def _last_by_keys(rounds: Sequence[IdentityRound]) -> list[IdentityRound]:
    return list({one.keys: one for one in rounds}.values())


AUDIT = Audit(passive)
