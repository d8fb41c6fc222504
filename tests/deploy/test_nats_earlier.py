"""A broker with a configuration in which members share an account is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

from nats_rig import Rig

from coterie.deploy.engine import OWN_RIGHTS, EngineError
from coterie.deploy.engines import check_apart
from coterie.operate import nats_server
from coterie.operate.doctor import _apart
from coterie.operate.nats_server import configuration
from coterie.protocol.errors import RunError


def earlier(*about: Any) -> str:
    """The configuration with all users in the account of the stream, and no question about rights."""
    lines = configuration(*about).splitlines()
    [at] = [number for number, line in enumerate(lines) if line.startswith("accounts: ")]
    users = [user for one in json.loads(lines[at].removeprefix("accounts: ")).values() for user in one.get("users", ())]
    for user in users:
        allowed = user["permissions"]["publish"]["allow"]
        user["permissions"]["publish"]["allow"] = [one for one in allowed if one != OWN_RIGHTS]
    lines[at] = "accounts: " + json.dumps({"COTERIE": {"jetstream": "enabled", "users": users}})
    return "\n".join(lines) + "\n"


def home(rig: Rig, name: str) -> Any:
    return SimpleNamespace(name=name, path="H", server=",".join(rig.urls), tls=rig.tls[name])


def test_it_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_server, "configuration", earlier)
    with Rig(tmp_path, ("hub", "client/1")) as made:
        with pytest.raises(RunError, match=r"any member can delete what waits there\. Run coterie deploy server DIR"):
            check_apart(home(made, "client/1"))
        [found] = _apart(home(made, "client/1"), check_apart)
        assert found.level == "problem"


def test_the_own_configuration_keeps_members_apart(rig: Rig) -> None:
    check_apart(home(rig, "hub"))
    [found] = _apart(home(rig, "client/1"), check_apart)
    assert found.level == "ok"


def test_a_broker_that_cannot_be_asked_is_a_warning(tmp_path: Path) -> None:
    made = Rig(tmp_path, ("hub", "client/1"))
    with pytest.raises(EngineError, match="no connection"):
        check_apart(home(made, "hub"), connect_s=0.5)
    [found] = _apart(home(made, "hub"), lambda one: check_apart(one, connect_s=0.5))
    assert (found.level, found.text[:27]) == ("warning", "the broker cannot be asked:")
