"""Devices that join in the middle of a run, or vanish in a round, beside a hub that asks them what they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import coterie.method as fl
from coterie.baselines.fedavg import SYSTEM as FEDAVG
from coterie.devices.resources import resources
from coterie.runs import RunConfig, build


@fl.message(src="server", dst="client")
class Describe(fl.Message, frozen=True):
    round: int


@fl.message(src="client", dst="server")
class Described(fl.Message, frozen=True):
    cpu_ghz: float
    memory_gib: float
    samples: int


class Device(fl.AveragingClient, role="client"):
    @fl.on(Describe)
    def describe(self, msg: Describe, src: str) -> fl.Work[Described]:
        cpu_ghz, memory_gib = yield fl.Local(resources)
        return Described(cpu_ghz, memory_gib, self.samples)


class Asking(fl.Server, role="server"):
    """FedAvg that asks each client for its resources as soon as it has joined, until it answers."""

    class State(fl.Server.State):
        known: dict[str, tuple[float, float, int]] = msgspec.field(default_factory=dict)

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        here = fl.joined(self.clients, self.config, r)
        strangers = [name for name in here if name not in self.state.known]

        def fold(name: str, said: Described) -> None:
            self.state.known[name] = said.cpu_ghz, said.memory_gib, said.samples

        answers = yield from fl.for_each(dict.fromkeys(strangers, Describe(r)), Described, fold)
        notes = yield from super().round(r)
        late = {name: seconds for name, seconds in answers.after_s.items() if not seconds > 0}
        return {**notes, "strangers": strangers, "described": answers.got, "why": dict(answers.missing), "late": late}


SYSTEM = replace(FEDAVG, parties=lambda config: {"server": Asking, "client": Device})
FLEET = """
[[device]]
name = "shy"
compute_flops_per_s = 5e9
up_bytes_per_s = 1e6
down_bytes_per_s = 4e6
availability = 0.7
dropout = 0.3
cpu_ghz = 1.25
memory_gib = 0.5
spread = 0.3
"""


def test_each_is_described_in_the_round_in_which_it_joins_or_in_the_next_in_which_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "shy.toml").write_text(FLEET)
    options = {"data": "digits", "model": "linear", "clients": 9, "rounds": 8, "devices": str(tmp_path / "shy.toml")}
    settings = {"founders": 3, "newcomers": 2, "join_every": 2}
    made = build(RunConfig(f"{__name__}:SYSTEM", **options, settings=settings, drift="0.5@4"))
    made.set_up()
    known: set[str] = set()
    failed = 0
    for r in range(1, 9):
        notes = made.round(r)["notes"]
        here = made.common.clients[: min(9, 3 + 2 * ((r - 1) // 2))]
        assert notes["strangers"] == [name for name in here if name not in known]
        assert {*notes["described"], *notes["why"]} == {*notes["strangers"]}
        assert notes["late"] == {}
        assert {*made.models(r)} == {*here}
        known |= {*notes["described"]}
        failed += len(notes["why"])
    assert failed > 0, "nobody was ever away"
    assert len(known) > 6
    told = made.parties["server"].state.known
    assert {*told} == known
    for name, (cpu_ghz, memory_gib, samples) in told.items():
        device = made.effects.devices[name]
        assert (cpu_ghz, memory_gib) == (device.cpu_ghz, device.memory_gib)
        assert samples in {len(made.dealt.data[name].y), made.owns[name].samples}
    assert len({cpu_ghz for cpu_ghz, _, _ in told.values()}) == len(told)
    np.testing.assert_allclose(np.median([cpu_ghz for cpu_ghz, _, _ in told.values()]), 1.25, rtol=0.5)
    made.close()
