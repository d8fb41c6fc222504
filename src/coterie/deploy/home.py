"""A party's home: a private folder (files 0600, folders 0700) with its keys, data and state."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from coterie.crypto import certificates
from coterie.crypto.roster import entry
from coterie.crypto.signing import KEY_BYTES, OpeningKey, SigningKey
from coterie.data.form import SampleForm
from coterie.deploy import plan as plans
from coterie.deploy.engine import Tls
from coterie.deploy.logs import event
from coterie.deploy.names import check_name, hosts_of, is_loopback, safe
from coterie.deploy.plan import NewPlanError, OlderPlanError, Plan
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.setup_info import Entry, Identity
from coterie.record import files
from coterie.runs.keyring import PartyKeys

INFO, STATE, PLAN = "home.json", "state.bin", "plan.bin"
RUNS = "runs"
"""Folders of former runs, by number: a home's plan and state, an operator's run folder."""
HUB, RUN, RESTORED = "hub", "run", "restored"
"""In an operator's folder: the hub's home, the run folder, and a file while parties may have a newer plan."""
ADVICE = "is this the home of a party, as `coterie deploy join` makes it?"
MAX_BYTES = 1 << 24
_SEED_BYTES = 4

T = TypeVar("T")
Hex32 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``home.json``.  server: URL.  operator: the public key, hex.

    report: scores that the owner allows to be sent.  epochs: local ones in a round; 0 for the most.  accelerator: of
    this machine.
    """

    name: str
    role: str
    server: str
    operator: Hex32
    facts: SampleForm
    report: tuple[str, ...] = ()
    epochs: Annotated[int, msgspec.Meta(ge=0)] = 0
    accelerator: Literal["cpu", "cuda", "auto"] = "cpu"


class AgreedRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``agreed.json``: the newest run to which the owner has agreed, and its plan's hash."""

    run: int = 1
    plan_sha256: str = ""


class Home:
    """The files of a home, and ``About`` it.

    common_name: in its certificate.  operator: the public key, 32 bytes.  keys: folder of secret keys.  tls_key:
    SECRET, PEM.  certificate, ca: its own and the authority's, PEM.  plan: the newest seen.  data: own samples.  state:
    of this plan's run.  run: a former one, whose plan and state are meant.
    """

    def __init__(self, path: Path, about: About, run: int | None = None) -> None:
        self.path, self.about, self.run = path, about, run
        of = path if run is None else path / RUNS / str(run)
        self.name, self.role, self.server, self.report = about.name, about.role, about.server, about.report
        self.common_name = safe(about.name)
        self.operator = bytes.fromhex(about.operator)
        self.keys, tls = path / "keys", path / "tls"
        self.tls_key = self.keys / "tls.pem"
        self.certificate, self.ca = tls / "certificate.pem", tls / "authority.pem"
        self.tls = Tls(self.certificate, self.tls_key, self.ca)
        self.plan, self.data, self.state = of / PLAN, path / "data.npz", of / STATE
        self.request, self.log = path / "request", path / "log.jsonl"
        self.agreed = path / "agreed.json"

    @property
    def identity(self) -> Identity:
        """SECRET: its keys. Raises UserError if they are missing or cut."""
        return Identity(read_private(self.keys / "signing", KEY_BYTES), read_private(self.keys / "opening", KEY_BYTES))

    @property
    def entry(self) -> Entry:
        """With its public keys, as the roster has it."""
        return entry(self.name, self.role, self.identity)

    @property
    def formers(self) -> list[Home]:
        """This home in each earlier run that it has begun, the oldest first."""
        runs = sorted(int(found.parent.name) for found in (self.path / RUNS).glob(f"[0-9]*/{STATE}"))
        return [Home(self.path, self.about, run) for run in runs if self.run is None or run < self.run]

    @property
    def former(self) -> Home | None:
        return self.formers[-1] if self.formers else None

    @property
    def serves(self) -> bool:
        """Whether it is a server's, which alone bears the name of its role."""
        return self.name == self.role

    def seed(self) -> int:
        return int.from_bytes(read_private(self.keys / "seed", _SEED_BYTES), "little")


def make_home(path: Path, about: About, tls_key: bytes, fill: Callable[[Home], object] = lambda home: None) -> Home:
    """A new home with fresh keys, whole or not at all.

    fill: writes its other content. Raises UserError if the place is taken or in a home.
    """
    check_name(about.name)
    files.check_new(path, "a home")
    for above in path.absolute().parents:
        if (above / INFO).exists():
            raise UserError(f"{path} lies in the home {above}: parties do not share a home, so choose another")
    with files.whole_folder(path) as begun:
        home = Home(begun, about)
        for folder in (home.keys, home.certificate.parent):
            files.make_folder(folder)
        write_private(home.keys / "signing", SigningKey.generate().to_bytes())
        write_private(home.keys / "opening", OpeningKey.generate().to_bytes())
        write_private(home.keys / "seed", os.urandom(_SEED_BYTES))
        write_private(home.tls_key, tls_key)
        fill(home)
        write_private(home.path / INFO, msgspec.json.format(msgspec.json.encode(about), indent=2) + b"\n")
    return Home(path, about)


def read_home(path: Path) -> Home:
    """Raises UserError for a folder that is no home, or of another user."""
    files.check_own(path)
    about = read_json(path / INFO, About)
    check_name(about.name)
    return Home(path, about)


def plan_of(home: Home) -> Plan:
    """Raises UserError if there is none, or its operator has not signed it."""
    if not home.plan.exists():
        raise UserError(
            f"{home.path} has no plan yet: when the operator has approved {home.name}, run "
            f"coterie deploy join {safe(home.name)}.cert --home {home.path}"
        )
    try:
        plan = plans.check(read_private(home.plan), home.operator)
    except PeerError as error:
        raise UserError(f"{home.plan}: {error}; ask the operator for this party's certificate again") from None
    if home.name not in plan.roster.by_name:
        raise UserError(f"the plan in {home.path} does not name {home.name}: ask the operator for a certificate")
    if home.name in plan.revoked:
        raise UserError(f"the operator has revoked {home.name} (version {plan.version} of the plan)")
    return plan


def take_plan(home: Home, data: bytes) -> Plan:
    """Keep a plan that came, and the certificate that it renews. Returns the plan that the home then holds.

    A new run moves the former one's plan and state to ``RUNS``. Raises as ``check_plan``, and then changes nothing.
    """
    old, new = check_plan(home, data)
    if old is not None and new.version == old.version:
        return old
    if old is not None and new.run > old.run:
        _put_by(home, old.run)
    if (certificate := _renewed(home, new)) is not None:
        write_private(home.certificate, certificate)
    write_private(home.plan, data)
    return new


def check_plan(home: Home, data: bytes) -> tuple[Plan | None, Plan]:
    """The plan that the home holds, if any, and the one that came.

    Raises OlderPlanError for an older one, and PeerError for one that is forged, another of the same version or
    session, without this party's keys and role, with a renewed certificate of other keys, with other terms for the same
    run, or, at a hub that has begun, with parties that joined since.
    """
    new = plans.check(data, home.operator)
    check_ours(home, new)
    _renewed(home, new)
    if not home.plan.exists():
        return None, new
    held = read_private(home.plan)
    old = plans.check(held, home.operator)
    if (new.session == old.session) != (new.run == old.run):
        raise PeerError("the plan is of another federation of the same operator")
    if new.version < old.version or new.run < old.run:
        raise OlderPlanError(f"the plan is of version {new.version}, and version {old.version} was seen before", held)
    if new.version == old.version and new != old:
        raise PeerError(f"there are two plans of version {new.version}: the operator should be asked why")
    if new.run == old.run:
        _check_same_run(home, old, new)
    return old, new


def renewed(home: Home, held: Plan, data: bytes) -> Plan:
    """As ``take_plan``, while the run of ``held`` goes on. Raises NewPlanError for a later run's plan."""
    if check_plan(home, data)[1].run > held.run:
        raise NewPlanError(data)
    plan = take_plan(home, data)
    event("plan", plan=plan.version, plan_sha256=plan.sha256)
    return plan


def _put_by(home: Home, run: int) -> None:
    former = Home(home.path, home.about, run)
    files.make_folder(home.path / RUNS)
    files.make_folder(former.plan.parent)
    write_private(former.plan, read_private(home.plan))
    if home.state.exists():
        with files.writing(former.state):
            os.replace(home.state, former.state)


def take_back(home: Home, plan: Plan) -> None:
    """Put this plan's state back, if the party was stopped while it took the next."""
    former = Home(home.path, home.about, plan.run)
    if former.state.exists():
        with files.writing(home.state):
            os.replace(former.state, home.state)


def agree(home: Home, plan: Plan) -> None:
    """The owner agrees to this plan's run."""
    write_private(home.agreed, msgspec.json.encode(AgreedRun(plan.run, plan.sha256)) + b"\n")


def has_agreed(home: Home, plan: Plan) -> bool:
    """The owner agrees to the first run by joining, and to a further one by ``agree``. The hub's owner is the
    operator.
    """
    if home.name == plan.roster.hub:
        return True
    given = read_json(home.agreed, AgreedRun) if home.agreed.exists() else AgreedRun()
    return given.run >= plan.run


def agreement_words(home: Home, plan: Plan) -> str:
    return (
        f"the owner of {home.name} has not agreed to run {plan.run} (plan: {plan.shown}): run coterie deploy agree "
        f"--home {home.path}"
    )


def _renewed(home: Home, plan: Plan) -> bytes | None:
    """A later certificate. Raises PeerError for one of other keys."""
    found = plan.certificates.get(home.name)
    if found is None or not home.certificate.exists():  # a party that joins has it from elsewhere
        return None
    (begins_s, ends_s), public = certificates.validity(found), certificates.public_of(read_private(home.tls_key))
    certificates.check(found, read_private(home.ca), home.common_name, public, begins_s)
    return found if ends_s > certificates.validity(read_private(home.certificate))[1] else None


def check_ours(home: Home, plan: Plan) -> None:
    """Raises PeerError unless the roster has this home's keys and role."""
    listed, ours = plan.roster.by_name.get(home.name), home.entry
    if listed is None or replace(listed, role=ours.role) != ours:
        raise PeerError(f"version {plan.version} of the plan does not have the keys of {home.name}")
    if listed != ours:
        raise PeerError(f"{home.name} was invited as {home.role}, and the roster has another role")


def check_secret(home: Home, plan: Plan) -> None:
    """Raises UserError for a plan by which a party between machines keeps nothing secret."""
    rehearsal, version = plan.settings.rehearsal, f"version {plan.version} of the plan"
    if rehearsal and not all(is_loopback(host) for host in hosts_of(home.server)):
        raise UserError(
            f"{version} is a rehearsal, whose parties share a seed, and the server of {home.path} is not on this "
            "machine: ask the operator why"
        )
    if not rehearsal and plan.resolved.crypto == "emulated":
        raise UserError(f"{version} has emulated ciphers, which keep nothing secret: ask the operator why")


def _check_same_run(home: Home, old: Plan, new: Plan) -> None:
    if new.terms != old.terms:
        raise PeerError(f"version {new.version} of the plan changes the terms of run {new.run}: ask the operator why")
    names = [one.name for one in old.roster.entries]
    others = [one.name for one in new.roster.entries if one.name not in names]
    if others and home.name == new.roster.hub and home.state.exists():
        raise PeerError(
            f"version {new.version} of the plan has {', '.join(others)}, and the run has begun without: put "
            f"{home.plan} back in its place, and begin another run with them"
        )


def hub_home(folder: Path) -> Home:
    """In an operator's folder, updated to the newest plan. Raises UserError."""
    home, newest = read_home(folder / HUB), folder / PLAN
    try:
        take_plan(home, read_private(newest))
    except PeerError as error:
        raise UserError(f"{newest}: {error}") from None
    return home


def keyring_of(home: Home, plan: Plan) -> PartyKeys:
    return PartyKeys(plan.believed, {home.name: home.identity})


def write_private(path: Path, data: bytes) -> None:
    """For this user alone, whole or not at all."""
    files.atomic_write(path, data, files.FILE_MODE)


def read_private(path: Path, size: int | None = None) -> bytes:
    """Raises UserError for a link, a pipe, a large file, or another size."""
    with files.reading(path, ADVICE), files.opened(path, follow=False) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES or (size is not None and len(data) != size):
        raise UserError(f"{path} is damaged, or no file of coterie: {ADVICE}")
    return data


def read_json(path: Path, kind: type[T]) -> T:
    """Raises UserError as ``read_private`` does, and for a damaged file."""
    return files.decoded_json(path, read_private(path), kind)
