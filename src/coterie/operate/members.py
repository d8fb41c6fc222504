"""``members.toml``: the parties of a deployment, each with its role and, for servers, its host.

[[member]]
role = "server"          # a server is named as its role
host = "hub.example.org"

[[member]]
name = "hospital-a"      # a client
role = "client"
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from coterie.deploy.names import HOST, check_name, is_loopback
from coterie.protocol.errors import UserError, suggest
from coterie.protocol.system import System

_EXAMPLE = 'a member is a table such as\n[[member]]\nname = "hospital-a"\nrole = "client"\nhost = "a.example.org"'


class PlannedMember(msgspec.Struct, frozen=True):
    """host: DNS name or address of its machine, "" if unknown, as a client's may be."""

    name: str
    role: str
    host: str = ""


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    name: str = ""
    host: Annotated[str, msgspec.Meta(pattern=rf"\A({HOST.pattern})?\Z")] = ""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    member: Annotated[list[_Table], msgspec.Meta(min_length=1)]


def read_members(path: Path) -> tuple[PlannedMember, ...]:
    """Raises UserError with the number of the table, from 0."""
    try:
        found = msgspec.convert(tomllib.loads(path.read_bytes().decode()), _File)
    except OSError as error:
        raise UserError(f"cannot read the members {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UserError(f"{path}: {error}. It has tables [[member]] only: {_EXAMPLE}") from None
    return tuple(PlannedMember(one.name or one.role, one.role, one.host) for one in found.member)


def check_members(
    members: Sequence[PlannedMember], system: System, config: Any, mode: str, *, rehearsal: bool = False
) -> tuple[PlannedMember, ...]:
    """The members in the roster's order: the hub, the other servers, the clients as named.

    Raises UserError unless they are exactly the mode's parties, with different names, and, but in a rehearsal, each
    server has its own host.
    """
    *servers, client = roles = tuple(system.factories(config, mode))
    by_name: dict[str, PlannedMember] = {}
    for one in members:
        if one.role not in roles:
            raise UserError(
                f"member {one.name!r} has the role {one.role!r}{suggest(one.role, roles)} The roles of {system.name} "
                f"({mode}) are: {', '.join(roles)}"
            )
        check_name(one.name)
        if one.role != client and one.name != one.role:
            raise UserError(
                f"member {one.name!r} has the role {one.role}: a server is the only one of its role and bears its "
                f"name, so leave the name out, or write {one.role!r}"
            )
        if one.name in by_name or (one.role == client and one.name in roles):
            raise UserError(f"member {one.name!r} is named twice, or as a role: every party has a name of its own")
        by_name[one.name] = one
    for role in servers:
        if role not in by_name:
            raise UserError(f'no member has the role {role}, which {system.name} needs: add [[member]] role = "{role}"')
    clients = [one for one in members if one.role == client]
    if not clients:
        raise UserError(f"no member has the role {client}: add the parties that have data")
    if not rehearsal:
        check_hosts([by_name[role] for role in servers])
    return (*(by_name[role] for role in servers), *clients)


def check_hosts(servers: Sequence[PlannedMember]) -> None:
    """Raises UserError unless each of these servers has its own host."""
    of_host: dict[str, str] = {}
    for one in servers:
        if not one.host:
            raise UserError(f"{one.name} has no host: name the machine that it runs on, which no other server shares")
        other = of_host.setdefault("localhost" if is_loopback(one.host) else one.host.lower(), one.name)
        if other != one.name:
            raise UserError(
                f"{other} and {one.name} are both on {one.host}: servers that must not learn each other's secrets do "
                "not share a machine. Give each a host of its own. (`coterie deploy try` runs all on one.)"
            )
