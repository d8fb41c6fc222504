"""The active attack on PAFed: it repeats a recorded run with one client that reads the helper's key off its models.

In mode ``hardened`` the client puts in what its padded upload has room for, and reads nothing.

The client that deviates is the one that was asked most often in the record. Data, sampling and delays are the same, by
the same seed. Keys and the ciphers' noise are fresh, as in every real run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from coterie.crypto.keys import public_key
from coterie.crypto.split_key import CommitteeShare, joined
from coterie.devices.links import Delays
from coterie.privacy.attacks.key_in_sum import KeyThief, key_agreement, key_coefficients
from coterie.privacy.attacks.result import Result
from coterie.privacy.attacks.wrapping import wrap
from coterie.privacy.audits import Finding, Meddle, Recorded, View
from coterie.privacy.audits.received import granted, held_key
from coterie.protocol.errors import UserError
from coterie.protocol.system import Federation
from coterie.systems.pafed.messages import CLIENT, HELPER, HUB, SERVICE, Train, Update

LATE = 1
"""By how many rounds a thief is late. A late update enters by the weight of its class, however long it is. A forged
update in time is so long that |m|^2 is implausible to PAFed's helper if others are late, and the round is skipped.
"""


class Theft(NamedTuple):
    """A run with a thief. client: the thief's name.  run: the record."""

    thief: KeyThief
    client: str
    run: Recorded


def stolen_key(run: Recorded) -> list[Finding]:
    """``findings`` of a theft in this run. Raises UserError if the attack does not apply.

    It does not apply to emulated keys and to models that fill no ciphertext, nor if no client was asked twice.
    """
    if run.options["crypto"] != "real":
        raise UserError(
            "an emulated key has no secret to be stolen: repeat the run with\n"
            f"  coterie run --config {Path(run.options['out'] or 'RUN') / 'config.toml'} --crypto real --record "
            "--out ANOTHER_FOLDER"
        )
    return findings(theft(run.again, asked_most(run)))


def asked_most(run: Recorded) -> str:
    """The client that was asked in the most rounds; of several, the one that was asked first."""
    viewed = [name for name in run.clients if name in run.views]
    asked = {name: [seen.round for seen, _ in run.views[name].messages(Train)] for name in viewed}
    name = max(viewed, key=lambda name: (len(asked[name]), -min(asked[name], default=0)))
    if len(asked[name]) < 2:
        raise UserError("no client was asked in two rounds, and it reads the key off the next model: take more rounds")
    return name


def whole_key(views: Mapping[str, View]) -> Any:
    """sk_s, from the views of all that hold a part of it. Raises UserError where recording began too late."""
    key = held_key(views[HELPER], SERVICE)
    held = (granted(view).get(f"secret {SERVICE}") for view in views.values() if view.role == CLIENT)
    shares = [CommitteeShare.load(share) for share in held if share is not None]
    if not shares:
        return key
    public: Any = public_key(granted(views[HUB])[f"public {SERVICE}"])
    return joined(public, key, shares)


def theft(play: Callable[[Meddle], Recorded], client: str) -> Theft:
    """A run with this client as a thief. play: runs it with parties that are changed before they begin."""
    thieves: list[KeyThief] = []

    def meddle(federation: Federation, delays: Delays) -> None:
        party: Any = federation.alter(client)
        summands = 2 if party.config.keys == "threshold" else 1
        thieves.append(KeyThief(party.spec, late=LATE, summands=summands))
        wrap(party, thieves[0].between)
        delays.least[client] = LATE

    run = play(meddle)
    return Theft(thieves[0], client, run)


def findings(theft: Theft) -> list[Finding]:
    """How much of the key is right in the last reading. If all is, also the error of others' updates opened with it.

    The true key opens these updates, too. Chance is a guess of zero.
    """
    thief, client, run = theft
    truth = whole_key(run.views)
    if thief.guess is None:
        raise UserError(f"{client} received no model after its forged update: take more rounds")
    agreement = key_agreement(thief.guess, key_coefficients(truth))
    found = [Finding(f"{client}, deviating: the helper's key", (agreement,), round=thief.round)]
    if thief.key is not None:
        others = [(seen.src, m) for seen, m in run.views[HUB].messages(Update) if seen.src != client]
        errors = []
        for _, message in others:
            vector = truth.public.from_bytes(message.cipher)
            update = truth.decrypt(vector)
            errors.append(float(np.linalg.norm(thief.key.decrypt(vector) - update) / np.linalg.norm(update)))
        opened = Result("relative error of updates", fmean(errors), 1.0, 0.0, len({name for name, _ in others}))
        found.append(Finding(f"the hub with the key of {client}: the others' updates", (opened,)))
    return found
