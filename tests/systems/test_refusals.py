"""Why a party refuses is for the observer alone: no coordinator can read it, as it may hold the party's own numbers."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from every_system import model_for
from federation import misbehaving
from prepared import prepared

from coterie.protocol.errors import PeerError, RunError
from coterie.protocol.messages import Message
from coterie.protocols import local_training
from coterie.protocols.anonymous import Relayed
from coterie.protocols.cluster_sums import Convert
from coterie.protocols.hidden_sums import Enlist
from coterie.protocols.key_centre import KEY_CENTRE, Deal
from coterie.protocols.masked_sums import AskForTerm, Total
from coterie.protocols.sealed_groups import AskForRow, Join, OpenRows, Settle, Step
from coterie.protocols.setup_sums import AskForSummand, OpenSum, Unblind
from coterie.protocols.signatures import Characterise, Group
from coterie.report.summary import results
from coterie.runs import RunConfig, build, registry, run

PRIVATE = "799.375"
ROUNDS = (1, 2, 3)
REASON = f"value {PRIVATE} at index 1 is too large"
SETTINGS: dict[str, dict[str, Any]] = {
    "fedcaprivacy": {"clusters": 2},
    "mingledpie": {"clusters": 3},
    "pafed": {"participation": 1.0},
    "rfl_ha": {"clusters": 2},  # so that heads have members
}
OURS = [name for name, system in registry.SYSTEMS.items() if system.config.__module__.startswith("coterie.")]
SYSTEMS = [
    pytest.param(name, mode, marks=() if mode == registry.get(name).modes[0] else pytest.mark.long, id=f"{name}-{mode}")
    for name in OURS
    for mode in registry.get(name).modes
]


def config(name: str, mode: str = "paper") -> RunConfig:
    known = registry.get(name).config.__dataclass_fields__
    more: dict[str, Any] = {
        ("fedcaprivacy", "hardened"): {"descriptor": "model"},
        ("fedepc", "hardened"): {"participation": 0.75},  # sums of three
    }.get((name, mode), {})
    wanted = {key: value for key, value in {**SETTINGS.get(name, {}), **more, "max_epochs": 1}.items() if key in known}
    given = {"delta": 0.5, "delay": "uniform:1-1"} if name == "pafed" else {}
    options: dict[str, Any] = {"clients": 4, "rounds": 3, "partition": "iid", "crypto": "emulated", **given}
    data = {"data": "digits", "samples": 200} if name == "fedbn" else {"data": "synthetic:8x4"}
    return RunConfig(name, mode=mode, settings=wanted, model=model_for(name), **data, **options)


def listened(steps: Generator[Any, Any, Any], heard: list[str]) -> Generator[Any, Any, Any]:
    """The same coordinator; all that the transport hands it or throws into it is noted."""
    value: Any = None
    try:
        step = next(steps)
        while True:
            try:
                value = yield step
            except BaseException as error:
                heard.append(f"{error!r} {error.__cause__!r} {error.__context__!r}")
                step = steps.throw(error)
            else:
                heard.append(repr(value))
                step = steps.send(value)
    except StopIteration as stop:
        heard.append(repr(stop.value))
        return stop.value


def refuse(party: Any, message: Message, answer: Any) -> None:
    raise PeerError(REASON)


BEFORE_ROUNDS = {
    "helper": (Unblind, Relayed, OpenRows, Step, Settle, Enlist),
    "client": (AskForSummand, OpenSum, AskForRow, Join),
}
"""Of Coterie."""


def asked(config: RunConfig) -> list[tuple[str, type[Message]]]:
    """Which messages of honest rounds the others handle, by role. Meters have other names for leaders."""
    meters = [prepared(config, r).transport.meter for r in ROUNDS]
    sent = {key.split(" > ")[1].split()[1] for meter in meters for key in meter.message_bytes}
    federation = prepared(config).federation
    others = {party.role: party for name, party in federation.parties.items() if name != federation.hub}
    return [(role, kind) for role, party in others.items() for kind in party.handlers if kind.__name__ in sent]


@pytest.mark.parametrize(("name", "mode"), SYSTEMS)
def test_no_coordinator_can_read_why_a_party_refused_and_the_observer_can(name: str, mode: str) -> None:
    never = []
    for role, kind in asked(config(name, mode)):
        experiment, heard, told = prepared(config(name, mode)), list[str](), 0
        for party in experiment.common.roster.of_role(role):
            misbehaving(experiment.federation.alter(party), kind, refuse)
        hub = experiment.federation.parties[experiment.federation.hub]
        honest = type(hub).round
        hub.round = lambda r, hub=hub, honest=honest, heard=heard: listened(honest(hub, r), heard)
        for r in ROUNDS:
            if told == 2 or (told and not experiment.transport.meter.refused):
                break  # a round after the first refusal, or the second
            try:
                line = experiment.round(r)
            except RunError as error:
                why, skipped = str(error), None
            else:
                why, skipped = " ".join(line["refused"]), line["notes"].get("skipped")
            if experiment.transport.meter.refused:
                told += 1
                assert PRIVATE in why, "the observer knows"
                assert skipped is None or PRIVATE in skipped, "also where a round is skipped for it"
        experiment.close()
        assert heard
        assert not [words for words in heard if PRIVATE in words], (role, kind)
        never += [kind.__name__] * (not told)
    assert never == [], "each is refused in some round"


@pytest.mark.parametrize(
    ("role", "kind"),
    [
        ("participant", Characterise),
        ("csp", Group),
        *(pytest.param("participant", kind, marks=pytest.mark.long) for kind in (AskForTerm, Total)),
        *(pytest.param("csp", kind, marks=pytest.mark.long) for kind in (Convert, Relayed)),
        *((role, kind) for role, kinds in BEFORE_ROUNDS.items() for kind in kinds if kind is not Relayed),
    ],
)
def test_neither_can_the_hub_read_why_in_the_set_up_of_signatures(role: str, kind: type[Message]) -> None:
    options: dict[str, Any] = {"clients": 4, "rounds": 1, "partition": "iid", "crypto": "emulated"}
    hardened = RunConfig("fedcaprivacy", mode="hardened", **options)
    config = RunConfig("coterie", **options) if role in BEFORE_ROUNDS else hardened
    experiment, heard = build(config), list[str]()
    for party in experiment.common.roster.of_role(role):
        misbehaving(experiment.federation.alter(party), kind, refuse)
    hub = experiment.federation.parties[experiment.federation.hub]
    honest = type(hub).setup
    hub.setup = lambda: listened(honest(hub), heard)
    goes_on = kind is Characterise  # then all are in one group
    with nullcontext() if goes_on else pytest.raises(RunError, match=PRIVATE):
        experiment.set_up()
    assert any(PRIVATE in reason for reason in experiment.transport.meter.refused)
    experiment.close()
    assert heard
    assert not [words for words in heard if PRIVATE in words]


def dealt(name: str) -> list[str]:
    """The modes of a system in which a key centre deals its keys."""
    system = registry.get(name)
    return [mode for mode in system.modes if KEY_CENTRE in system.factories(system.config(), mode)]


@pytest.mark.parametrize("name", [name for name in OURS if dealt(name)])
def test_a_set_up_that_fails_for_a_refusal_tells_the_observer_why(name: str) -> None:
    mode = dealt(name)[0]
    experiment, heard = build(config(name, mode)), list[str]()
    misbehaving(experiment.federation.alter(KEY_CENTRE), Deal, refuse)
    hub = experiment.federation.parties[experiment.federation.hub]
    honest = type(hub).setup
    hub.setup = lambda: listened(honest(hub), heard)
    with pytest.raises(RunError, match=PRIVATE):
        experiment.set_up()
    experiment.close()
    assert heard
    assert not [words for words in heard if PRIVATE in words]


def test_the_console_and_the_result_name_the_commonest_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = itertools.count()

    def picky(spec: Any, digest: bytes, weights: Any, *more: Any) -> Any:
        if not more and next(asked) % 3:  # two of three clients: a run that is nothing but refused has no result
            raise PeerError(REASON)
        return weights

    monkeypatch.setattr(local_training, "check_model", picky)
    result = run(RunConfig("fedavg", clients=3, rounds=2, out=str(tmp_path / "run"), settings={"max_epochs": 1}))
    assert result.summary["refused_why"] == {f"client/Train: {REASON}": 4}
    assert ("refused", f"4 × client/Train: {REASON}") in results(result.summary)
