"""What every party sees is what the system says it sees; no server holds a model, an indicator or the secret key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from federation import Pulled, Rig, Steady
from mingledpie_parts import EVERYBODY, GROUPS, TARGETS, chosen, key_of, near, parts_of, pies

from coterie.crypto.ckks import keygen as ckks_keygen
from coterie.privacy.views import granted
from coterie.protocol import codec
from coterie.protocol.errors import CryptoError, PeerError
from coterie.protocols.key_centre import KEY_CENTRE
from coterie.systems.mingledpie import SYSTEM
from coterie.systems.mingledpie.messages import HUB, USER, Mingled, Parameters, Received, Train, Update

FEW = slice(0, 12, 2)


def recorded(mode: str, hardening: str = "products", *, rounds: int = 3, **options: Any) -> Rig:
    """Rounds in which p changes, and somebody is away and comes back."""
    if mode == "paper":
        options = {"p_changes": "3:0.25", **options}
    run = pies(
        TARGETS[FEW],
        starts=near(),
        mode=mode,
        hardening=hardening,
        effects=lambda targets: Pulled(targets, noise=0.02),
        links=Steady(away={("client/5", 2): "offline"}),
        **options,
    )
    run.rounds(rounds)
    return run


def test_what_the_server_learns_is_told_apart_by_mode() -> None:
    assert "identities" in SYSTEM.views("paper")[HUB].learns
    assert SYSTEM.views("literal") == SYSTEM.views("paper")
    assert "identities" not in SYSTEM.views("hardened")[HUB].learns


# -- bytes -------------------------------------------------------------------------------------------------------------


def holds(data: bytes, parts: set[bytes]) -> bool:
    return any(part in data for part in parts)


def test_sums_and_updates_are_all_that_the_server_sees_of_a_round_and_it_can_open_nothing() -> None:
    run = recorded("paper", emulated=False, rounds=1)
    assert list(granted(run.view(HUB))) == [f"public {USER}"]
    stranger = ckks_keygen("ckks-4096-add", emulated=False, random_bytes=bytes)
    party = run.party("client/0")
    for _, update in run.view(HUB).messages(Update):
        for part in parts_of(party, update):
            with pytest.raises((PeerError, CryptoError)):
                stranger.decrypt(stranger.public.from_bytes(part))
            assert len(key_of(party).decrypt(key_of(party).public.from_bytes(part))) == 23  # which others can


def fields(struct: Any) -> Iterator[Any]:
    return (getattr(struct, name) for name in struct.__struct_fields__)


# -- what of identity --------------------------------------------------------------------------------------------------


def shape_of_view(run: Rig) -> list[Any]:
    """All that the server sees but the ciphertexts' and signatures' bytes."""
    rows = []
    for seen in run.view(HUB).seen:
        message = seen.message
        told = () if message is None else tuple(
            value.tolist() if isinstance(value, np.ndarray) and value.dtype != np.uint8 else len(value)
            if isinstance(value, bytes | np.ndarray)
            else value
            for value in fields(message)
        )  # fmt: skip
        rows.append((seen.time_s, seen.round, seen.src, seen.kind, seen.size, told))
    return rows


@pytest.mark.parametrize("hardening", ["uploads", pytest.param("products", marks=pytest.mark.long)])
def test_in_hardened_mode_nothing_that_the_server_sees_depends_on_the_true_clusters(hardening: str) -> None:
    """Times, sizes, order and every field: equal for clients of other clusters, and where all are in one."""
    told = []
    for groups in (GROUPS[FEW], [2, 1, 0, 2, 0, 1], [1] * 6):
        targets = np.stack([TARGETS[4 * g] for g in groups])
        run = pies(targets, starts=near(), mode="hardened", hardening=hardening)
        run.rounds(3)
        assert chosen(run) == groups
        told.append(shape_of_view(run))
        assert [u.identities.size for _, u in run.view(HUB).messages(Update)] == [0] * 18
    assert told[0] == told[1] == told[2]


def test_in_paper_mode_the_sets_are_all_that_depends_on_the_true_clusters() -> None:
    """The same comparison finds CI_i, and nothing beside it."""
    told = []
    for groups in (GROUPS[FEW], [2, 1, 0, 2, 0, 1]):
        run = pies(np.stack([TARGETS[4 * g] for g in groups]), starts=near(), max_condition=1e12)
        run.rounds(2)
        told.append(shape_of_view(run))
    assert told[0] != told[1]
    for a, b in zip(*told, strict=True):
        assert a[:4] == b[:4]
        if a != b:
            assert a[3] in ("Update", "Received")
    sets = [[row[5][2] for row in rows if row[3] == "Update"] for rows in told]
    assert sets[0] != sets[1]


def test_the_server_says_the_sets_sizes_and_nobody_elses_set_to_clients() -> None:
    run = recorded("paper", rounds=1)
    ((_, mingled),) = run.view("client/0").messages(Mingled)
    sets = [set(u.identities.tolist()) for _, u in run.view(HUB).messages(Update)]
    assert mingled.sizes.tolist() == [sum(j in own for own in sets) for j in range(3)]
    assert run.view("client/0").kinds() == {"Granted", "Parameters", "Train", "Mingled"}
    assert {seen.src for seen in run.view("client/0").seen} == {HUB, KEY_CENTRE}


def test_all_clients_are_told_the_same() -> None:
    """One broadcast: nobody's start models, keys or sums are its own."""
    run = recorded("paper", rounds=1)
    for kind in (Parameters, Train, Mingled):
        assert len({codec.encode(m) for name in EVERYBODY[:6] for _, m in run.view(name).messages(kind)}) == 1
    for _, answer in run.view(HUB).messages(Received):
        assert answer.round == 1
