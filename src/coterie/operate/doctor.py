"""``coterie deploy doctor``: checks the places of secrets, files, clocks, certificates and plans. It
tells no secret.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from coterie.crypto import certificates
from coterie.deploy import plan as plans
from coterie.deploy.engine import EngineError
from coterie.deploy.home import INFO, Home, agreement_words, has_agreed, read_home, read_private
from coterie.deploy.plan import Plan
from coterie.deploy.recorder import OPEN
from coterie.deploy.status import STATUS
from coterie.operate.folder import Folder, current_plan, open_folder, operator_of
from coterie.operate.joining import CLIENT_BESIDE, servers_near
from coterie.operate.tokens import INVITATION
from coterie.protocol.errors import PeerError, RunError, UserError
from coterie.record.leaks import PEM, Patterns
from coterie.report.words import plural

SKEW_S = 60.0
_PRIVATE = ("authority", "invitations", "members", "requests")
_DEPTH = 3
_RENEW = "let the operator run coterie deploy renew DIR"


@dataclass(frozen=True)
class Diagnosis:
    """level: a ``problem`` must be mended before a party starts.  where: a file, a folder or a party."""

    level: Literal["problem", "warning", "ok"]
    where: str
    text: str


_problem, _warning, _ok = partial(Diagnosis, "problem"), partial(Diagnosis, "warning"), partial(Diagnosis, "ok")


@dataclass(frozen=True)
class _Holder:
    name: str
    folder: Path
    keys: tuple[Path, ...]
    secrets: Mapping[str, bytes]


def doctor(
    paths: Sequence[Path],
    now_s: float | None = None,
    ahead_s: Callable[[Folder], float] | None = None,
    check_apart: Callable[[Home], None] | None = None,
) -> list[Diagnosis]:
    """All findings about deployments' folders and homes.  ahead_s: how far the server's clock is ahead; check_apart:
    ``engines.check_apart``; None: not asked. Raises UserError for a folder that is neither.
    """
    now_s = time.time() if now_s is None else now_s
    folders, homes = _places(paths)
    found: list[Diagnosis] = []
    holders = [_holder_of_home(home) for home in homes]
    for folder in folders:
        holders += _holders_of_folder(folder)
        found += _of_folder(folder, now_s)
        if ahead_s is not None:
            found.append(_skew(str(folder.path), ahead_s(folder)))
    held = {home.path: _held(home) for home in homes}
    known = [*map(current_plan, folders), *(one for one in held.values() if isinstance(one, Plan))]
    newest = {
        operator: max((one for one in known if one.roster.operator == operator), key=lambda one: one.version)
        for operator in {one.roster.operator for one in known}
    }
    for home in homes:
        found += _of_home(home, held[home.path], newest.get(home.operator), now_s)
        if check_apart is not None and home.plan.exists():
            found += _apart(home, check_apart)
    found += _modes(folders, homes)
    found += _shared(homes, newest)
    found += _secrets([*(one.path for one in folders), *(one.path for one in homes)], holders)
    if not any(one.level == "problem" for one in found):
        found.append(_ok(plural(len(homes), "home"), "no secret of one party lies in another's home"))
    return found


def _places(paths: Sequence[Path]) -> tuple[list[Folder], list[Home]]:
    folders, homes = [], {}
    for path in paths:
        if (path / INFO).is_file():
            homes[path.resolve()] = read_home(path)
            continue
        folders.append(open_folder(path))
        for depth in range(1, _DEPTH + 1):
            for info in sorted(path.glob("*/" * depth + INFO)):
                homes[info.parent.resolve()] = read_home(info.parent)
    return folders, list(homes.values())


def _holder_of_home(home: Home) -> _Holder:
    identity, name = home.identity, home.name
    secrets = {f"the signing key of {name}": identity.signing, f"the opening key of {name}": identity.opening}
    secrets[f"the TLS key of {name}"] = _scalar(home.tls_key)
    return _Holder(name, home.path.resolve(), (home.tls_key.resolve(),), secrets)


def _holders_of_folder(folder: Folder) -> Iterator[_Holder]:
    at = folder.nats.resolve()
    if (at / "key.pem").exists():
        yield _Holder("the server", at, (at / "key.pem",), {"the TLS key of the server": _scalar(at / "key.pem")})
    at = folder.authority.resolve()
    if at.is_dir():
        own = {name: read_private(at / name) for name in ("signing", "possession", "token")}
        own |= {"TLS": _scalar(at / "tls.pem"), "certificate": _scalar(at / "ca.pem")}
        secrets = {f"the {name} key of the operator": value for name, value in own.items()}
        yield _Holder("the operator", at, (at / "tls.pem", at / "ca.pem"), secrets)


def _scalar(path: Path) -> bytes:
    try:
        return certificates.scalar(read_private(path))
    except ValueError:
        raise UserError(f"{path} is no key, or a damaged one") from None


# -- secrets and modes ------------------------------------------------------------------------------------------------


def _secrets(places: Sequence[Path], holders: Sequence[_Holder]) -> Iterator[Diagnosis]:
    of_secret = {name: holder for holder in holders for name in holder.secrets}
    values: dict[bytes, str] = {}
    for holder in holders:
        for name, value in holder.secrets.items():
            if (other := values.setdefault(value, name)) != name:
                yield _problem(holder.name, f"{name} is the same as {other}: one of them was copied")
    pem, token = "a private key", "an invitation"
    needles = Patterns({name: value for value, name in values.items()}, {pem: PEM, token: f"{INVITATION}:".encode()})
    key_files = {path for holder in holders for path in holder.keys}
    for path in _files(places):
        for name in sorted(needles.found_in(path)):
            if name == token:
                yield _warning(str(path), "holds an invitation: remove it when it was used")
            elif name == pem:
                if path.resolve() not in key_files:
                    yield _problem(str(path), "holds a private key (PEM), which is no file's place but keys/")
            elif not path.resolve().is_relative_to(of_secret[name].folder):
                yield _problem(str(path), f"holds {name}: remove it, and give its owner new keys (--again)")


def _files(places: Sequence[Path]) -> list[Path]:
    found = {}
    for place in places:
        for folder, _, names in os.walk(place):
            for name in names:
                path = Path(folder, name)
                if stat.S_ISREG(path.lstat().st_mode):
                    found[path.resolve()] = path
    return list(found.values())


def _modes(folders: Sequence[Folder], homes: Sequence[Home]) -> Iterator[Diagnosis]:
    if sys.platform == "win32":
        yield _warning("modes", "files have no modes here: see to it that nobody else can read them")
        return
    private = [folder.path / name for folder in folders for name in _PRIVATE]
    private += [
        path for folder in folders for path in (folder.nats / "key.pem", folder.run / STATUS, folder.run / OPEN)
    ]
    for place in [*private, *(home.path for home in homes)]:
        paths = [place, *(Path(at, name) for at, inner, names in os.walk(place) for name in (*inner, *names))]
        for path in paths:
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISLNK(found.st_mode):
                yield _problem(str(path), "is a symbolic link: put the file itself here")
            elif found.st_uid != os.geteuid():
                yield _problem(str(path), f"belongs to another user (number {found.st_uid})")
            elif stat.S_IMODE(found.st_mode) & 0o077:
                mode = "700" if stat.S_ISDIR(found.st_mode) else "600"
                yield _problem(str(path), f"others may read or write it: chmod {mode} {path}")


# -- who shares what --------------------------------------------------------------------------------------------------


def _shared(homes: Sequence[Home], newest: Mapping[bytes, Plan]) -> Iterator[Diagnosis]:
    by_name: dict[tuple[bytes, str], Home] = {}
    for home in homes:
        if (other := by_name.setdefault((home.operator, home.name), home)) is not home:
            yield _warning(str(home.path), f"is a second home of {home.name}, beside {other.path}")
    for home in homes:
        for other in homes:
            if other is not home and other.path.resolve() in home.path.resolve().parents:
                yield _problem(str(home.path), f"lies in the home of {other.name}: move it out")
    for operator in dict.fromkeys(home.operator for home in homes):
        if not (operator in newest and newest[operator].settings.rehearsal):
            yield from _one_machine([home for home in homes if home.operator == operator])


def _one_machine(homes: Sequence[Home]) -> Iterator[Diagnosis]:
    """homes: of one deployment, all here."""
    servers = sorted({one.name for home in homes for one in (home, *servers_near(home)) if one.serves})
    clients = sorted({home.name for home in homes if not home.serves})
    if len(servers) > 1:
        yield _problem(
            ", ".join(servers),
            "have their homes on one machine: whoever owns it learns the secrets of them all. Move all but one away",
        )
    if servers and clients:
        yield _warning(", ".join(clients), f"on one machine with {', '.join(servers)}: whoever owns it {CLIENT_BESIDE}")


# -- plans, keys, certificates, clocks --------------------------------------------------------------------------------


def _held(home: Home) -> Plan | PeerError | None:
    try:
        return plans.check(read_private(home.plan), home.operator) if home.plan.exists() else None
    except PeerError as error:
        return error


def _of_folder(folder: Folder, now_s: float) -> Iterator[Diagnosis]:
    plan, where = current_plan(folder), str(folder.path)
    if plan.missing:
        yield _warning(where, f"have not joined yet: {', '.join(plan.missing)}")
    yield _ok(where, f"holds the plan, {plan.shown}")
    if operator_of(folder) != plan.roster.operator:
        yield _problem(where, "the plan is another operator's")
    yield from _clock(where, plan, now_s)
    yield from _expiry(folder.ca, now_s, "it cannot be renewed, so found a new deployment")
    for path in folder.own_certificates.values():
        yield from _expiry(path, now_s, f"run coterie deploy renew {folder.path}")
    for file in sorted(folder.invitations.glob("*.json")):
        yield _warning(str(file), "is an invitation that was not used yet")


def _of_home(home: Home, plan: Plan | PeerError | None, newest: Plan | None, now_s: float) -> Iterator[Diagnosis]:
    where = f"{home.name} ({home.path})"
    if plan is None:
        yield _warning(where, "has no certificate yet: the operator is to approve its request")
        return
    if isinstance(plan, PeerError):
        yield _problem(where, f"{plan}; ask the operator for the certificate again")
        return
    yield _ok(where, f"holds the plan, {plan.shown}")
    if newest is not None and newest.session == plan.session:
        if plan.version == newest.version and plan != newest:
            yield _problem(where, f"there is another plan of version {plan.version} here: ask the operator why")
        if plan.version < newest.version:
            own = home.name == plan.roster.hub
            comes = (
                f"takes version {newest.version} from this folder"
                if own
                else f"the hub brings it version {newest.version}"
            )
            yield _ok(where, f"holds version {plan.version} of the plan, and {comes}")
        plan = newest
    if not has_agreed(home, plan):
        yield _warning(where, agreement_words(home, plan))
    ours = home.entry
    if home.name in plan.revoked:
        yield _warning(where, "is revoked")
    elif (listed := plan.roster.by_name.get(home.name)) != ours:
        what = "another role" if listed is not None and replace(listed, role=ours.role) == ours else "other keys"
        yield _problem(where, f"the roster has {what} for {home.name}: it is an old home, or a swapped one")
    yield from _clock(where, plan, now_s)
    advice = f"{_RENEW}, and the hub brings a new one; after its end, coterie deploy join NAME.cert --home {home.path}"
    yield from _expiry(home.certificate, now_s, advice)
    try:
        public = certificates.public_of(read_private(home.tls_key))
        at_s = certificates.validity(read_private(home.certificate))[0] + certificates.SKEW_S
        certificates.check(read_private(home.certificate), read_private(home.ca), home.common_name, public, at_s)
    except PeerError as error:
        yield _problem(where, str(error))


def _clock(where: str, plan: Plan, now_s: float) -> Iterator[Diagnosis]:
    if plan.signed_s > now_s + SKEW_S:
        late_s = plan.signed_s - now_s
        yield _problem(where, f"this clock is {late_s:.0f} s or more behind the operator's: set it")
    if plan.settings.not_after_s and now_s > plan.settings.not_after_s:
        yield _problem(where, f"the deployment has ended: its plan is valid no more. {_RENEW}")


def _skew(where: str, ahead_s: float) -> Diagnosis:
    text = f"the server's clock is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this one"
    return Diagnosis("ok" if abs(ahead_s) < SKEW_S else "problem", where, text)


def _apart(home: Home, check_apart: Callable[[Home], None]) -> Iterator[Diagnosis]:
    where = f"{home.name} ({home.path})"
    try:
        check_apart(home)
    except RunError as error:
        yield _problem(where, str(error))
    except EngineError as error:
        yield _warning(where, f"the broker cannot be asked: {error}")
    else:
        yield _ok(where, "the broker keeps this member apart from its API and from the others")


def _expiry(path: Path, now_s: float, advice: str) -> Iterator[Diagnosis]:
    try:
        begins, ends = certificates.validity(read_private(path))
    except PeerError as error:
        yield _problem(str(path), str(error))
        return
    if now_s < begins:
        yield _problem(str(path), "the certificate is not valid yet: look at this clock")
    elif now_s > ends:
        yield _problem(str(path), f"the certificate has ended: {advice}")
    elif ends - now_s < certificates.SOON_S:
        days = plural(round((ends - now_s) / certificates.DAY_S), "day")
        yield _warning(str(path), f"the certificate ends in {days}: {advice}")
