"""What all clients compute of the same inputs is computed once in a simulation, and never taken for something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coterie.protocol.effects import Compute
from coterie.protocol.errors import PeerError
from coterie.runs.interpreter import Computed
from tests.runs.test_interpreter import effects


def add(a: Any, b: Any) -> Any:
    return [a, b]


def counting() -> tuple[Any, list[Any]]:
    calls: list[Any] = []

    def function(*arguments: Any) -> Any:
        calls.append(arguments)
        return object()

    return function, calls


ARRAY = np.arange(6.0)
SAME: list[tuple[Any, Any]] = [
    ((1, "a", b"x"), (1, "a", b"x")),
    ((ARRAY,), (ARRAY,)),
    ((ARRAY,), (ARRAY.copy(),)),
    (((ARRAY, None, (1, 2)), 3), ((ARRAY.copy(), None, (1, 2)), 3)),
    ((np.zeros((2, 3), np.float32),), (np.zeros((2, 3), np.float32),)),
]
OTHER: list[tuple[Any, Any]] = [
    ((1, "a"), (1, "b")),
    ((ARRAY,), (ARRAY + 1,)),
    ((ARRAY,), (ARRAY.astype(np.float32),)),
    ((ARRAY,), (ARRAY.reshape(2, 3),)),
    ((ARRAY,), (None,)),
    ((ARRAY,), (tuple(ARRAY.tolist()),)),
    ((np.array([np.nan]),), (np.array([np.nan]),)),  # no number equals another
]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_equal_arguments_are_computed_once(a: tuple, b: tuple) -> None:
    (function, calls), held = counting(), Computed()
    assert held.get(Compute(function, a)) is held.get(Compute(function, b))
    assert len(calls) == 1


@pytest.mark.parametrize(("a", "b"), OTHER)
def test_other_arguments_are_computed_anew(a: tuple, b: tuple) -> None:
    (function, calls), held = counting(), Computed()
    assert held.get(Compute(function, a)) is not held.get(Compute(function, b))
    assert len(calls) == 2


def test_another_function_of_the_same_arguments_is_another_thing() -> None:
    (one, _), (other, _), held = counting(), counting(), Computed()
    assert held.get(Compute(one, (1,))) is not held.get(Compute(other, (1,)))


def test_only_the_last_few_are_held() -> None:
    (function, calls), held = counting(), Computed(most=2)
    for i in (0, 1, 0, 2, 0, 1):
        held.get(Compute(function, (i,)))
    assert [arguments[0] for arguments in calls] == [0, 1, 2, 0, 1]


def test_a_refusal_stands_where_the_result_would_and_is_not_remembered() -> None:
    calls = []

    def refuse(text: str) -> None:
        calls.append(text)
        raise PeerError(text)

    runner = effects()
    results = runner.run([(f"client/{i}", Compute(refuse, ("no",))) for i in range(2)])
    assert [type(result) for result in results] == [PeerError, PeerError]
    assert calls == ["no", "no"]
    with pytest.raises(ZeroDivisionError):  # our own bug is nobody's refusal
        runner.run([("client/0", Compute(lambda: 1 / 0, ()))])


def test_the_runner_shares_results_among_parties_and_rounds() -> None:
    runner = effects()
    first = runner.run([(f"client/{i}", Compute(add, (ARRAY, i // 2))) for i in range(4)])
    assert first[0] is first[1]
    assert first[2] is first[3]
    assert first[0] is not first[2]
    assert runner.run([("client/3", Compute(add, (ARRAY.copy(), 0)))])[0] is first[0]
