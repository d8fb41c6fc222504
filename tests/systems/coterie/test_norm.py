"""``check=norm``: no client moves its group further than the clip, and no server learns more of an upload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matrix import few
from msgspec.structs import replace
from prepared import prepared
from tampering import flipped

from coterie.crypto import norm_proof
from coterie.crypto.norm_proof import Proof
from coterie.crypto.one_hot import SEED_BYTES
from coterie.protocol.errors import PeerError
from coterie.protocols import norm_check
from coterie.protocols.hidden_sums import ClientRow
from coterie.protocols.norm_check import Challenge, ClientNorms, HubNorms, Toss, Tossing
from coterie.runs import RunConfig
from coterie.runs.digests import models_digest
from coterie.runs.experiment import Experiment

SETTINGS = {"lr": 0.1, "max_epochs": 1, "noise": 0.0, "check": "norm", "fewest": 1}


def made(settings: dict[str, Any] | None = None, **options: Any) -> Experiment:
    base = {"clients": 8, "partition": "permute:2", "crypto": "emulated", "model": "linear", "rounds": 3}
    return prepared(RunConfig("coterie", settings={**SETTINGS, **(settings or {})}, **{**base, **options}))


def notes(line: dict[str, Any]) -> dict[str, Any]:
    return dict(line["notes"])


def party(experiment: Experiment, name: str) -> Any:
    return experiment.federation.alter(name)


def long_uploads(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    """client/0 uploads, and keeps to prove, a vector of so many times the longest that it may send."""

    def lengthened(act: Callable[..., Any]) -> Callable[..., Any]:
        def acting(self: Any, x: np.ndarray, *rest: Any) -> Any:
            if self.party.name == "client/0":
                draw = np.random.default_rng(0).normal(size=len(x))
                draw *= times * self.party.grid.longest / np.linalg.norm(draw)
                x = np.rint(draw).astype(np.int64).astype(np.uint32)
            return act(self, x, *rest)

        return acting

    monkeypatch.setattr(ClientRow, "upload", lengthened(ClientRow.upload))
    monkeypatch.setattr(ClientNorms, "keep", lengthened(ClientNorms.keep))


@pytest.mark.parametrize(
    "options",
    few([{}, {"crypto": "real"}, {"clusters": 1}], [{"crypto": "real"}, {"clusters": 1}]),
    ids=["emulated", "real", "one group"],
)
def test_honest_rounds_are_those_without_the_check(options: dict[str, Any]) -> None:
    options, settings = dict(options), {}
    if "clusters" in options:
        settings["clusters"] = options.pop("clusters")
    digests = []
    for check in ("tag", "norm"):
        e = made({"check": check, **settings}, **options)
        lines = [e.round(r) for r in (1, 2)]
        assert [notes(line)["added"] for line in lines] == [8, 8]
        digests.append(models_digest(e.models(2)))
    assert digests[0] == digests[1]


def test_an_upload_that_is_too_long_is_counted_without_the_check_and_not_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long_uploads(monkeypatch, 3)
    assert notes(made({"check": "tag"}).round(1))["added"] == 8
    found = notes(made().round(1))
    assert (found["added"], found["unproved"]) == (7, 1)


def test_a_false_proof_is_not_counted_and_costs_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client proves as if its projections were those of a short vector, with a valid signature."""
    long_uploads(monkeypatch, 3)
    prove = norm_proof.prove

    def proving(hub: Any, other: Any, bound: int, context: bytes, secrets: Any) -> Proof | None:
        honest = prove(hub, other, bound, context, secrets)
        return honest or prove(hub, np.negative(hub), bound, context, secrets)

    monkeypatch.setattr(norm_proof, "prove", proving)
    found = notes(made().round(1))
    assert (found["added"], found["unproved"]) == (7, 0)


@pytest.mark.parametrize(("times", "counted"), [(1.1, 8), (2.2, 7)])
def test_a_client_moves_its_group_by_little_more_than_the_clip(
    times: float, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A length of 1.1 clips passes, by the slack of the projections. Twice the clip passes with 2e-6."""
    long_uploads(monkeypatch, times)
    assert notes(made().round(1))["added"] == counted


# ---- a hub that deviates


def test_no_proof_of_another_upload_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub gives one client the proof of another one."""
    proved = HubNorms.proved

    def mixing(self: Any, *arguments: Any) -> Any:
        tossing = yield from proved(self, *arguments)
        first, second, *_ = tossing.proofs
        swapped = {first: tossing.proofs[second], second: tossing.proofs[first]}
        return replace(tossing, proofs={**tossing.proofs, **swapped})

    monkeypatch.setattr(HubNorms, "proved", mixing)
    assert notes(made().round(1))["added"] == 6


class Played:
    """One upload of client/0 in round 1, and a coin that was tossed over it, or over another one."""

    def __init__(self, over: bytes | None = None) -> None:
        e = made()
        self.client, self.hub, self.helper = (party(e, name) for name in ("client/0", "hub", "helper"))
        x = np.full(self.client.spec.size, 100, np.uint32)
        row = self.client.row
        self.client.norms.keep(x, row.upload(x, 1), row.secret.groups)
        self.sent = self.client.norms.secret.sent[1]
        part = bytes(range(SEED_BYTES))
        commitment = norm_check._commitment(self.hub, 1, part)
        tossed = self.helper.norms.toss(Toss(1, over or self.sent.name, commitment), "hub")
        self.challenge = Challenge(1, 1, part + tossed.part, tossed.signature)

    def counted(self) -> bool:
        """Whether the helper counts it, if hub and client follow the protocol."""
        name, parts = self.sent.name, self.challenge.parts
        proof = self.client.norms.prove(self.challenge, "hub")
        upload = ("client/0", 1)
        told = self.hub.norms.told(1, Tossing(parts, {upload: name}, {upload: proof}), [upload], [self.sent.hub])
        coin = self.helper.norms.coin(1, parts[:SEED_BYTES])
        found = self.helper.norms.short(coin, [("client/0", 1, name)], told, [self.sent.x - self.sent.hub])
        return bool(found[0])


def test_an_upload_is_counted_only_if_the_coin_was_tossed_over_it() -> None:
    """Another one could have been made to fit the projections."""
    assert Played().counted()
    assert not Played(over=bytes(32)).counted()


@pytest.mark.parametrize("field", ["round", "parts", "signature"])
def test_a_client_proves_nothing_by_a_coin_that_the_helper_has_not_signed(field: str) -> None:
    """With other projections than the helper's, what is opened would show a product of x."""
    played = Played()
    good = getattr(played.challenge, field)
    bad = replace(played.challenge, **{field: good + 1 if field == "round" else flipped(good, 3)})
    with pytest.raises(PeerError):
        played.client.norms.prove(bad, "hub")
    assert played.counted()


def test_an_upload_is_proved_once() -> None:
    played = Played()
    assert played.counted()
    with pytest.raises(PeerError, match="no upload of round 1"):
        played.client.norms.prove(played.challenge, "hub")


def test_the_helper_takes_no_other_part_than_the_hub_has_committed_to() -> None:
    e = made()
    e.round(1)
    helper = party(e, "helper").norms
    with pytest.raises(PeerError, match="part of the coin"):
        helper.coin(1, bytes(SEED_BYTES))
    with pytest.raises(PeerError, match="part of the coin"):
        helper.coin(2, bytes(SEED_BYTES))


def test_a_coin_is_tossed_once_a_round() -> None:
    e = made()
    e.round(1)
    helper = party(e, "helper").norms
    with pytest.raises(PeerError, match="after that of round 1"):
        helper.toss(Toss(1, bytes(32), bytes(32)), "hub")
    with pytest.raises(PeerError, match="bytes of names"):
        helper.toss(Toss(2, bytes(31), bytes(32)), "hub")
    with pytest.raises(PeerError, match="after that of round 0"):
        party(made({"check": "tag"}), "helper").norms.toss(Toss(1, bytes(32), bytes(32)), "hub")


def test_a_hub_that_leaves_proofs_out_gets_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HubNorms, "told", lambda *_: [])
    found = notes(made().round(1))
    assert found["added"] == 0
    assert "no bundle of 8" in found["skipped"]
