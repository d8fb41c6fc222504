"""The runner of effects: one by one and batched agree, ciphertexts are opened once, errors find their owner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from emulated import exact

import coterie.method as fl
from coterie.runs.interpreter import LocalEffects, OpenedCache
from coterie.runs.on_data import ClientData, TensorSamples
from coterie.training.jobs import DivergedError
from coterie.training.models import build

MODEL = build("linear", (6,), 3)


def data(clients: int, seed: int = 0) -> dict[str, ClientData]:
    rng = np.random.default_rng(seed)
    made = {}
    for i in range(clients):
        n = 5 + 3 * i
        x = torch.from_numpy(rng.normal(size=(n, 6)).astype(np.float32))
        y, test = torch.from_numpy(rng.integers(0, 3, n)), rng.permutation(20)[: 4 + i]
        made[f"client/{i}"] = ClientData(x, y, test, TensorSamples(X_TEST, Y_TEST))
    return made


RNG = np.random.default_rng(9)
X_TEST = torch.from_numpy(RNG.normal(size=(20, 6)).astype(np.float32))
Y_TEST = torch.from_numpy(RNG.integers(0, 3, 20))


def effects(clients: int = 4, **options: Any) -> LocalEffects:
    return LocalEffects(MODEL, data(clients), **options)


def plain_sgd(weights: np.ndarray, own: ClientData, lr: float, epochs: int) -> np.ndarray:
    """Full-batch softmax regression by hand: gradient (p - onehot) x^T / n."""
    w = weights[:18].reshape(3, 6).astype(np.float64)
    b = weights[18:].astype(np.float64)
    x, y = own.x.double().numpy(), own.y.numpy()
    for _ in range(epochs):
        z = x @ w.T + b
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        w, b = w - lr * p.T @ x / len(y), b - lr * p.mean(0)
    return np.concatenate([w.ravel(), b])


def test_everybody_trains_on_their_own_data() -> None:
    runner, start = effects(), MODEL.initial(1)
    wanted = [(f"client/{i}", fl.Fit(start, fl.Sgd(0.3, 1000), 1 + i, seed=i)) for i in (2, 0, 3, 1)]
    got = runner.run(wanted)
    for (name, fit), fitted in zip(wanted, got, strict=True):
        np.testing.assert_allclose(fitted.weights, plain_sgd(start, runner.data[name], 0.3, fit.epochs), atol=1e-5)
        assert fitted.samples == len(runner.data[name].y)


def test_evaluation_on_own_training_and_test_samples() -> None:
    runner, w = effects(), MODEL.initial(2)
    got = runner.run([("client/1", fl.Evaluate(w)), ("client/1", fl.Evaluate(w, "test"))])
    own = runner.data["client/1"]
    module = MODEL.module_with(w)
    for result, x, y in ((got[0], own.x, own.y), (got[1], X_TEST[own.test], Y_TEST[own.test])):
        logits = module(x).detach()
        assert result.accuracy == pytest.approx(float((logits.argmax(1) == y).float().mean()))
        assert result.loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, y)), abs=1e-6)
        assert result.samples == len(y)


@dataclass(frozen=True)
class Key:
    """Opens bytes to their lengths; counts."""

    name: str
    opened: list[bytes] = field(default_factory=list, compare=False)

    @property
    def public(self) -> Key:
        return self

    def from_bytes(self, data: bytes) -> bytes:
        if data == b"forged":
            raise fl.PeerError("forged")
        if data == b"foreign":
            raise fl.CryptoError("another key")
        return data

    def decrypt(self, data: bytes) -> np.ndarray:
        self.opened.append(data)
        return np.full(3, float(len(data)))


def test_identical_bytes_are_opened_once_also_later_and_by_key() -> None:
    runner, key, other = effects(), Key("a"), Key("b")
    wanted = [(f"client/{i}", fl.Open(key, b"abc")) for i in range(3)] + [("client/3", fl.Open(other, b"abc"))]
    first = runner.run([*wanted, ("client/0", fl.Open(key, b"abcd"))])
    assert [value[0] for value in first] == [3, 3, 3, 3, 4]
    runner.run(wanted)
    assert key.opened == [b"abc", b"abcd"]
    assert other.opened == [b"abc"]
    with pytest.raises(ValueError, match="read-only"):
        first[0][0] = 1


def test_the_memory_of_opened_ciphertexts_is_bounded() -> None:
    opened, computed = OpenedCache(limit_bytes=100), []

    def value(i: int) -> Any:
        return lambda: computed.append(i) or np.zeros(5)  # 40 bytes

    for i in (0, 1, 0, 2, 0, 1):
        opened.get("key", bytes([i]), value(i))
    assert computed == [0, 1, 2, 1]  # 1 was used least recently when 2 came
    assert opened._bytes == 80


def test_refusals_stand_where_their_result_would() -> None:
    runner, key, w = effects(), Key("a"), MODEL.initial(0)
    wanted = [
        ("client/0", fl.Open(key, b"forged")),
        ("client/1", fl.Open(key, b"foreign")),
        ("client/2", fl.Open(key, b"ok")),
    ]
    got = runner.run([*wanted, ("client/3", fl.Fit(w, fl.Sgd(0.1), 1, 0))])
    assert [type(value) for value in got[:2]] == [fl.PeerError, fl.CryptoError]
    assert got[2][0] == 2
    assert np.isfinite(got[3].weights).all()


def test_encryption_and_opening_with_a_real_api() -> None:
    secret = exact.keygen(2048, random_bytes=np.random.default_rng(0).bytes)
    values = np.array([0.5, -1.25, 3.0])
    (cipher,) = effects().run([("client/0", fl.Encrypt(secret.public, values))])
    (got,) = effects().run([("client/0", fl.Open(secret, cipher.to_bytes()))])
    np.testing.assert_array_equal(got, values)


def test_a_run_with_real_encryption_uses_no_emulated_key_whoever_gave_it() -> None:
    secret = exact.keygen(2048, random_bytes=np.random.default_rng(0).bytes)
    cipher = secret.public.encrypt(np.zeros(3)).to_bytes()
    wanted = [("client/0", fl.Encrypt(secret.public, np.zeros(3))), ("client/1", fl.Open(secret, cipher))]
    got = effects(emulated=False).run([*wanted, ("client/2", fl.Evaluate(MODEL.initial(0)))])
    assert [str(value) for value in got[:2]] == [
        f"client/{i} has an emulated key in a run with real encryption" for i in range(2)
    ]
    assert all(isinstance(value, fl.CryptoError) for value in got[:2])
    assert not isinstance(got[2], Exception)
    assert not any(isinstance(value, Exception) for value in effects(emulated=True).run(wanted))


def test_a_training_that_diverges_is_its_client_s_own_affair() -> None:
    w, made = MODEL.initial(0), effects()
    good, wild = fl.Fit(w, fl.Sgd(0.1), 1, 0), fl.Fit(w, fl.Sgd(1e38, weight_decay=1.0), 3, 0)
    with made.watched():
        first, bad, last = made.run([("client/0", good), ("client/2", wild), ("client/1", good)])
        assert isinstance(bad, fl.PeerError)
        assert "its training diverged" in str(bad)
        for name, result in (("client/0", first), ("client/1", last)):
            (alone,) = effects().run([(name, good)])
            np.testing.assert_allclose(result.weights, alone.weights, atol=1e-6)


def test_more_than_half_of_them_end_the_round_with_the_first_one_s_name_and_what_to_do() -> None:
    w, made = MODEL.initial(0), effects()
    good, wild = fl.Fit(w, fl.Sgd(0.1), 1, 0), fl.Fit(w, fl.Sgd(1e38, weight_decay=1.0), 3, 0)
    with made.watched():  # half of them don't
        made.run([("client/0", good), ("client/2", wild)])

    def driven() -> None:
        with made.watched():
            made.run([("client/0", good)])
            made.run([("client/2", wild)])
            made.run([("client/1", wild)])
            raise fl.RunError("nobody answered")  # what came of it says less

    with pytest.raises(fl.RunError, match=r"client/2 and 1 others diverged.*lower the.*lr=1e\+38") as caught:
        driven()
    assert isinstance(caught.value.__cause__, DivergedError)
    with made.watched():  # the next round counts anew
        made.run([("client/1", good)])


def test_a_chunk_fits_the_memory_that_it_may_use() -> None:
    assert MODEL.spec.size == 21
    assert effects(memory_bytes=8 * 4 * 21 * 5).chunk == 5
    assert effects(memory_bytes=1).chunk == 1


def test_what_no_party_may_yield() -> None:
    with pytest.raises(TypeError, match="no effect"):
        effects().run([("client/0", 3)])
    with pytest.raises(TypeError, match="hub has no data"):
        effects().run([("hub", fl.Evaluate(MODEL.initial(0)))])
