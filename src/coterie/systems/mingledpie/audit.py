"""What the parties of MingledPie find out from their views, as numbers with their closed forms.

The first functions turn recorded views into arrays. ``measure`` runs the attacks of ``coterie.attacks`` on all rounds
of a run. The server's attacks take the sets that it was sent and nothing else. What scores them, the clients' true
clusters, comes out of the same record: the clients' one secret key opens every update, which is also what the server
gets from any client that helps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.attacks import (
    Attack,
    Expected,
    Result,
    change_posterior,
    cluster_posterior,
    estimated_sizes,
    expected_accuracy,
    expected_after_change,
    expected_by_estimates,
    identity_accuracy,
    intersection_posterior,
)
from coterie.attacks.identity_changes import MOST_SETS
from coterie.audit import Audit, Recorded, View
from coterie.audit.findings import Finding
from coterie.audit.profiling import profiled, profiling
from coterie.audit.received import granted
from coterie.clustering.identity_law import IdentityLaw
from coterie.crypto.ckks import SecretKey
from coterie.protocol.bundle import unbundle
from coterie.protocol.errors import CryptoError, PeerError, UserError
from coterie.protocol.model_spec import ModelSpec
from coterie.protocol.system import Federation
from coterie.systems.mingledpie.config import MingledPieConfig
from coterie.systems.mingledpie.layout import Rebuilding
from coterie.systems.mingledpie.messages import CLIENT, HUB, USER, Mingled, Parameters, Update

Sets = NDArray[np.bool_]
Doubles = NDArray[np.float64]
_HOME = 0.9  # how sure the server is that a client has stayed in its cluster; any share near 1 ranks alike


@dataclass(frozen=True)
class Opener:
    """What the clients' secret key opens. rebuild: what clients do with sums.  key: the secret key."""

    rebuild: Rebuilding
    key: Any

    def update(self, message: Update) -> tuple[Doubles, Doubles]:
        """Of an ``Update``: the model (d,) and the indicator (k,)."""
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
        """Of a ``Mingled``: H, (k, k); or the sizes of the true clusters, (k,)."""
        layout, k = self.rebuild.layout, self.rebuild.layout.clusters
        rows = self._opened(message.ciphers, layout.widths)
        if layout.kind == "mingled":
            return np.stack([row[layout.own :] for row in rows[:k]])
        return rows[0].reshape(k, -1)[:, -1] if layout.kind == "uploads" else np.concatenate(rows[k : 2 * k])

    def rebuilt(self, message: Mingled, models: NDArray[Any]) -> NDArray[Any]:
        """The cluster models (k, d) that a client makes of a ``Mingled`` and of those of the round before."""
        try:
            opened = tuple(self._opened(message.ciphers, self.rebuild.layout.widths))
            return self.rebuild(opened, models, tuple(map(int, message.sizes)), message.participants).models
        except (PeerError, CryptoError):  # one broken update can make such sums; clients then keep their models
            return models

    def _opened(self, ciphers: bytes, lengths: Sequence[int]) -> list[Doubles]:
        """The vectors of a bundle; an empty part is a sum of nothing."""
        parts = unbundle(ciphers, len(lengths))
        public = self.key.public
        return [
            np.asarray(self.key.decrypt(public.from_bytes(part, n))) if part else np.zeros(n)
            for part, n in zip(parts, lengths, strict=True)
        ]


def opener(federation: Federation, views: Mapping[str, View]) -> Opener:
    """What opens the ciphertexts of a recorded run: the key in any client's view. federation: as the run built it."""
    return Opener(next(federation.of_role(CLIENT)).rebuild, SecretKey.load(clients_key(views)))


@dataclass(frozen=True)
class Terms:
    """What the server itself knows of a run, by round.

    clusters: k.  law: the distribution of the sets shown in round r, None where clients name no clusters (or where
    sets of several laws are kept).  keys: which keys round r's sets were drawn under, as a number; a client shows one
    set per cluster under the same keys.
    """

    clusters: int
    law: Callable[[int], IdentityLaw | None]
    keys: Callable[[int], int]


def terms(config: MingledPieConfig, mode: str) -> Terms:
    """What the server knows of a run with these settings."""
    rates = config.rates()

    def keys(r: int) -> int:
        return 0 if config.keep_sets else max(since for since in rates if since <= r)

    def law(r: int) -> IdentityLaw | None:
        if config.kind(mode) != "mingled" or (config.keep_sets and config.rate(r) != config.rate(0)):
            return None
        p, k = config.rate(r), config.clusters
        return IdentityLaw(k, p, k) if mode == "literal" else config.law(p)  # as printed, all clusters match

    return Terms(config.clusters, law, keys)


@dataclass(frozen=True, eq=False)
class Round:
    """One round: what the server was sent in the clear, and the truth, which takes a client's help.

    who: (n,) numbers of the clients.  truth: (n,) clusters.  sets: (n, k) bool, all True where clients name none.
    """

    number: int
    who: NDArray[np.int64]
    sets: Sets
    truth: NDArray[np.int64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(k,) members of each true cluster."""
        return np.bincount(self.truth, minlength=self.sets.shape[1])


def updates(views: Mapping[str, View]) -> dict[int, dict[str, Update]]:
    """The updates in the server's view, by round and sender."""
    found: dict[int, dict[str, Update]] = {}
    for seen, message in views[HUB].messages(Update) if HUB in views else ():
        found.setdefault(seen.round, {})[seen.src] = message
    return found


def mingled(views: Mapping[str, View]) -> dict[int, Mingled]:
    """The ``Mingled`` message of each round, from whichever client's view has it: all are sent the same."""
    found: dict[int, Mingled] = {}
    for view in views.values():
        for _, message in view.messages(Mingled):
            found.setdefault(message.round, message)
    return found


def clients_key(views: Mapping[str, View]) -> bytes:
    """The secret key that every client holds, from the view of one; raises UserError where recording began too late."""
    for view in views.values():
        if view.role == CLIENT:
            return granted(view)[f"secret {USER}"]
    raise UserError("no client's view holds the clients' key: record from the set-up on")


def recorded_rounds(
    views: Mapping[str, View], clients: Sequence[str], clusters: int, opener: Opener
) -> Iterator[tuple[Round, Doubles]]:
    """Each round with updates, its clients in order, and their models (n, d) as the clients' key opens them.

    Raises UserError for an indicator that is not one-hot: whose sender is in no cluster.
    """
    for r, arrived in sorted(updates(views).items()):
        sent = {name: arrived[name] for name in clients if name in arrived}
        sets = np.zeros((len(sent), clusters), np.bool_)
        models, truth = [], []
        for row, (name, message) in zip(sets, sent.items(), strict=True):
            model, indicator = opener.update(message)
            if sorted(np.rint(indicator)) != [*[0.0] * (clusters - 1), 1.0]:
                raise UserError(f"round {r}: the indicator of {name} is not one-hot, so it has no true cluster")
            row[message.identities if len(message.identities) else slice(None)] = True
            models.append(model)
            truth.append(int(np.argmax(indicator)))
        who = np.array([clients.index(name) for name in sent])
        yield Round(r, who, sets, np.array(truth)), np.stack(models)


def by_one_set(rounds: Sequence[Round], terms: Terms) -> list[Finding]:
    """Cluster-identity inference (A1) on each round alone: without a prior, with known and with estimated sizes.

    Where clients name no clusters the posterior is the prior, and there is nothing to estimate sizes from.
    """
    names = (
        "server: true cluster",
        "server knowing the sizes: true cluster",
        "server estimating the sizes: true cluster",
    )
    results: dict[str, list[Result]] = {name: [] for name in names}
    expected: dict[str, list[Expected]] = {name: [] for name in names}
    for one in rounds:
        law, sizes = terms.law(one.number), one.sizes.astype(np.float64)
        tried: list[tuple[Doubles | None, Expected | None]] = [
            (None, None if law is None else expected_accuracy(law, shares=sizes)),
            (sizes, None if law is None else expected_accuracy(law, sizes)),
        ]
        if law is not None and law.p_correct() < 1:
            estimates = estimated_sizes(one.sets, law.p_correct())
            tried.append((estimates, expected_by_estimates(law, one.sets, one.truth)))
        for name, (prior, form) in zip(names, tried, strict=False):
            results[name].append(identity_accuracy(cluster_posterior(one.sets, prior), one.truth, prior))
            if form is not None:
                expected[name].append(form)
    return _findings(results, expected)


def by_all_keys(rounds: Sequence[Round], terms: Terms) -> list[Finding]:
    """Intersection: after the sets drawn under 1, 2, ... keys, as if clients stayed in their clusters.

    One result for each keys but the first, of their last round. The closed form holds if everybody scored has a set
    under each keys so far and did stay.
    """
    name = "server intersecting sets of several keys: true cluster"
    results, expected = [], []
    last = _last_by_keys(rounds, terms)
    for count in range(2, len(last) + 1):
        past, now = last[:count], last[count - 1]
        sets = np.zeros((count, len(now.who), terms.clusters), np.bool_)
        truth = np.full((count, len(now.who)), -1)  # of who was away
        for m, one in enumerate(past):
            here, there = np.nonzero(now.who[:, None] == one.who)
            sets[m, here], truth[m, here] = one.sets[there], one.truth[there]
        results.append(identity_accuracy(intersection_posterior(sets, home_share=_HOME), now.truth))
        laws = [terms.law(one.number) for one in past]
        if (truth == now.truth).all() and None not in laws:
            expected.append(expected_accuracy([law for law in laws if law], shares=now.sizes))
    return _findings({name: results}, {name: expected})


def by_changes(rounds: Sequence[Round], terms: Terms) -> list[Finding]:
    """What several sets of a client under the same keys tell of its cluster now, beside what its last set alone tells.

    Scored at the end of each keys, over the clients that showed more than one set. The closed form holds if each of
    them showed two.
    """
    alone = "server: true cluster of who has changed, by the set of now"
    changed = "server: true cluster of who has changed, by all sets"
    results: dict[str, list[Result]] = {alone: [], changed: []}
    expected: dict[str, list[Expected]] = {alone: [], changed: []}
    for now in _last_by_keys(rounds, terms):
        keys, law = terms.keys(now.number), terms.law(now.number)
        shown: dict[int, dict[bytes, Sets]] = {}
        for one in rounds:
            if terms.keys(one.number) == keys:
                for i, row in zip(one.who, one.sets, strict=True):
                    shown.setdefault(int(i), {})[row.tobytes()] = row
        moved = [n for n, i in enumerate(now.who) if len(shown[int(i)]) > 1]
        if not moved:
            continue
        posterior = []
        for n in moved:
            others = [row for row in shown[int(now.who[n])].values() if (row != now.sets[n]).any()]
            posterior.append(change_posterior(np.stack([now.sets[n], *others[: MOST_SETS - 1]]))[0])
        results[changed].append(identity_accuracy(np.stack(posterior), now.truth[moved]))
        results[alone].append(identity_accuracy(cluster_posterior(now.sets[moved]), now.truth[moved]))
        if law is not None and all(len(shown[int(now.who[n])]) == 2 for n in moved):
            expected[changed].append(expected_after_change(law))
    return _findings(results, expected)


def by_coefficients(views: Mapping[str, View], rounds: Sequence[Round], opener: Opener) -> list[Finding]:
    """What a client reads off the sums that it decrypts: the sizes of the true clusters, and which have one member."""
    known, alone = [], []
    sums = mingled(views)
    for one in rounds:
        if one.number in sums:
            counts = np.rint(opener.counts(sums[one.number]))
            sizes = np.diag(counts) if counts.ndim == 2 else counts
            right = float((sizes == one.sizes).mean())
            known.append(Result("true clusters of known size (share)", right, 0.0, 1.0, len(one.who)))
            share = float((sizes == 1).sum()) / len(one.who)
            alone.append(Result("clients alone in a cluster (share)", share, 0.0, 1.0, len(one.who)))
    names = "client: sizes of the true clusters", "client: models of clients alone in a cluster"
    return _findings(dict(zip(names, (known, alone), strict=True)), {})


def measure(
    views: Mapping[str, View],
    clients: Sequence[str],
    terms: Terms,
    opener: Opener,
    label_counts: NDArray[Any],
    spec: ModelSpec,
) -> list[Finding]:
    """Every attack on a recorded run. label_counts: (clients, classes) training samples.

    Raises UserError for a record without updates, or without the key that scores the attacks.
    """
    rounds, opened, profiles = [], [], []
    sums, models = mingled(views), _start(views, terms.clusters)
    for one, trained in recorded_rounds(views, clients, terms.clusters, opener):
        rounds.append(one)
        opened.append(Result("true cluster guessed (share)", 1.0, 1 / terms.clusters, 1.0, len(one.who)))
        if len(one.who) > 1:
            profiles.append(profiled(trained - models[one.truth], label_counts[one.who], spec))
        if one.number in sums:
            models = opener.rebuilt(sums[one.number], models)
    if not rounds:
        raise UserError("the server's view holds no updates: nothing was sent that could be attacked")
    found = by_one_set(rounds, terms)
    if any(terms.law(one.number) for one in rounds) or not all(one.sets.all() for one in rounds):
        found += by_all_keys(rounds, terms) + by_changes(rounds, terms)
    found.append(Finding("server with any client's key: true cluster", tuple(opened)))
    return found + profiling("server with any client's key", profiles) + by_coefficients(views, rounds, opener)


def _start(views: Mapping[str, View], clusters: int) -> NDArray[Any]:
    """(k, d) theta_j^0, which the server publishes."""
    for view in views.values():
        for _, message in view.messages(Parameters):
            return np.asarray(message.start).reshape(clusters, -1)
    raise UserError("no client's view holds the initial models: record from the set-up on")


def _last_by_keys(rounds: Sequence[Round], terms: Terms) -> list[Round]:
    """The last round of each keys, in order."""
    return list({terms.keys(one.number): one for one in rounds}.values())


def _findings(results: Mapping[str, list[Result]], expected: Mapping[str, list[Expected]]) -> list[Finding]:
    """Those with results; closed forms where each of its results has one."""
    found = []
    for name, of_rounds in results.items():
        forms = expected.get(name, [])
        if of_rounds:
            found.append(Finding(name, tuple(of_rounds), tuple(forms) if len(forms) == len(of_rounds) else ()))
    return found


def passive(run: Recorded) -> list[Finding]:
    """Every attack on a recorded run."""
    opens = opener(run.federation, run.views)
    return measure(run.views, run.clients, terms(run.settings, run.mode), opens, run.label_counts, run.spec)


AUDIT = Audit(
    passive,
    attacks=(
        Attack(
            "cluster-identity",
            "server",
            "guesses a client's true cluster among those that it joins, all equally likely",
            cluster_posterior,
            (identity_accuracy,),
        ),
        Attack(
            "cluster-identity-by-size",
            "server knowing or estimating the clusters' sizes",
            "guesses the largest of the clusters that a client joins",
            cluster_posterior,
            (identity_accuracy,),
        ),
        Attack(
            "identity-intersection",
            "server",
            "finds a client's true cluster as the one that is in all sets that it drew",
            intersection_posterior,
            (identity_accuracy,),
        ),
        Attack(
            "identity-changes",
            "server",
            "finds a client's true cluster from the sets of the other clusters that it has been in",
            change_posterior,
            (identity_accuracy,),
        ),
    ),
)
