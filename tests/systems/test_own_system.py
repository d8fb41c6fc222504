"""The system that docs/own_system.md shows is a whole one: it runs, averages, and sees what it says it sees."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from federation import misbehaving, planted, rig
from own_system import page_module
from typer.testing import CliRunner

from coterie.api import reproduce
from coterie.cli.app import app
from coterie.protocol.errors import RunError, UserError
from coterie.protocol.party import To
from coterie.protocol.system import BROKER, BROKER_LEARNS
from coterie.protocols.key_centre import KEY_CENTRE
from coterie.protocols.threshold.opening import Announce
from coterie.protocols.threshold.pads import Count
from coterie.reproductions import items
from coterie.runs import RunConfig, run
from coterie.runs.recorded import record
from coterie.runs.registry import audit_of

TARGETS = planted([0, 0, 1, 1, 2], 40)


@pytest.fixture
def secure_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return page_module(tmp_path, monkeypatch)


def trained(weights: np.ndarray) -> np.ndarray:
    """One step of every client from the same weights, at a rate of a half."""
    return weights + 0.5 * (TARGETS - weights)


KEYS = pytest.mark.parametrize(
    "settings", [{}, {"keys": "threshold"}, {"keys": "threshold", "pads": False}], ids=["centre", "pads", "no pads"]
)


SHARED = pytest.mark.parametrize(
    "settings", [{"keys": "threshold"}, pytest.param({}, marks=pytest.mark.long)], ids=["pads", "centre"]
)


@KEYS
@pytest.mark.parametrize("emulated", [True, False], ids=["emulated", "real"])
def test_it_is_the_mean_of_all_models_round_after_round(
    secure_mean: ModuleType, emulated: bool, settings: dict[str, Any]
) -> None:
    made = rig(secure_mean.SYSTEM, TARGETS, emulated=emulated, **settings)
    expected = made.models()[0]
    for r in (1, 2):
        assert made.round(r) == {"participants": 5, "asked": 5}
        expected = trained(expected).mean(axis=0)
        assert np.abs(made.models() - expected).max() < 1e-5
    assert not made.refused


def test_what_must_hold_follows_who_has_the_key(secure_mean: ModuleType) -> None:
    kind, said = secure_mean.SYSTEM.config, secure_mean.SYSTEM.assumed
    centre, together = said("paper", kind()), said("paper", kind(keys="threshold"))
    assert centre.startswith("no client helps the server, since all clients share one secret key; the key centre is ")
    assert centre.endswith(together)
    assert together.startswith("in every sum at least two clients show nobody what they know; ")


def test_each_role_receives_what_it_says(secure_mean: ModuleType) -> None:
    for keys, roles in (("centre", {"server", "client", KEY_CENTRE}), ("threshold", {"server", "client"})):
        made, kinds = rig(secure_mean.SYSTEM, TARGETS, keys=keys), defaultdict(set)
        made.rounds(2)
        assert made.transport.transcript is not None
        for view in made.transport.transcript.views.values():
            kinds[view.role] |= view.kinds()
        views = secure_mean.SYSTEM.views("paper", made.config)
        assert kinds == {role: {kind.__name__ for kind in sees.receives} for role, sees in views.items()}
        assert set(kinds) == roles


@KEYS
def test_a_sum_of_too_few_models_is_not_made(secure_mean: ModuleType, settings: dict[str, Any]) -> None:
    made = rig(secure_mean.SYSTEM, TARGETS, **settings)
    made.round(1)
    before = made.models()
    for name in made.common.clients[2:]:
        misbehaving(made.party(name), secure_mean.Train, lambda party, request, answer: None)
    assert made.round(2)["skipped"] == "2 models, and a sum is of 3 or more"
    assert np.array_equal(made.models(), before)


def test_with_shared_keys_a_client_that_is_gone_falls_out_of_the_mean(secure_mean: ModuleType) -> None:
    """With pads its share is not needed; without, the sum stays closed and the round says why."""
    for pads in (True, False):
        made = rig(secure_mean.SYSTEM, TARGETS, keys="threshold", pads=pads)
        start = made.models()[0]
        for kind in (secure_mean.Train, Count, Announce):
            misbehaving(made.party("client/4"), kind, lambda party, request, answer: None)
        notes = made.round(1)
        if pads:
            assert notes == {"participants": 4, "asked": 5}
            assert np.abs(made.models()[:4] - trained(start)[:4].mean(axis=0)).max() < 1e-5
        else:
            assert notes["skipped"].startswith("a sum under key 'mean' is opened by 5 of 5 holders: client/4: ")
            assert np.array_equal(made.models()[0], start)


@KEYS
def test_nobody_alone_opens_what_the_server_holds_with_shared_keys(
    secure_mean: ModuleType, settings: dict[str, Any]
) -> None:
    made = rig(secure_mean.SYSTEM, TARGETS, emulated=False, **settings)
    made.round(1)
    secrets = [made.party(name).secret for name in made.common.clients]
    if settings:
        assert not any(secret.keys.secret for secret in secrets)
        assert len({secret.joint.held["mean"].share for secret in secrets}) == 5
    else:
        assert len({secret.keys.secret["mean"] for secret in secrets}) == 1


@pytest.mark.parametrize("wrong", ["text", ("a", "tuple")])
def test_a_handler_that_returns_something_else_is_told_what_it_may(secure_mean: ModuleType, wrong: object) -> None:
    made = rig(secure_mean.SYSTEM, TARGETS)
    misbehaving(made.party("client/1"), secure_mean.Train, lambda party, request, answer: wrong)
    with pytest.raises(RunError, match=r"client/1 ends Train with .*: a handler returns a message to its sender, To\("):
        made.round(1)


def test_a_handler_may_return_one_message_for_somebody_else(secure_mean: ModuleType) -> None:
    made = rig(secure_mean.SYSTEM, TARGETS)
    misbehaving(made.party("client/1"), secure_mean.Train, lambda party, request, answer: To("server", answer))
    assert made.round(1)["participants"] == 5


@SHARED
def test_it_runs_by_its_name(secure_mean: ModuleType, settings: dict[str, Any]) -> None:
    found = {}
    for crypto in ("emulated", "real"):
        config = RunConfig("secure_mean:SYSTEM", crypto=crypto, clients=4, rounds=2, out=crypto, settings=settings)
        found[crypto] = run(config).summary
    assert found["emulated"]["bytes_up"] == found["real"]["bytes_up"]
    assert found["emulated"]["global_accuracy"] == pytest.approx(found["real"]["global_accuracy"], abs=0.02)


@SHARED
def test_it_is_resumed(secure_mean: ModuleType, settings: dict[str, Any]) -> None:
    config = RunConfig("secure_mean:SYSTEM", crypto="emulated", clients=4, rounds=3, out="straight", settings=settings)
    run(replace(config, rounds=2, out="resumed"))
    digests = [
        one.rounds[-1]["models_sha256"] for one in (run(config), run(replace(config, out="resumed"), resume=True))
    ]
    assert digests[0] == digests[1]


def test_it_is_audited_by_its_name(secure_mean: ModuleType, tmp_path: Path) -> None:
    options = {"clients": 6, "rounds": 3, "partition": "dirichlet:0.3", "crypto": "emulated", "record": True}
    run(RunConfig("secure_mean:SYSTEM", out="seen", **options))
    ended = CliRunner().invoke(app, ["audit", "seen", "--json"])
    content = json.loads(ended.stdout)
    assert {role["role"]: role["learns"] for role in content["roles"]} == {
        **{role: sees.learns for role, sees in secure_mean.SYSTEM.views("paper").items()},
        BROKER: BROKER_LEARNS,
    }
    shares, top = content["attacks"]
    assert [shares["name"], top["name"]] == [
        f"server with any client's key: {what}" for what in ("label shares", "top label")
    ]
    assert shares["first"] > 0.6
    assert (shares["chance"], shares["rounds"], shares["clients"]) == (0.0, 3, 6)
    ended = CliRunner().invoke(app, ["audit", "seen", "--active"], env={"COLUMNS": "200"})
    assert (ended.exit_code, "an emulated key has no secret to be stolen" in ended.stderr) == (2, True)
    with pytest.raises(UserError, match="there is no joint key 'mean' in this run"):
        audit_of(secure_mean.SYSTEM).active(record(RunConfig("secure_mean:SYSTEM", **{**options, "crypto": "real"})))
    run(RunConfig("secure_mean:SYSTEM", out="shared", settings={"keys": "threshold"}, **options))
    ended = CliRunner().invoke(app, ["audit", "shared", "--json"])
    (mean,) = json.loads(ended.stdout)["attacks"]
    assert mean["name"] == "client: samples of others that were trained on, by the model that it is sent"


@pytest.mark.parametrize(
    ("audit", "says"),
    [
        ("secure_mean:SYSTEM", "'secure_mean:SYSTEM' is of the type System, not coterie.privacy.audits.Audit"),
        ("secure_mean:NONE", "audit 'secure_mean:NONE' cannot be imported"),
    ],
)
def test_an_audit_that_is_none_is_told(secure_mean: ModuleType, audit: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        audit_of(replace(secure_mean.SYSTEM, audit=audit))


def test_it_may_have_reproductions(secure_mean: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "with_items.py").write_text(
        """
from dataclasses import replace
from coterie.reproductions.study import Calculation, Item
import secure_mean

ITEM = Item("with_items:SYSTEM/sum", "Sums", (Calculation("seeds", int),), lambda found: [{"sum": sum(found["seeds"])}])
ITEMS = {ITEM.name: ITEM}
SYSTEM = replace(secure_mean.SYSTEM, reproductions=("with_items:ITEMS",))
"""
    )
    assert list(items("with_items:SYSTEM")) == ["with_items:SYSTEM/sum"]
    page = reproduce("with_items:SYSTEM/sum", seeds=4, out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / "sum.json").read_text())["rows"] == [{"sum": 6}]
    assert "coterie reproduce with_items:SYSTEM/sum --seeds 4" in page.read_text()
