"""The hub of a federation with joint keys, and how it asks many for one thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.crypto.ckks import EvaluationKey, PublicKey, SecretKey
from coterie.crypto.keys import evaluation_key
from coterie.protocol.errors import PeerError
from coterie.protocol.messages import Message
from coterie.protocol.steps import Steps, for_each
from coterie.protocols.key_centre import EVALUATION, KEY_CENTRE, Granted, Keyed, KeyHub
from coterie.protocols.threshold_dealt import terms_by_dealer
from coterie.protocols.threshold_kept import JointSecrets
from coterie.protocols.threshold_parts import Joint

Floats = NDArray[np.float64]
M = TypeVar("M", bound=Message)
Lost = dict[str, str]
"""By name, why a party is left out."""
UNREADABLE = "its answer cannot be read"
Of = tuple[int, str, int]
"""Round, key and making: what a message of this protocol is about."""


@dataclass(frozen=True)
class Made:
    """A key that is ready. missing: by name, why a party that was to hold it does not.

    untold: parties that have not confirmed that they know it.
    """

    name: str
    number: int
    holders: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    untold: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Opened:
    """A sum that was opened. values: (d,) float64.  among: by whom.  blamed: whose shares made it nonsense before.

    tries: how often it was opened.
    """

    values: Floats
    among: tuple[str, ...]
    blamed: tuple[str, ...] = ()
    tries: int = 1


class JointHub(KeyHub[PublicKey, SecretKey]):
    """The hub of a federation with joint keys. A subclass declares them: ``joints()``. Keys are made by ``make_keys``.

    ``setup`` only has the key centre deal what it deals, if there is one.
    """

    class Secret(Keyed.Secret):
        """joint: what it knows of joint keys."""

        joint: JointSecrets = msgspec.field(default_factory=JointSecrets)

    secret: Secret

    def joints(self) -> tuple[Joint, ...]:
        """All joint keys of the federation; the same at all parties."""
        raise NotImplementedError

    def setup(self) -> Steps[None]:
        """Have the key centre deal, if the federation has one."""
        if KEY_CENTRE in self.common.roster.by_name:
            yield from super().setup()

    def evaluation(self, name: str) -> EvaluationKey:
        """What dot products under a joint key need. Raises PeerError before it was made."""
        return evaluation_key(self._one(self.secret.keys.public, f"{name} {EVALUATION}"))

    def granted(self, msg: Granted) -> None:
        """Keep public keys from the key centre; of joint ones, who holds them."""
        super().granted(msg)
        for joint in self.joints():
            if joint.dealer and (terms := terms_by_dealer(self, joint, msg)) is not None:
                self.secret.joint.numbers[joint.name] = terms.number
                self.secret.joint.terms[joint.name] = terms


def collect(
    of: Of, requests: Mapping[str, Message], reply: type[M], take: Callable[[str, M], None], deadline_s: float | None
) -> Steps[Lost]:
    """Give each answer to ``take`` as it arrives. Returns by name why there is none."""

    def fold(name: str, msg: Any) -> None:
        if (msg.round, msg.key, msg.number) != of:
            raise PeerError(f"{name}: a {type(msg).__name__} of key {msg.key!r:.40}, making {msg.number}")
        take(name, msg)

    answers = yield from for_each(requests, reply, fold, deadline_s=deadline_s)
    return dict(answers.missing)


def gather(
    of: Of, requests: Mapping[str, Message], reply: type[M], check: Callable[[str, M], None], deadline_s: float | None
) -> Steps[tuple[dict[str, M], Lost]]:
    """The answers by name, in order of arrival, and by name why there is none."""
    got: dict[str, M] = {}

    def keep(name: str, msg: M) -> None:
        check(name, msg)
        got[name] = msg

    lost = yield from collect(of, requests, reply, keep, deadline_s)
    return got, lost


def reasons(missing: Mapping[str, str]) -> str:
    """In words."""
    return "; ".join(f"{name}: {why}" for name, why in missing.items()) or "nobody is missing"
