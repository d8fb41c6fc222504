"""The engine around the paths: planning, workers, choices, evaluation, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from threading import Barrier

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coterie.protocol.errors import RunError, UserError
from coterie.training import dense, engine, evaluate, slots, workers
from coterie.training.engine import choose_path, fit_many
from coterie.training.evaluate import evaluate_many, judge_many
from coterie.training.jobs import DivergedError, Job, batch_order, products
from coterie.training.model import Model
from coterie.training.models import build
from coterie.training.solvers import Proximal, Scaffold, Sgd, Solver

F, CLASSES = 6, 3


def model_mlp() -> Model:
    return Model(lambda: nn.Sequential(nn.Linear(F, 8), nn.Tanh(), nn.Linear(8, CLASSES)), (F,))


def job(model: Model, samples: int = 20, epochs: int = 1, seed: int = 0, solver: Solver | None = None) -> Job:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, *model.input_shape, generator=generator)
    y = torch.randint(0, CLASSES, (samples,), generator=generator)
    return Job(model.initial(0), solver or Sgd(0.1, 8), epochs, seed, x, y)


# --- planning ---------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 12))
def test_a_plan_runs_every_job_once_and_narrows_to_prefixes(steps: list[int], count: int) -> None:
    timeline = slots.plan(steps, count)
    assert sorted(s.job for s in timeline.segments) == list(range(len(steps)))
    assert all(s.stop - s.start == steps[s.job] for s in timeline.segments)
    assert list(timeline.lengths) == sorted(timeline.lengths, reverse=True)
    for slot, length in enumerate(timeline.lengths):
        mine = sorted((s.start, s.stop) for s in timeline.segments if s.slot == slot)
        assert mine[0][0] == 0
        assert mine[-1][1] == length
        assert all(a[1] == b[0] for a, b in pairwise(mine))  # no gap, no overlap
    for step in range(timeline.lengths[0]):
        busy = {s.slot for s in timeline.segments if s.start <= step < s.stop}
        assert busy == set(range(timeline.width(step)))
    assert timeline.lengths[0] <= sum(steps) / len(timeline.lengths) + max(steps)  # list scheduling's bound


def test_ragged_clients_waste_little() -> None:
    """Dirichlet-0.3 sizes, 1 to 5 epochs, 100 clients: at least 0.9 of the rows multiplied belong to a sample."""
    rng = np.random.default_rng(3)
    sizes = np.maximum(10, sum(rng.multinomial(6000, rng.dirichlet([0.3] * 100)) for _ in range(10)))
    epochs = rng.integers(1, 6, 100)
    steps = epochs * -(-sizes // 50)
    timeline = slots.plan(steps.tolist(), 7)
    rows = 50 * sum(timeline.lengths)
    assert (sizes * epochs).sum() / rows > 0.9
    assert sum(timeline.lengths) == sum(timeline.width(step) for step in range(timeline.lengths[0]))


@given(st.integers(1, 70), st.integers(1, 20), st.integers(1, 3), st.integers(0, 5))
def test_batches_visit_every_sample_once_an_epoch(samples: int, batch: int, epochs: int, extra: int) -> None:
    model = model_mlp()
    one = Job(np.zeros(1), Sgd(0.1, batch), epochs, 4, torch.zeros(samples, F), torch.zeros(samples, dtype=torch.int64))
    width = one.batch + extra
    rows, counts = slots.batches(one, width)
    assert len(counts) == one.steps
    grid = rows.numpy().reshape(epochs, -1, width)
    for epoch in range(epochs):
        real = [row[:n] for row, n in zip(grid[epoch], counts.reshape(epochs, -1)[epoch], strict=True)]
        assert np.array_equal(np.concatenate(real), batch_order(4, epoch, samples))
    assert model.spec.size == F * 8 + 8 + 8 * CLASSES + CLASSES


def test_batch_order_is_what_it_always_was() -> None:
    """A known answer: runs repeat across versions and machines only if this never changes."""
    assert batch_order(7, 0, 10).tolist() == [8, 0, 7, 1, 3, 6, 2, 4, 5, 9]
    assert batch_order(7, 1, 10).tolist() == [9, 0, 8, 6, 7, 1, 3, 4, 2, 5]
    assert batch_order(2**80, 0, 4).tolist() != batch_order(2**80 + 1, 0, 4).tolist()


# --- workers ----------------------------------------------------------------------------------------------------


def test_workers_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_mlp()
    jobs = [
        job(model, samples, epochs, seed) for seed, (samples, epochs) in enumerate([(9, 1), (40, 3), (17, 2), (30, 2)])
    ]
    for path in ("dense", "vmap", "loop"):
        alone = [fit_many(model, [one], path=path)[0] for one in jobs]
        monkeypatch.setattr(engine, "_WORKER_FLOPS", 1.0)
        torch.set_num_threads(2)
        together = fit_many(model, jobs, path=path)
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        for a, b in zip(alone, together, strict=True):
            np.testing.assert_allclose(a.weights, b.weights, atol=1e-6)
            assert a.loss == pytest.approx(b.loss, abs=1e-6)
            assert (a.samples, a.steps) == (b.samples, b.steps)


def test_workers_run_side_by_side_with_one_torch_thread_each() -> None:
    torch.set_num_threads(2)
    both = Barrier(2, timeout=100)  # passes only if the two tasks run at once

    def task() -> list[int]:
        both.wait()
        return [torch.get_num_threads()]

    assert workers.run_all([task, task]) == [[1], [1]]
    assert torch.get_num_threads() == 2


def test_an_error_stops_the_other_workers() -> None:
    """The other task yields for ever: only a stop at its next item lets this test end."""
    started = Barrier(2, timeout=100)

    def fails() -> Iterator[int]:
        started.wait()
        raise RunError("first")
        yield 0

    def endless() -> Iterator[int]:
        started.wait()
        while True:
            yield 1

    with pytest.raises(RunError, match="first"):
        workers.run_all([fails, endless])


def test_shares_are_even_or_one() -> None:
    torch.set_num_threads(2)
    assert sorted(map(sorted, workers.shares([3.0, 1.0, 2.0], 8))) == [[0], [1, 2]]
    assert workers.shares([10.0, 1.0], 8) == [[0, 1]]
    assert workers.shares([1.0, 1.0, 1.0], 1) == [[0, 1, 2]]


def test_the_same_jobs_give_the_same_bits() -> None:
    model = model_mlp()
    jobs = [job(model, samples, 2, seed) for seed, samples in enumerate([30, 8, 21])]
    first, second = fit_many(model, jobs), fit_many(model, jobs)
    assert all(np.array_equal(a.weights, b.weights) for a, b in zip(first, second, strict=True))


def test_solvers_may_differ_between_jobs() -> None:
    model = model_mlp()
    solvers: list[Solver] = [Sgd(0.1, 8), Proximal(0.1, 8, mu=0.3), Sgd(0.01, 8), Sgd(0.1, 8)]
    jobs = [job(model, 20, 2, seed, solver) for seed, solver in enumerate(solvers)]
    for one, fitted in zip(jobs, fit_many(model, jobs), strict=True):
        np.testing.assert_allclose(fitted.weights, fit_many(model, [one])[0].weights, atol=1e-6)


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3)), min_size=1, max_size=9), st.integers(1, 5))
def test_any_ragged_set_of_jobs_equals_the_loop(sizes: list[tuple[int, int]], width: int) -> None:
    """Slots that refill and narrow, and blocks that cut jobs anywhere, against the plain per-client path."""
    model = model_mlp()
    solver = Sgd(0.05, 8, momentum=0.5)
    jobs = {i: job(model, samples, epochs, i, solver) for i, (samples, epochs) in enumerate(sizes)}
    batch = max(one.batch for one in jobs.values())
    kernel = dense.DenseKernel(model, solver, slots=width, batch=batch, device=torch.device("cpu"))
    results = dict(slots.run(model, jobs, kernel, block=3, batch=batch))
    for i, reference in enumerate(fit_many(model, list(jobs.values()), path="loop")):
        np.testing.assert_allclose(results[i].weights, reference.weights, atol=1e-5)
        assert results[i].loss == pytest.approx(reference.loss, abs=1e-5)


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3), st.booleans()), min_size=1, max_size=9))
def test_sample_weights_stay_with_their_samples(sizes: list[tuple[int, int, bool]]) -> None:
    """The same with weights for some of the jobs: no slot may see a neighbour's or a predecessor's."""
    model, solver, jobs = model_mlp(), Sgd(0.05, 8), {}
    for i, (samples, epochs, weigh) in enumerate(sizes):
        weights = np.random.default_rng(i).exponential(size=samples).astype(np.float32)
        jobs[i] = replace(job(model, samples, epochs, i, solver), sample_weights=weights if weigh else None)
    batch = max(one.batch for one in jobs.values())
    kernel = dense.DenseKernel(model, solver, slots=2, batch=batch, device=torch.device("cpu"))
    results = dict(slots.run(model, jobs, kernel, block=3, batch=batch))
    for i, reference in enumerate(fit_many(model, list(jobs.values()), path="loop")):
        np.testing.assert_allclose(results[i].weights, reference.weights, atol=1e-5)
        assert results[i].loss == pytest.approx(reference.loss, abs=1e-5)


def test_slots_do_not_grow_with_the_jobs() -> None:
    model = build("mlp", (784,), 10)
    cpu = torch.device("cpu")
    counts = [engine.slot_count(model, jobs, cpu) for jobs in (3, 10, 100, 1000, 100_000)]
    assert counts[0] == 3
    assert max(counts) * model.spec.size * 4 <= 6 << 20
    assert all(jobs > 0 for jobs in counts)


# --- choices ----------------------------------------------------------------------------------------------------


def test_path_choice() -> None:
    def seq(*layers: nn.Module) -> Model:
        return Model(nn.Sequential(*layers), (F,))

    relu = nn.ReLU()
    assert choose_path(build("mlp", (1, 8, 8), 10)) == "dense"
    assert choose_path(build("cnn", (1, 8, 8), 10)) == "loop"
    assert choose_path(seq(nn.Sequential(nn.Linear(F, 4), nn.Sigmoid()), nn.Dropout(0.0), nn.Linear(4, 2))) == "dense"
    assert choose_path(seq(nn.Linear(F, 4), nn.Dropout(0.5), nn.Linear(4, 2))) == "loop"
    assert choose_path(seq(nn.Linear(F, 4), nn.LayerNorm(4), nn.Linear(4, 2))) == "loop"
    assert choose_path(seq(nn.Linear(F, 4), nn.ReLU(), nn.Linear(4, 2), nn.ReLU())) == "loop"
    assert choose_path(seq(nn.Linear(F, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 2))) == "dense"
    assert choose_path(Model(nn.Linear(F, 2), (F,), loss=lambda out, y: out.mean())) == "loop"


def test_one_activation_used_twice_is_applied_twice() -> None:
    relu = nn.ReLU()
    model = Model(nn.Sequential(nn.Linear(F, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, CLASSES)), (F,))
    one = job(model, 30, 3)
    (a,), (b,) = fit_many(model, [one], path="dense"), fit_many(model, [one], path="loop")
    np.testing.assert_allclose(a.weights, b.weights, atol=1e-6)


def test_a_linear_layer_alone_is_a_model() -> None:
    alone, in_a_row = Model(nn.Linear(4, 3), (4,)), Model(nn.Sequential(nn.Linear(4, 3)), (4,))
    weights, x, y = alone.initial(1)[None], torch.randn(9, 4), torch.arange(9) % 3
    (one,), (other,) = (evaluate_many(model, weights, x, y) for model in (alone, in_a_row))
    assert one.loss == other.loss


def test_a_subclass_of_linear_is_not_taken_for_linear() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    model = Model(nn.Sequential(Doubled(F, CLASSES)), (F,))
    assert choose_path(model) == "loop"
    with pytest.raises(UserError, match="dense path"):
        fit_many(model, [job(model)], path="dense")


def test_dropout_repeats_and_leaves_torch_alone() -> None:
    model = Model(nn.Sequential(nn.Linear(F, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES)), (F,))
    jobs = [job(model, 30, 2, seed) for seed in range(3)]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = fit_many(model, jobs)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    second = fit_many(model, jobs[1:])
    assert np.array_equal(first[1].weights, second[0].weights)
    with pytest.raises(UserError, match="vmap path"):
        fit_many(model, jobs, path="vmap")


def test_precision_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    images = build("cnn", (1, 28, 28), 10)
    for name, amx, avx, expected in (
        ("Intel Xeon", True, True, torch.bfloat16),
        ("Intel Xeon", False, True, torch.float32),  # as fast as float32 at best, and slower with its conversions
        ("AMD EPYC", False, True, torch.bfloat16),
        ("AMD EPYC", False, False, torch.float32),
    ):
        found = {"cpu_name": name, "amx_tile": amx, "avx512_bf16": avx}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=found: found)
        assert products(images, "auto", "cpu") is expected
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "arm64"})
    assert products(images, "auto", "cpu") is torch.float32
    assert products(images, "bf16", "cpu") is torch.bfloat16
    assert products(images, "fp32", "cpu") is torch.float32
    assert products(model_mlp(), "bf16", "cpu") is torch.float32  # would gain nothing
    numbers = build("cnn", (1, 28, 28), 1, task="regression")
    assert products(numbers, "bf16", "cpu") is torch.float32


# --- evaluation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [model_mlp, lambda: Model(lambda: nn.Sequential(nn.Linear(F, 8), nn.LayerNorm(8), nn.Linear(8, CLASSES)), (F,))],
    ids=["dense", "loop"],
)
@pytest.mark.parametrize("samples", [1, 150, 1000])
def test_evaluate_many_is_one_module_at_a_time(
    make: Callable[[], Model], samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "_CHUNK_BYTES", 4 * 8 * 77)  # several uneven chunks of models and of samples
    torch.set_num_threads(2)
    model = make()
    one = job(model, samples)
    weights = np.stack([model.initial(seed) for seed in range(5)])
    results = evaluate_many(model, weights, one.x, one.y)
    losses = judge_many(model, weights, one.x, one.y).losses
    assert losses.shape == (5, samples)
    assert losses.dtype == np.float32
    assert len(results) == 5
    for row, result, each in zip(weights, results, losses, strict=True):
        with torch.no_grad():
            logits = model.module_with(row)(one.x)
        expected = nn.functional.cross_entropy(logits, one.y, reduction="none")
        np.testing.assert_allclose(each, expected.numpy(), atol=1e-6)
        assert result.loss == pytest.approx(nn.functional.cross_entropy(logits, one.y).item(), abs=1e-5)
        assert result.accuracy == pytest.approx((logits.argmax(1) == one.y).float().mean().item())
        assert result.samples == samples


def test_evaluation_uses_evaluation_mode() -> None:
    model = Model(nn.Sequential(nn.Linear(F, 8), nn.Dropout(0.9), nn.Linear(8, CLASSES)), (F,))
    one = job(model)
    weights = np.stack([one.weights, one.weights])
    a, b = evaluate_many(model, weights, one.x, one.y)
    assert a.loss == b.loss


def test_evaluating_regression_has_no_accuracy() -> None:
    model = Model(nn.Linear(F, 1), (F,), loss=lambda out, y: ((out[:, 0] - y) ** 2).mean())
    (result,) = evaluate_many(model, model.initial(0)[None], torch.zeros(4, F), torch.zeros(4))
    with pytest.raises(UserError, match="its loss gives one number for a whole batch"):
        judge_many(model, model.initial(0)[None], torch.zeros(4, F), torch.zeros(4))
    one = Job(model.initial(0), Sgd(0.1), 1, 0, torch.zeros(4, F), torch.zeros(4), {}, np.ones(4, np.float32))
    with pytest.raises(UserError, match="one for each sample is needed"):
        fit_many(model, [one])
    assert np.isnan(result.accuracy)
    assert result.loss == pytest.approx(float(model.initial(0)[-1]) ** 2, rel=1e-5)


# --- refusals ---------------------------------------------------------------------------------------------------


def test_training_that_diverges_names_the_job() -> None:
    model = model_mlp()
    jobs = [job(model, 20, 2, seed) for seed in range(3)]
    poisoned = Job(jobs[1].weights, jobs[1].solver, 2, 1, torch.full((20, F), float("inf")), jobs[1].y)
    for path in ("dense", "vmap", "loop"):
        with pytest.raises(DivergedError, match="job 1") as caught:
            fit_many(model, [jobs[0], poisoned, jobs[2]], path=path)
        assert caught.value.job == 1
        assert isinstance(caught.value, RunError)
        first, none, last = caught.value.results
        assert none is None
        for result, clean in zip((first, last), fit_many(model, [jobs[0], jobs[2]], path=path), strict=True):
            np.testing.assert_allclose(result.weights, clean.weights, atol=1e-6)
    with pytest.raises(DivergedError) as caught:
        fit_many(model, [jobs[0], job(model, 20, 9, 0, Sgd(1e30, 8, weight_decay=1.0))])
    assert caught.value.job == 1


def test_a_bad_neighbour_does_not_spoil_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinite numbers in one slot must reach neither the next slot nor the next job in the same slot."""
    model = model_mlp()
    solver = Sgd(0.1, 8, momentum=0.5)
    good = [job(model, 20, 2, seed, solver) for seed in range(3)]
    bad = Job(good[0].weights, solver, 4, 0, torch.full((20, F), float("inf")), good[0].y)  # longest: first in its slot
    kernel = dense.DenseKernel(model, solver, slots=2, batch=8, device=torch.device("cpu"))
    monkeypatch.setattr(slots, "fitted", lambda index, job, model, weights, loss: weights.numpy())
    results = dict(slots.run(model, {0: bad, 1: good[0], 2: good[1], 3: good[2]}, kernel, block=2, batch=8))
    assert np.isnan(results[0]).any()
    monkeypatch.undo()
    for index, clean in enumerate(fit_many(model, good), start=1):
        np.testing.assert_allclose(results[index], clean.weights, atol=1e-6)


def replaced(one: Job, **changes: object) -> Job:
    fields = {name: getattr(one, name) for name in ("weights", "solver", "epochs", "seed", "x", "y", "state")}
    return Job(**{**fields, **changes})  # type: ignore[arg-type]


HOSTILE = {
    "NaN weights": ({"weights": np.full(83, np.nan, np.float32)}, "not finite"),
    "short weights": ({"weights": np.zeros(82, np.float32)}, r"\(83,\)"),
    "2-d weights": ({"weights": np.zeros((1, 83), np.float32)}, r"\(83,\)"),
    "integer weights": ({"weights": np.zeros(83, np.int64)}, "int64"),
    "no epochs": ({"epochs": 0}, "epochs"),
    "half an epoch": ({"epochs": 0.5}, "epochs"),
    "negative seed": ({"seed": -1}, "seed"),
    "no data": ({"x": torch.zeros(0, F), "y": torch.zeros(0, dtype=torch.int64)}, "no samples"),
    "wrong features": ({"x": torch.zeros(20, F + 1)}, "takes samples"),
    "float64 samples": ({"x": torch.zeros(20, F, dtype=torch.float64)}, "float64"),
    "byte samples": ({"x": torch.zeros(20, F, dtype=torch.uint8)}, "uint8"),
    "too few labels": ({"y": torch.zeros(19, dtype=torch.int64)}, "labels"),
    "label too large": ({"y": torch.full((20,), CLASSES)}, "classes"),
    "negative label": ({"y": torch.full((20,), -100)}, "classes"),
    "float labels": ({"y": torch.zeros(20)}, "int64"),
    "no solver": ({"solver": None}, "solver must be"),
    "a class for a solver": ({"solver": Sgd}, "solver must be"),
    "unknown state": ({"state": {"momentum": np.zeros(83, np.float32)}}, "momentum"),
    "missing state": ({"solver": Scaffold(0.1)}, "control"),
    "short sample weights": ({"sample_weights": np.ones(19, np.float32)}, r"sample_weights must be \(20,\)"),
    "integer sample weights": ({"sample_weights": np.ones(20, np.int64)}, "int64"),
    "a negative sample weight": ({"sample_weights": np.full(20, -0.1, np.float32)}, "at least 0"),
    "a NaN sample weight": ({"sample_weights": np.full(20, np.nan, np.float32)}, "finite"),
    "short state": ({"solver": Proximal(0.1), "state": {"anchor": np.zeros(3, np.float32)}}, "anchor"),
}


@pytest.mark.parametrize(("changes", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_jobs(changes: dict[str, object], message: str) -> None:
    model = model_mlp()
    assert model.spec.size == 83
    with pytest.raises(UserError, match=message) as caught:
        fit_many(model, [job(model), replaced(job(model), **changes)])
    assert "job 1" in str(caught.value)


def test_hostile_options() -> None:
    model = model_mlp()
    with pytest.raises(UserError, match="precision"):
        fit_many(model, [job(model)], precision="fp8")
    with pytest.raises(UserError, match="path"):
        fit_many(model, [job(model)], path="quick")
    with pytest.raises(UserError, match="device"):
        fit_many(model, [job(model)], device="abacus")
    with pytest.raises(UserError, match="device"):
        fit_many(model, [job(model)], device="meta")
    for evaluation in (evaluate_many, judge_many):
        with pytest.raises(UserError, match="models, 83"):
            evaluation(model, np.zeros(83, np.float32), job(model).x, job(model).y)
    with pytest.raises(UserError, match="no samples"):
        evaluate_many(model, np.zeros((1, 83), np.float32), torch.zeros(0, F), torch.zeros(0, dtype=torch.int64))


def test_no_jobs_and_inputs_left_as_they_were() -> None:
    model = model_mlp()
    assert fit_many(model, []) == []
    one = job(model, 20, 2)
    copies = one.weights.copy(), one.x.clone(), one.y.clone()
    one = replace(one, sample_weights=np.full(20, 0.5, np.float32))
    for array in (one.weights, one.sample_weights):
        array.flags.writeable = False  # as decoded messages are
    for path in ("dense", "vmap", "loop"):
        (fitted,) = fit_many(model, [one], path=path)
        assert fitted.weights.flags.writeable
        assert not np.shares_memory(fitted.weights, one.weights)
    assert np.array_equal(one.weights, copies[0])
    assert torch.equal(one.x, copies[1])
    assert torch.equal(one.y, copies[2])
