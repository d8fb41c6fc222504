"""Run options: defaults, layers, TOML round trips, and every mistake named."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.protocol.errors import UserError
from coterie.runs import RunConfig, from_toml, registry, resolve, to_toml
from coterie.runs.config_file import differences, from_text
from coterie.runs.defaults import DEFAULTS
from coterie.runs.registry import typed_settings


def test_layers_of_settings(tmp_path: Path) -> None:
    """The system's own defaults < the data set's < TOML < the command line."""
    base = resolve(RunConfig("fedavg", data="digits"))
    assert base.settings["batch_size"] == DEFAULTS["digits"].settings["batch_size"] == 10
    assert base.settings["max_epochs"] == 5
    file = tmp_path / "run.toml"
    file.write_text('system = "fedavg"\nrounds = 3\n[settings]\nbatch_size = 7\nmax_epochs = 2\n')
    got = resolve(from_toml(file, rounds=4, settings={"max_epochs": 3}))
    assert (got.rounds, got.settings["batch_size"], got.settings["max_epochs"]) == (4, 7, 3)
    assert got.settings["lr"] == base.settings["lr"]
    assert resolve(got).own.batch_size == 7


def test_a_mode_has_defaults_of_its_own_and_what_was_given_wins() -> None:
    """Over the data set's, which say nothing of these; written into the run's file, which repeats it."""
    paper, literal = (resolve(RunConfig("pafed", mode=mode)) for mode in ("paper", "literal"))
    printed = registry.get("pafed").defaults("literal")
    assert printed == {"server_decay": 0.0, "project": "printed", "clip": 0.0, "local": "admm"}
    assert {key: literal.settings[key] for key in printed} == printed
    assert (paper.settings["server_decay"], paper.settings["project"]) == (0.05, "exact")
    assert {key for key in paper.settings if paper.settings[key] != literal.settings[key]} == {
        "server_decay",
        "project",
    }
    assert 'project = "printed"' in to_toml(literal)
    assert resolve(from_text(to_toml(literal))) == literal
    assert resolve(RunConfig("pafed", mode="literal", settings={"server_decay": 0.1})).settings["server_decay"] == 0.1
    assert registry.get("pafed").defaults("paper") == registry.get("fedavg").defaults("paper") == {}


options = st.fixed_dictionaries(
    {},
    optional={
        "clients": st.integers(1, 10**6),
        "rounds": st.integers(1, 10**6),
        "partition": st.sampled_from(["iid", "shards:2", "dirichlet:0.1"]),
        "seed": st.integers(0, 2**62),
        "crypto": st.sampled_from(["real", "emulated"]),
        "eval_every": st.integers(1, 99),
        "checkpoint_every": st.integers(0, 99),
        "record": st.booleans(),
        "min_samples": st.integers(0, 99),
        "model": st.text(st.characters(exclude_categories=("C",)), min_size=1),
        "devices": st.text(st.characters(exclude_categories=("C",))),
    },
)
settings = st.fixed_dictionaries(
    {},
    optional={
        "lr": st.floats(1e-9, 1e9),
        "batch_size": st.integers(1, 10**6),
        "momentum": st.floats(0, 0.99),
        "deadline_s": st.none() | st.floats(1e-9, 1e9),
        "participation": st.floats(0.001, 1),
    },
)


@given(options, settings)
def test_what_was_resolved_survives_toml(given_options: dict[str, object], given_settings: dict[str, object]) -> None:
    config = resolve(RunConfig("fedavg", **given_options, settings=given_settings))  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.toml"
        file.write_text(to_toml(config))
        again = resolve(from_toml(file))
    assert again == config
    assert differences(config, again) == []


def test_out_is_not_part_of_what_repeats_a_run(tmp_path: Path) -> None:
    config = resolve(RunConfig("fedavg", out=str(tmp_path / "a")))
    assert "tmp" not in to_toml(config)


def test_differences_name_the_keys_and_ignore_what_moves_no_number() -> None:
    a = resolve(RunConfig("fedavg", settings={"lr": 0.1}))
    b = resolve(RunConfig("fedavg", seed=3, rounds=99, checkpoint_every=7, out="x", settings={"lr": 0.2}))
    assert differences(a, b) == ["seed: 0, now 3", "lr: 0.1, now 0.2"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"system": "fedavgg"}, ["unknown system 'fedavgg'", "did you mean 'fedavg'?", "ifca"]),
        ({"system": "no.such.module:SYSTEM"}, ["no.such.module", "there is no module 'no'"]),
        ({"system": "coterie.runs.registry:get"}, ["not coterie.protocol.system.System"]),
        ({"mode": "hardend"}, ["no mode 'hardend'", "paper"]),
        ({"clients": 0}, ["'clients'", "at least 1"]),
        ({"rounds": 0}, ["'rounds'", "at least 1"]),
        ({"rounds": 1.5}, ["'rounds'", "a whole number"]),
        ({"seed": -1}, ["'seed'", "at least 0"]),
        ({"crypto": "fake"}, ["'crypto'", "'real' or 'emulated'"]),
        ({"precision": "fp64"}, ["'precision'"]),
        ({"record": "yes"}, ["'record'", "true or false"]),
        ({"eval_every": 0}, ["'eval_every'"]),
        ({"settings": {"lrr": 1}}, ["unknown setting of fedavg 'lrr'", "did you mean 'lr'?"]),
        (
            {"system": "pafed", "settings": {"epsilon": 8.0}},
            ["pafed has no setting 'epsilon'", "coterie, ofl, dp_fedavg"],
        ),
        (
            {"system": "mingledpie", "settings": {"noise": 1.0}},
            ["mingledpie has no setting 'noise'", "docs/privacy.md"],
        ),
        ({"settings": {"lr": "big"}}, ["setting of fedavg 'lr'", "a number"]),
        ({"settings": {"lr": -1.0}}, ["lr"]),
        ({"settings": {"momentum": 2.0}}, ["momentum"]),
        ({"settings": {"participation": 0.0}}, ["participation"]),
    ],
)
def test_mistakes(change: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        resolve(RunConfig(**{"system": "fedavg", **change}))  # type: ignore[arg-type]
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("system = ", ["not valid TOML"]),
        ("rounds = 3", ["names no system"]),
        ('system = "fedavg"\nround = 3', ["unknown option 'round'", "did you mean 'rounds'?"]),
        ('system = "fedavg"\nrounds = "3"', ["'rounds'", "a whole number"]),
        ('system = "fedavg"\nsettings = 3', ["table"]),
        ('system = "fedavg"\nlr = 3', ["unknown option 'lr'", "[settings]"]),
        ("\xff", ["not valid TOML"]),
    ],
)
def test_mistakes_in_a_file(text: str, words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError) as caught:
        from_toml(file)
    assert "run.toml" in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape("cannot read the config")):
        from_toml(tmp_path / "none.toml")
    with pytest.raises(UserError, match="cannot read the config"):
        from_toml(tmp_path)


def test_typed_settings_of_text() -> None:
    assert typed_settings("fedavg", {"lr": "1", "deadline_s": "none"}) == {"lr": 1.0, "deadline_s": None}


def test_every_system_has_its_own_name_and_the_data_defaults_fit_it() -> None:
    assert {"fedavg", "fedprox", "scaffold", "ifca"} <= set(registry.SYSTEMS)
    for name in registry.SYSTEMS:
        system = registry.SYSTEMS[name]
        assert system.name == name
        for data in ("digits", "cifar10", "cora"):
            config = resolve(RunConfig(name, data=data))
            assert config.own.lr == DEFAULTS[data].settings["lr"]
            assert differences(config, resolve(config)) == []


def test_a_system_of_ones_own_can_be_registered() -> None:
    from dataclasses import replace

    own = replace(registry.get("fedavg"), name="fedmine")
    registry.register(own)
    try:
        assert registry.get("fedmine") is own
        assert "fedmine" in set(registry.SYSTEMS)
    finally:
        registry.SYSTEMS.registered.pop("fedmine")
