"""FedCAPrivacy against a slow, readable twin: plain numpy and a plain torch loop, written from the paper's equations.

No transport, no parties, no ciphers: weights are rounded to the fixed-point grid of eq. (4) and summed as integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from fedcaprivacy_parts import where_they_count
from federation import Pulled, planted, rig
from torch import nn

from coterie.clustering.spectral import soft_spectral
from coterie.crypto.sketch import project, rotate
from coterie.protocol.effects import Fit
from coterie.protocol.randomness import Secrets, rng
from coterie.runs import Experiment, RunConfig, build
from coterie.systems.fedcaprivacy import SYSTEM
from coterie.systems.fedcaprivacy.messages import Upload, round_seed

RHO = 16
STEP = 2.0**-RHO
ROUNDS = 3

Train = Callable[[Sequence[np.ndarray], int], list[np.ndarray]]
"""(start weights (d,) of every client, round) -> weights (d,) of every client after local training."""


# -- the twin ----------------------------------------------------------------------------------------------------------


def fixed_point(omega: np.ndarray) -> np.ndarray:
    """Eq. (4): the nearest integers to 2^rho omega."""
    return np.rint(omega.astype(np.float64) * 2**RHO).astype(np.int64)


def cluster_models(integers: np.ndarray, phi: np.ndarray) -> list[np.ndarray | None]:
    """Eq. (9) and (10) over integers (n, d) and phi (n, c): the mean model of every cluster, without any mask."""
    means: list[np.ndarray | None] = []
    for k in range(phi.shape[1]):
        members = [i for i in range(len(phi)) if phi[i, k]]
        if not members:
            means.append(None)
            continue
        total = np.zeros(integers.shape[1], np.int64)
        for i in members:
            total += integers[i]
        means.append((total * STEP / len(members)).astype(np.float32))  # models are float32
    return means


def next_models(means: Sequence[np.ndarray | None], phi: np.ndarray) -> list[np.ndarray]:
    """Eq. (11): the mean of a participant's cluster models."""
    models = []
    for row in phi:
        mine = [means[k] for k in range(len(row)) if row[k]]
        models.append(np.mean(np.stack(mine).astype(np.float64), axis=0).astype(np.float32))
    return models


def twin(
    start: np.ndarray, clients: int, train: Train, coins: Sequence[float], c: int, gamma: float, alpha: float
) -> Iterator[tuple[list[np.ndarray], np.ndarray, bool]]:
    """Algorithm 1 with everybody in every round; gives the models, phi (n, c) and whether it clustered, by round."""
    omega_g = [start] * clients
    phi = np.zeros((clients, c), bool)
    for r, coin in enumerate(coins, 1):
        omega = train(omega_g, r)  # eq. (3)
        integers = np.stack([fixed_point(w) for w in omega])  # eq. (4)
        clustered = r == 1 or coin <= 1 / (1 + alpha * r)
        if clustered:
            phi = soft_spectral(integers * STEP, c, gamma).membership  # eq. (8), algorithm 2: has a twin of its own
        omega_g = next_models(cluster_models(integers, phi), phi)
        yield omega_g, phi, clustered


def plain_loop(experiment: Experiment) -> Train:
    """Eq. (3) for the digits model 64-32-10: torch modules, torch.optim, one batch after the other."""
    lr, size = experiment.settings.lr, experiment.settings.batch_size
    names = experiment.common.clients

    def one(i: int, start: np.ndarray, r: int) -> np.ndarray:
        own = experiment.effects.data[names[i]]
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        nn.utils.vector_to_parameters(torch.from_numpy(start.copy()), model.parameters())
        optimiser = torch.optim.SGD(model.parameters(), lr=lr)
        seed = int(rng(experiment.config.seed, names[i], "batches", r).integers(1 << 62))
        for epoch in range(experiment.owns[names[i]].epochs):
            order = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch]))).permutation(len(own.x))
            for at in range(0, len(order), size):
                batch = torch.from_numpy(order[at : at + size])
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(own.x[batch]), own.y[batch]).backward()
                optimiser.step()
        return nn.utils.parameters_to_vector(model.parameters()).detach().numpy()

    return lambda starts, r: [one(i, start, r) for i, start in enumerate(starts)]


def engine(experiment: Experiment) -> Train:
    """Eq. (3) by the engine that the experiment itself trains with, all clients together as there."""
    names, solver = experiment.common.clients, experiment.settings.solver()

    def train(starts: Sequence[np.ndarray], r: int) -> list[np.ndarray]:
        seeds = [int(rng(experiment.config.seed, name, "batches", r).integers(1 << 62)) for name in names]
        epochs = [experiment.owns[name].epochs for name in names]
        fits = [Fit(start, solver, e, seed) for start, e, seed in zip(starts, epochs, seeds, strict=True)]
        return [fitted.weights for fitted in experiment.effects.run(list(zip(names, fits, strict=True)))]

    return train


def digits(
    mode: str = "paper", crypto: str = "emulated", clients: int = 8, model: str = "mlp_small", **settings: object
) -> Experiment:
    config = RunConfig(
        "fedcaprivacy",
        "digits",
        clients=clients,
        rounds=ROUNDS,
        partition="dirichlet:0.3",
        mode=mode,
        crypto=crypto,  # type: ignore[arg-type]
        seed=3,
        record=True,
        model=model,
        settings={
            "lr": 0.05,
            "batch_size": 10,
            "alpha": 0.4,
            "gamma": 1.0,
            "clusters": 3,
            **({"descriptor": "model"} if mode == "hardened" else {}),
            **settings,
        },
    )
    experiment = build(config)
    experiment.set_up()
    return experiment


def phi_of(membership: Sequence[Sequence[int]], c: int) -> np.ndarray:
    phi = np.zeros((len(membership), c), bool)
    for i, clusters in enumerate(membership):
        phi[i, list(clusters)] = True
    return phi


def same_clusters(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two phi are equal up to the numbers of the clusters."""
    return sorted(map(tuple, a.T[a.any(axis=0)])) == sorted(map(tuple, b.T[b.any(axis=0)]))


# -- the fast path equals the twin -------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [engine, pytest.param(plain_loop, marks=pytest.mark.long)])
def test_three_rounds_on_digits_equal_the_twin(training: Callable[[Experiment], Train]) -> None:
    """Bit for bit with the same training. A plain loop rounds gradients otherwise in the last bits, so that a weight
    may fall on the other side of a fixed-point step and a later round starts from there: within two steps, and nearly
    everywhere within 1e-6.
    """
    experiment = digits()
    n, settings = 8, experiment.settings
    coins = [float(rng(3, "csp", "clustering coin", r).uniform()) for r in range(1, ROUNDS + 1)]
    expected = twin(experiment.common.initial, n, training(experiment), coins, 3, settings.gamma, settings.alpha)
    events = []
    for r, (models, phi, clustered) in enumerate(expected, 1):
        notes = experiment.round(r)["notes"]
        events.append(notes["clustered"])
        assert notes["clustered"] == clustered
        assert same_clusters(phi_of(notes["membership"], 3), phi)
        got = np.stack(list(experiment.models().values()))
        error = np.abs(got - np.stack(models))
        if training is engine:
            assert error.max() == 0
        else:
            assert error.max() <= 2 * STEP
            assert np.mean(error > 1e-6) < 0.02
    assert events == [True, False, True]  # the seed was chosen so that all branches were taken
    assert 1 < phi.sum(axis=1).mean() < 3  # and eq. (11) had means to take


def test_the_twin_can_fail() -> None:
    """Another coin, or eq. (9) without the clusters, and the models differ by far more than the tolerance."""
    experiment = digits()
    experiment.round(1)
    got = np.stack(list(experiment.models().values()))
    one_cluster = twin(experiment.common.initial, 8, engine(experiment), [0.0], 1, 1.0, 1.0)
    models, _, _ = next(one_cluster)
    assert np.abs(got - np.stack(models)).max() > 100 * STEP


# -- real equals emulated ----------------------------------------------------------------------------------------------


def same_run(one: Experiment, other: Experiment, rounds: int) -> None:
    for r in range(1, rounds + 1):
        a, b = one.round(r), other.round(r)
        assert a["notes"] == b["notes"]
        assert a["virtual_seconds"] == b["virtual_seconds"]
        assert a["message_bytes"] == b["message_bytes"]
        for mine, theirs in zip(one.models().values(), other.models().values(), strict=True):
            assert mine.tobytes() == theirs.tobytes()


def test_real_paillier_gives_the_models_of_its_emulation_bit_for_bit() -> None:
    """Also the same notes, virtual seconds and bytes: the cipher is all that differs. Round 2 reuses phi."""
    one, other = (digits(crypto=crypto, clients=2, model="linear") for crypto in ("real", "emulated"))
    same_run(one, other, rounds=2)


def test_pads_give_the_models_of_paillier_bit_for_bit() -> None:
    pads, real, paillier = (
        digits(clients=4, model="linear", **options)
        for options in ({"cipher": "pads"}, {"cipher": "pads", "crypto": "real"}, {"cipher": "paillier"})
    )
    same_run(real, pads, rounds=2)
    for r in (1, 2):
        paillier.round(r)
    for one, other in zip(pads.models().values(), paillier.models().values(), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.long
@pytest.mark.parametrize("key_bits", [2048, 3072])
def test_real_paillier_equals_its_emulation_at_length(key_bits: int) -> None:
    options = {"clients": 8, "key_bits": key_bits}
    same_run(digits(crypto="real", **options), digits(crypto="emulated", **options), rounds=ROUNDS)


TARGETS = planted([0, 0, 1, 1, 2, 2], 40, within=0.3)


def small(mode: str, *, emulated: bool, **settings: object):
    options = {
        "clusters": 3,
        "gamma": 1.0,
        "alpha": 1.0,
        "sketch_dim": 16,
        "fresh_keys": True,
        "min_cluster": 2,
        **settings,
    }
    options = where_they_count(mode=mode, emulated=emulated, **options)
    return rig(SYSTEM, TARGETS, effects=lambda t: Pulled(t, noise=0.02), seed=1, **options)


@contextmanager
def fixed_shuffles() -> Iterator[None]:
    """Every permutation reverses: no shuffle can tell two runs apart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Secrets, "permutation", lambda self, count: np.arange(count, dtype=np.int64)[::-1].copy())
        yield


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        ("paper", {}),
        ("hardened", {"hardening": "sketch", "schedule": "always"}),
        pytest.param("literal", {"schedule": "always"}, marks=pytest.mark.long),
    ],
)
def test_keys_masks_and_shuffles_move_no_result(mode: str, settings: dict) -> None:
    """Real runs draw everything secret from the operating system, and give the emulated run's models.

    Paper and literal mode bit for bit (literal where it clusters in every round, see below). In hardened mode the
    sketch's projection is drawn anew: the distances that it shows vary by some 1 / sqrt(dim), so only the clusters'
    structure agrees, here where groups are far apart; given that, the models are equal bit for bit, too.
    """
    runs = [small(mode, emulated=emulated, **settings) for emulated in (False, True)]
    for r in range(1, ROUNDS + 1):
        notes = [run.round(r) for run in runs]
        for other in notes[1:]:
            if mode == "hardened":
                pairs = [phi_of(n["membership"], 3) for n in (notes[0], other)]
                assert same_clusters(*pairs)
            else:
                assert other == notes[0]
        for other in runs[1:]:
            assert other.models().tobytes() == runs[0].models().tobytes()


@pytest.mark.long
def test_literal_mode_depends_on_the_shuffle_and_on_nothing_else_that_is_secret() -> None:
    """The printed phi follows positions: with fixed permutations real equals emulated, without them it doesn't."""
    with fixed_shuffles():
        one, other = (small("literal", emulated=emulated) for emulated in (False, True))
        assert one.rounds(ROUNDS) == other.rounds(ROUNDS)
        assert one.models().tobytes() == other.models().tobytes()
    free = small("literal", emulated=True)
    events = [note["clustered"] for note in free.rounds(ROUNDS)]
    assert not all(events)
    assert free.models().tobytes() != other.models().tobytes()


# -- hardened modes aggregate like the paper ---------------------------------------------------------------------------


def test_sketch_mode_aggregates_exactly_as_the_paper_given_its_clusters() -> None:
    """The business server's sum of ciphertexts is the CSP's sum of opened models: the same integers."""
    experiment = digits("hardened", hardening="sketch", sketch_dim=32)
    omega = engine(experiment)([experiment.common.initial] * 8, 1)
    phi = phi_of(experiment.round(1)["notes"]["membership"], 3)
    expected = next_models(cluster_models(np.stack([fixed_point(w) for w in omega]), phi), phi)
    assert np.stack(list(experiment.models().values())).tobytes() == np.stack(expected).tobytes()


def test_rotation_mode_aggregates_as_the_paper_within_fixed_point_error() -> None:
    """Rounding to the grid moves a model by at most sqrt(d) / 2 steps, before a rotation as after one, and means no
    more: both together give the bound. Distances are kept, so the clusters are the same.
    """
    paper, rotated = digits(), digits("hardened", hardening="rotation", min_cluster=1)
    notes = [experiment.round(1)["notes"] for experiment in (paper, rotated)]
    assert same_clusters(*(phi_of(n["membership"], 3) for n in notes))
    a, b = (np.stack(list(experiment.models().values())).astype(np.float64) for experiment in (paper, rotated))
    error = np.linalg.norm(a - b, axis=1)
    assert (error > 0).all()
    assert (error <= np.sqrt(a.shape[1]) * STEP * 1.001).all()


def test_what_the_service_opens_in_hardened_mode_is_a_fresh_secret_map_of_the_weights() -> None:
    """Under the blinded uploads lie R_r w / sqrt(dim), or the rotated w, under a seed that changes every round."""
    for hardening, secret_map in (("sketch", lambda w, seed: project(w, 16, seed)), ("rotation", rotate)):
        run = small("hardened", emulated=True, hardening=hardening)
        run.rounds(1)
        group_seed = run.party("client/0").keys.own_bytes("group")
        key = run.party("csp").keys.own("service")
        for seen, upload in run.view("business_server").messages(Upload, 1):
            weights = run.party(seen.src).state.weights
            data = upload.sketch if hardening == "sketch" else upload.cipher
            opened = key.decrypt(key.public.from_bytes(data))
            assert np.abs(opened - secret_map(weights, round_seed(group_seed, 1))).max() <= STEP / 2
            assert np.abs(opened - secret_map(weights, round_seed(group_seed, 2))).max() > 100 * STEP
