"""A party joins: makes its home and keys, asks, and takes in the answer."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from coterie.crypto import certificates
from coterie.data.form import OwnSamples, read_data
from coterie.deploy import plan as plans
from coterie.deploy.home import (
    INFO,
    About,
    Home,
    agree,
    check_ours,
    make_home,
    plan_of,
    read_home,
    read_private,
    take_plan,
    write_private,
)
from coterie.deploy.names import safe
from coterie.deploy.plan import Plan, fingerprint
from coterie.operate import tokens
from coterie.operate.tokens import Invitation
from coterie.protocol.errors import CoterieWarning, PeerError, UserError, suggest
from coterie.record.files import atomic_write

CLIENT_BESIDE = (
    "has the samples of a client, and knows what a server and a client that collude would know. Give each a machine of "
    "its own"
)


def join(
    text: str,
    path: Path,
    data: Path | None = None,
    *,
    report: Sequence[str] = (),
    epochs: int | None = None,
    accelerator: Literal["cpu", "cuda", "auto"] = "cpu",
    out: Path = Path(),
    now_s: float | None = None,
) -> tuple[Home, Path]:
    """Make a party's home from its invitation; returns it, and the path of its request.

    data: ``.npz``, which is copied.  report: scores that the owner allows to be sent.  epochs: local ones in a round;
    None for the most.  out: folder for the request. Raises UserError, and then leaves no home behind.
    """
    invitation, token = tokens.read_invitation(text, time.time() if now_s is None else now_s)
    samples = _samples(invitation, data)
    _check_choices(invitation, report, epochs)
    if not out.is_dir():
        raise UserError(f"there is no folder {out} to write the request to")
    about = About(
        name=invitation.name,
        role=invitation.role,
        server=invitation.server,
        operator=invitation.operator.hex(),
        facts=invitation.facts,
        report=tuple(report),
        epochs=epochs or 0,
        accelerator=accelerator,
    )
    tls_key = certificates.new_key()

    def fill(home: Home) -> None:
        if samples is not None:
            write_private(home.data, samples.to_bytes())
        write_private(home.request, tokens.ask(invitation, token, home.identity, tls_key).encode())

    home = make_home(path, about, tls_key, fill)
    request = out / f"{safe(invitation.name)}.request"
    atomic_write(request, read_private(home.request))
    return home, request


def accept(home: Home, text: str, now_s: float | None = None) -> Plan:
    """Take in the operator's certificate. Returns the plan in it. Warns of a server's home near it.

    Raises UserError, and keeps nothing, for one that is forged, another party's, of other keys, expired, or with an
    older plan than the home has seen.
    """
    try:
        found = tokens.read_certificate(text, home.operator)
        if found.name != home.name:
            raise PeerError(f"it is the certificate of {found.name!r:.60}")
        public = certificates.public_of(read_private(home.tls_key))
        now_s = time.time() if now_s is None else now_s
        certificates.check(found.tls, found.authority, home.common_name, public, now_s)
        plan = plans.check(found.plan, home.operator)
        check_ours(home, plan)
        known = home.plan.exists()
        if known and plan.run > plan_of(home).run:
            raise PeerError(f"the hub brings the plan of run {plan.run} to a party that has joined")
        taken = take_plan(home, found.plan)
        write_private(home.certificate, found.tls)
        write_private(home.ca, found.authority)
        if not known:
            agree(home, taken)
    except PeerError as error:
        raise UserError(f"this certificate is not for {home.path}: {error}") from None
    others = [] if taken.settings.rehearsal else sorted({one.name for one in servers_near(home)} - {home.name})
    if others:
        why = "learns the secrets of both servers. Join on a machine of another owner" if home.serves else CLIENT_BESIDE
        warnings.warn(
            f"{home.path} is on one machine with the home of {', '.join(others)}: whoever owns it {why}",
            CoterieWarning,
            stacklevel=2,
        )
    return taken


def servers_near(home: Home) -> list[Home]:
    """Homes of this deployment's servers up to two folders away, also this one."""
    found = {}
    for place in home.path.resolve().parents[:2]:
        for info in (*place.glob(f"*/{INFO}"), *place.glob(f"*/*/{INFO}")):
            with suppress(UserError, OSError):
                other = read_home(info.parent)
                if other.operator == home.operator and other.serves:
                    found[other.path] = other
    return list(found.values())


def _samples(invitation: Invitation, data: Path | None) -> OwnSamples | None:
    if not invitation.data:
        if data is not None:
            raise UserError(f"{invitation.name} joins as {invitation.role}, which has no samples: leave --data out")
        return None
    if data is None:
        raise UserError(f"{invitation.name} joins as {invitation.role}, which has samples: name them with --data")
    return read_data(data, invitation.facts)


def _check_choices(invitation: Invitation, report: Sequence[str], epochs: int | None) -> None:
    for name in report:
        if name not in invitation.scores:
            known = ", ".join(invitation.scores) or "none"
            raise UserError(
                f"no score {name!r} is reported in this deployment{suggest(name, invitation.scores)} It has: {known}"
            )
    if epochs is not None and not 1 <= epochs <= invitation.max_epochs:
        raise UserError(f"epochs is {epochs}; this deployment has 1 to {invitation.max_epochs} local epochs in a round")


def own_fingerprint(place: Home) -> str:
    """Of a home's keys, for its owner to compare."""
    return fingerprint(place.entry)


def samples_in_words(place: Home) -> str:
    facts = place.about.facts
    own = read_data(place.data, facts)
    told = f"Its data: {len(own.y)} sample{'s' * (len(own.y) != 1)} to train on, {len(own.y_test):,} for tests"
    if facts.task == "classes":
        told += f", {len({*own.y.tolist(), *own.y_test.tolist()})} of {facts.outputs} classes"
    return f"{told}."
