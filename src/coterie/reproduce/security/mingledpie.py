"""MingledPie's audit: every attack of ``coterie.audit.mingledpie`` on a recorded run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.audit.findings import Finding
from coterie.audit.mingledpie import Doubles, Terms, clients_key, measure
from coterie.clustering.identity_law import IdentityLaw
from coterie.crypto.ckks import secret_key
from coterie.protocol.bundle import unbundle
from coterie.protocol.errors import CryptoError, PeerError
from coterie.protocol.system import Federation
from coterie.reproduce.security.recorded import Recorded
from coterie.systems.mingledpie import MingledPieConfig
from coterie.systems.mingledpie.forms import Rebuilding
from coterie.systems.mingledpie.messages import CLIENT
from coterie.transport.transcript import View


@dataclass(frozen=True)
class Opener:
    """``coterie.audit.mingledpie.Opener``. rebuild: what clients do with sums.  key: the clients' secret key."""

    rebuild: Rebuilding
    key: Any

    def update(self, message: Any) -> tuple[Doubles, Doubles]:
        """Of an ``Update``: the model (d,) and the indicator (k,)."""
        form, k = self.rebuild.form, self.rebuild.form.clusters
        first, *rest = self._opened(message.ciphers, form.lengths)
        if form.kind == "uploads":
            blocks = first.reshape(k, -1)
            own, indicator = blocks[np.argmax(blocks[:, -1])][:-1], blocks[:, -1]
        else:
            own = first[: form.own]
            indicator = first[form.own :] if form.kind == "mingled" else np.concatenate(rest[:k])
        model = np.zeros(form.spec.size)
        model[~form.common] = own
        if form.shared:
            model[form.common] = rest[-1]
        return model, indicator

    def counts(self, message: Any) -> Doubles:
        """Of a ``Mingled``: H, (k, k); or the sizes of the true clusters, (k,)."""
        form, k = self.rebuild.form, self.rebuild.form.clusters
        rows = self._opened(message.ciphers, form.widths)
        if form.kind == "mingled":
            return np.stack([row[form.own :] for row in rows[:k]])
        return rows[0].reshape(k, -1)[:, -1] if form.kind == "uploads" else np.concatenate(rows[k : 2 * k])

    def rebuilt(self, message: Any, models: NDArray[Any]) -> NDArray[Any]:
        """The cluster models (k, d) that a client makes of a ``Mingled`` and of those of the round before."""
        try:
            opened = tuple(self._opened(message.ciphers, self.rebuild.form.widths))
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
    return Opener(federation.of_role(CLIENT)[0].rebuild, secret_key(clients_key(views)))


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


def audit(run: Recorded) -> list[Finding]:
    """Every attack of ``coterie.audit.mingledpie`` on a recorded run."""
    mode = run.config.mode
    opens = opener(run.federation, run.views)
    return measure(run.views, run.clients, terms(run.settings, mode), opens, run.label_counts, run.spec)
