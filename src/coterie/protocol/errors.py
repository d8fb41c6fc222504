"""All exceptions of Coterie. A message says what was wrong, where, and what to do."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping

_MOST_SHOWN = 300  # characters


class CoterieError(Exception):
    """Base of everything that Coterie raises on purpose."""


class UserError(CoterieError):
    """A mistake of the caller (option, data, configuration): exit code 2.

    >>> try:
    ...     coterie.run("fedavg", data="mnst")
    ... except coterie.UserError as error:
    ...     print(error)
    """


class RunError(CoterieError):
    """The run cannot go on (too few parties, full disk, ...): exit code 1."""


class CoterieWarning(UserWarning):
    """Something works, but hardly as intended."""


class PeerError(CoterieError):
    """An unacceptable message of another party. It is refused and counted, and the round goes on.

    The text may have the party's own numbers: it is never sent.
    """


class DecodeError(PeerError):
    """The bytes are no valid message."""


class CryptoError(CoterieError):
    """Our own code uses keys or ciphertexts unsafely. Never ignored."""


class KeyMismatchError(CryptoError):
    """Objects of different keys were combined, or a ciphertext opened with another key."""


class CapacityError(CryptoError):
    """A value or a sum would not fit its lane, level or modulus."""


_SYNONYMS = {
    "lr": "learning_rate eta step_size client_lr local_lr",
    "max_epochs": "epoch epochs local_epochs num_epochs client_epochs e",
    "batch_size": "bs batch batchsize local_batch_size b",
    "weight_decay": "wd l2",
    "participation": "fraction fraction_fit frac c client_fraction join_ratio sample_rate sampling_rate",
    "server_lr": "global_lr slr server_learning_rate",
    "clusters": "num_clusters n_clusters",
    "clients": "num_clients n_clients nc num_users users num_supernodes",
    "rounds": "round num_rounds n_rounds global_rounds gr communication_rounds comm_rounds num_server_rounds",
    "data": "dataset data_set",
    "data_dir": "data_path data_root root",
    "model": "net network arch architecture",
    "partition": "split distribution partitioning partitioner heterogeneity non_iid",
    "seed": "random_seed rng_seed",
    "system": "algorithm algo strategy method",
    "accelerator": "gpu cuda",
    "crypto": "cipher encryption",
    "out": "output output_dir out_dir save_dir",
    "eval_every": "eval_gap eval_interval",
    "fashion_mnist": "fmnist fashion",
    "cifar10": "cifar",
}
_MEANT = {other: ours for ours, others in _SYNONYMS.items() for other in others.split()}


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that a word means, by synonym or spelling."""
    known = list(known)
    plain = word.lower().replace("-", "_")
    if plain in known or (plain := _MEANT.get(plain, "")) in known:
        return plain
    cutoff = 0.6 if len(word) > 2 else 0.5  # or one letter of two
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=cutoff)), None)


def suggest(word: str, known: Iterable[str]) -> str:
    """A sentence's end: ``"; did you mean 'lr'?"``, or ``"."`` without a close word."""
    close = nearest(word, known)
    return f"; did you mean {close!r}?" if close else "."


def printable(text: str, but: str = "") -> str:
    """Others' words, with control characters, which could move a terminal's cursor, as escapes. but:
    those that stay.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in but else ascii(one)[1:-1] for one in text)


def shown(text: str) -> str:
    """Words partly of others, for logs: one line, printable, short."""
    return printable(text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}...")


def by_kind(counts: Mapping[str, int]) -> Counter[str]:
    """Counts of reasons, added up where only parties' names differ."""
    found: Counter[str] = Counter()
    first: dict[str, str] = {}
    for reason, count in counts.items():
        found[first.setdefault(re.sub(r"\b([a-z_]+)/\d+", r"\1", reason), reason)] += count
    return found


def to_install(extra: str) -> str:
    """``pip install 'pandas>=2.2' 'pyarrow>=17'``, however Coterie was installed."""
    # Not ``coterie[tables]``: no package index has Coterie, so there the name may be anybody's.
    from importlib.metadata import PackageNotFoundError, requires  # slow to import

    try:
        wanted = [one for one in requires("coterie") or () if re.search(rf"extra == ['\"]{extra}['\"]", one)]
    except PackageNotFoundError:  # a source tree that is only on the path
        wanted = []
    packages = " ".join(f"'{one.partition(';')[0].strip()}'" for one in wanted)
    return f"pip install {packages or repr(f'.[{extra}]') + ' in the folder of Coterie'}"
