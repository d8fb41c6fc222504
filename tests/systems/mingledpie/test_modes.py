"""The modes, the ablations of table V, and layers that all clients share."""

from __future__ import annotations

from functools import partial
from typing import Any

import mingledpie_parts as parts
import numpy as np
import pytest
from federation import Rig, Steady

from coterie.clustering.identities import identity_set
from coterie.protocol.codec import field_weight
from coterie.protocol.errors import UserError
from coterie.protocol.party import Cost
from coterie.runs import RunConfig, build
from coterie.systems.mingledpie import SYSTEM, client
from coterie.systems.mingledpie.layout import Layout
from coterie.systems.mingledpie.messages import Train, Update

N = len(parts.GROUPS)
THETA = parts.trained(parts.near(), parts.TARGETS, parts.GROUPS)


# -- literal -----------------------------------------------------------------------------------------------------------


def test_as_printed_everybody_joins_every_cluster_and_no_model_ever_moves() -> None:
    """Eq. (3) as printed compares a cluster's key with its own address, which always match: H is singular."""
    run = parts.pies(mode="literal")
    for r in (1, 2, 3):
        note = run.round(r)
        assert note["membership"] == [[0, 1, 2]] * N
        assert note["clusters"]["sizes"] == [N] * parts.K
        assert note["rebuilt"] == {"by": 0, "refused_by": N}
        assert parts.held(run).tobytes() == parts.near().tobytes()
        assert dict(run.refused) == {}
    assert np.isinf(run.party("client/0").state.condition)
    seen = SYSTEM.observe(run.federation)
    assert seen["why_kept"] == ["the coefficients' condition number is inf, above 30, so all models were kept"]
    assert seen["kept"] == [[0, 1, 2]] * N
    assert parts.chosen(run) == parts.GROUPS


def test_algorithm_2_as_printed_shrinks_models_by_the_size_of_their_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the sets drawn as meant: H in counts, but means on the right-hand side."""
    as_meant = partial(identity_set, printed=False)
    monkeypatch.setattr(client, "identity_set", lambda *given, printed, **options: as_meant(*given, **options))
    run = parts.pies(mode="literal", max_condition=1e6)
    note = run.round(1)
    sums, h = parts.mingled_sums(THETA, parts.GROUPS, parts.joined_sets(note))
    assert note["rebuilt"]["by"] == N
    assert np.abs(parts.held(run) - np.linalg.solve(h, sums / h.sum(axis=1, keepdims=True))).max() < 1e-5
    means = parts.cluster_means(THETA, parts.GROUPS, parts.near())
    assert np.abs(parts.held(run)).max() < 0.3 * np.abs(means).max()


# -- ablations ---------------------------------------------------------------------------------------------------------


def test_without_rebuild_clusters_get_the_mean_of_their_mingled_clusters() -> None:
    """Table V, 1 + 2: also of whoever joined by accident."""
    run = parts.pies(rebuild="none")
    note = run.round(1)
    sums, h = parts.mingled_sums(THETA, parts.GROUPS, parts.joined_sets(note))
    assert np.abs(parts.held(run) - sums / h.sum(axis=1, keepdims=True)).max() < 1e-5
    assert note["rebuilt"] == {"by": N, "refused_by": 0}


@pytest.mark.parametrize("p", [0.5, 0.25])
def test_the_ideal_matrix_instead_of_the_counts(p: float) -> None:
    """Table V, 1 + 2 + 3, eq. (11): |G_b| on the diagonal, p |G_b| beside it, whoever joined in truth."""
    run = parts.pies(rebuild="ideal", p=p)
    note = run.round(1)
    sums, _ = parts.mingled_sums(THETA, parts.GROUPS, parts.joined_sets(note))
    ideal = np.array([[4.0 if a == b else 4.0 * p for b in range(parts.K)] for a in range(parts.K)])
    assert np.abs(parts.held(run) - np.linalg.solve(ideal, sums)).max() < 1e-5
    condition = (1 + (parts.K - 1) * p) / (1 - p)
    assert run.party("client/0").state.condition == pytest.approx(condition)


@pytest.mark.long
def test_the_ablations_are_worse_in_the_order_of_the_mechanism() -> None:
    """Distance to the means of the true clusters over six draws: counts < ideal, and counts < none."""
    means = parts.cluster_means(THETA, parts.GROUPS, parts.near())
    error = {"counts": [], "ideal": [], "none": []}
    for seed in range(6):
        for rebuild, found in error.items():
            run = parts.pies(rebuild=rebuild, seed=seed, max_condition=1e6)
            run.round(1)
            if run.party("client/0").state.why == "":
                found.append(np.sqrt(((parts.held(run) - means) ** 2).mean()))
    assert min(map(len, error.values())) > 3
    counts, ideal, none = (np.median(found) for found in error.values())
    assert counts < 0.2 * ideal
    assert counts < 0.2 * none


# -- hardened ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hardening", ["uploads", "products"])
def test_in_hardened_mode_sets_and_keys_do_not_exist(hardening: str) -> None:
    run = parts.pies(mode="hardened", hardening=hardening)
    note = run.round(1)
    assert note["membership"] == [[]] * N
    assert note["clusters"]["sizes"] == []
    assert run.hub.state.keys == b""
    for name in parts.EVERYBODY:
        party = run.party(name)
        assert (party.state.keys, party.secret.sets, party.secret.drawn) == (b"", {}, 0)
    assert np.abs(parts.held(run) - parts.cluster_means(THETA, parts.GROUPS, parts.near())).max() < 1e-5


def test_what_the_forms_cost() -> None:
    """Uploads: k vectors, products: k scalars and one level; the identity sets cost nothing beside them."""
    size = {form: upload_bytes(parts.pies(mode=form[0], hardening=form[1])) for form in parts.FORMS}
    assert size["paper", "products"] == size["hardened", "uploads"]  # at 20 weights all fit one ciphertext
    assert size["hardened", "products"] > 4 * size["paper", "products"]  # which its scalars do not share


def upload_bytes(run: Rig) -> float:
    run.round(1)
    sizes = {field_weight(m, "ciphers") for _, m in run.view("server").messages(Update)}
    assert len(sizes) == 1
    return sizes.pop()


class Nominal(Steady):
    """Crypto takes its nominal time, all else none."""

    def work_s(self, party: str, cost: Cost) -> float:
        return cost.crypto_s


def test_the_servers_products_take_virtual_time() -> None:
    """N k products and k rescalings, by their nominal times; clients encrypt under the secret key."""
    run = parts.pies(mode="hardened", links=Nominal())
    run.round(1)
    nominal = run.party("client/0").layout.parameters.nominal
    spent = run.transport.meter.virtual_seconds
    assert spent["server/coordinate"] == pytest.approx(parts.K * (N * nominal.times + nominal.rescale) * 1e-3)
    cost = run.party("client/0").train_cost(Train(2, 1))
    assert cost.crypto_s == pytest.approx((1 + parts.K) * nominal.encrypt_symmetric * 1e-3)
    assert cost.samples == 10 * (1 + parts.K / 3)
    other = parts.pies(links=Nominal())
    other.round(1)
    assert other.transport.meter.virtual_seconds.get("server/coordinate", 0.0) == 0


@pytest.mark.parametrize(
    ("kind", "lengths", "widths"),
    [
        ("mingled", (17 + 3, 3), (20, 20, 20, 3)),
        ("uploads", (3 * 18, 3), (54, 3)),
        ("products", (17, 1, 1, 1, 3), (17, 17, 17, 1, 1, 1, 3)),
    ],
)
def test_what_is_encrypted_and_summed_in_each_form(kind: Any, lengths: tuple, widths: tuple) -> None:
    layout = Layout(kind, parts.K, parts.pies().common.spec, ("bias",))
    assert (layout.lengths, layout.widths, layout.slots) == (lengths, widths, len(widths))
    theta = np.arange(1.0, parts.SIZE + 1, dtype=np.float32)
    first, shared = layout.vectors(theta, 1)
    assert (len(first), len(shared)) == (lengths[0], 3)
    assert shared.tolist() == [18, 19, 20]
    assert layout.indicator(1).tolist() == [0, 1, 0]
    if kind == "mingled":
        assert first.tolist() == [*range(1, 18), 0, 1, 0]
    elif kind == "uploads":
        assert first.reshape(3, 18).tolist() == [[0] * 18, [*range(1, 18), 1], [0] * 18]
    else:
        assert first.tolist() == [*range(1, 18)]


# -- shared layers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "hardening"), parts.FORMS)
@pytest.mark.parametrize(("layers", "common"), [("bias", slice(17, 20)), ("we", slice(0, 17))])
def test_shared_layers_are_federated_averaging_and_the_others_the_clusters_own(
    layers: str, common: slice, mode: str, hardening: str
) -> None:
    """Section III-A. The twin: the mean over everybody there, and what the clusters would get there without sharing."""
    run, models = (
        parts.pies(mode=mode, hardening=hardening, shared_layers=layers, lr=0.5),
        parts.near().astype(np.float64),
    )
    for r in (1, 2):
        note = run.round(r)
        theta = parts.trained(models, parts.TARGETS, parts.chosen(run), lr=0.5)
        if mode == "paper":
            models = parts.solved(*parts.mingled_sums(theta, parts.chosen(run), parts.joined_sets(note)), models)
        else:
            models = parts.cluster_means(theta, parts.chosen(run), models)
        models[:, common] = theta[:, common].mean(axis=0)
        assert np.abs(parts.held(run) - models).max() < 1e-4
    assert (parts.held(run)[:, common] == parts.held(run)[0, common]).all()


def test_a_cluster_without_members_follows_the_shared_layers_all_the_same() -> None:
    starts = parts.near()
    starts[2] = 50.0
    run = parts.pies(mode="hardened", shared_layers="bias", starts=starts)
    run.round(1)
    assert run.party("client/0").state.kept == (2,)
    assert (parts.held(run)[2, :17] == 50).all()
    assert np.abs(parts.held(run)[2, 17:] - parts.TARGETS[:, 17:].mean(axis=0)).max() < 1e-5


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ("head", r"shared_layers: no part of this model begins with 'head'; there are \['weight', 'bias'\]"),
        ("b, w", "shared_layers names every layer"),
    ],
)
def test_layers_that_are_not_there_and_all_of_them_are_refused(layers: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        parts.pies(shared_layers=layers)


def test_shared_layers_of_a_network_on_digits() -> None:
    """The first layer is everybody's, the last one the cluster's."""
    settings = {"clusters": 3, "lr": 0.1, "max_epochs": 1, "start": "pretrained"}
    options = {"clients": 9, "rounds": 1, "partition": "labelsets:3", "mode": "hardened", "crypto": "emulated"}
    names = [part.name for part in build(RunConfig("mingledpie", settings=settings, **options)).common.spec.parts]
    experiment = build(RunConfig("mingledpie", settings={**settings, "shared_layers": names[0]}, **options))
    experiment.set_up()
    experiment.round(1)
    models = np.stack(list(experiment.models().values()))
    first = experiment.common.spec.parts[0]
    assert (models[:, first.offset : first.offset + first.size] == models[0, : first.size]).all()
    assert len(np.unique(models[:, -10:], axis=0)) == 3
