"""The options of a run: resolved against its data set's defaults, read from and written to TOML."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

import coterie
from coterie.data.catalogue import ALL_LABELS
from coterie.data.drift import parse_drift
from coterie.data.own import CLIENT, is_path
from coterie.data.tasks import column_of
from coterie.devices.links import delay_law
from coterie.devices.traces import parse
from coterie.protocol.errors import UserError, nearest, suggest
from coterie.protocol.options import check_bounds
from coterie.protocol.system import System
from coterie.record.folder import check_format
from coterie.record.schema import FORMAT
from coterie.runs import registry
from coterie.runs.options import OPTIONS as OPTIONS
from coterie.runs.options import RunConfig as RunConfig
from coterie.runs.settings import NONE, convert, field_types, typed, unknown, values_of

if TYPE_CHECKING:
    from coterie.training.jobs import How

MAY_DIFFER = frozenset({"rounds", "checkpoint_every", "data_dir", "out", "log", "workers"})
"""Options that a resumed run may give another value: they move no number of the rounds that are done."""

SIDES = frozenset(
    {"data_dir", "out", "accelerator", "checkpoint_every", "eval_every", "fine_tune_every", "record", "record_mib"}
    | {"log", "workers", "evaluate"}
)
"""Options that move no number of a round."""

_OF_SCHEMA = ("target", "gaps", "categories", "kind", "task", "scaling")

MOST_EVALUATED = 1000
"""Clients that are scored where nobody asks for more. Audits of recorded views want all."""


@dataclass(frozen=True, kw_only=True)
class Resolved(RunConfig):
    """A run of which every option has a value and has passed all checks that need no data (``resolve``).

    clients: None where the data decide their number.  settings: every setting of the system.
    """

    rounds: int
    partition: str
    model: str
    delta: float
    public: float

    @property
    def definition(self) -> System:
        return registry.get(self.system)

    @property
    def own(self) -> Any:
        return self.definition.config(**self.settings)

    @property
    def holds_out(self) -> bool:
        """Whether a fifth of each client's training samples is kept out of its training."""
        return self.fine_tune == "held_out" or self.early_stop is not None

    @property
    def how(self) -> How:
        return {"precision": self.precision, "device": self.accelerator}


@dataclass(frozen=True)
class Defaults:
    """Options and settings for one data set.

    model: None for ``training.models.default_model``.  of_model: settings that another model needs, by its name.
    metrics, folds: as the options.
    """

    clients: int
    rounds: int
    partition: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    of_model: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    metrics: str | None = None
    folds: int | None = None


# The learning rates are measured with FedAvg (global accuracy; Dirichlet 0.3, where nothing else is said):
# digits, round 10: .92 at 0.05, .93 at 0.1, .94 at 0.2; SCAFFOLD .94, .96, .94; IFCA .67, .71, .78.
_DIGITS = Defaults(20, 10, "dirichlet:0.3", {"lr": 0.1, "batch_size": 10})
# MNIST, 50 clients, round 9: .945 at 0.1, .891 at the 0.01 that FedCAPrivacy prints.
_MNIST = Defaults(100, 30, "dirichlet:0.3", {"lr": 0.1, "batch_size": 50})
# CIFAR-10, 7,500 samples seen: loss 2.03 at 0.01, 2.29 (chance is 2.30) at the 0.001 that FedCAPrivacy prints. Still
# slow: the CNN wants hours on a CPU.
_COLOUR = Defaults(100, 100, "dirichlet:0.3", {"lr": 0.01, "batch_size": 50})
# Location30, round 20: .58 at 0.05, .67 at 0.1, .73 at 0.3.
_TABULAR = Defaults(20, 30, "dirichlet:0.3", {"lr": 0.1, "batch_size": 20})
_LOCATION = Defaults(20, 30, "dirichlet:0.3", {"lr": 0.3, "batch_size": 20})
# Words of single nodes, no edges: Cora .39, Citeseer .36 in round 10; the MLP, or a rate of 1, learns next to nothing
# from inputs whose rows sum to 1 and some 28 nodes a client.
_GRAPH = Defaults(
    5,
    20,
    "dirichlet:1.0",
    {"lr": 10.0, "batch_size": 64, "max_epochs": 20},
    model="linear",
    of_model={"gcn": {"lr": 0.3}},
)
_HEART = Defaults(
    4,
    10,
    "by:hospital",
    {"lr": 0.02, "batch_size": 16, "weight_decay": 0.03},
    model="linear",
    metrics="auroc",
    folds=5,
)

DEFAULTS: Mapping[str, Defaults] = {
    "digits": _DIGITS,
    "heart": _HEART,
    **dict.fromkeys(("mnist", "fashion_mnist"), _MNIST),
    **dict.fromkeys(("cifar10", "cifar100", "svhn"), _COLOUR),
    **dict.fromkeys(("purchase100", "texas100"), _TABULAR),
    "location30": _LOCATION,
    **dict.fromkeys((*ALL_LABELS, *ALL_LABELS.values()), _GRAPH),
}


def defaults_for(data: str) -> Defaults:
    """The defaults of a data set. A user's own data set gets those of tabular data."""
    return DEFAULTS.get(data, _TABULAR)


def check_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Names and types of run options; raises UserError. ``settings`` pass unchecked: ``resolve`` knows the system."""
    for key in given:
        if key not in OPTIONS and key != "settings":
            hint = suggest(key, [*OPTIONS, "settings"])
            raise UserError(
                f"unknown option {key!r}{hint} Options: {', '.join(OPTIONS)}; the system's own go under [settings]"
            )
    if not isinstance(given.get("settings", {}), Mapping):
        raise UserError(f"option 'settings' must be a table of settings, not {given['settings']!r}")
    return {
        key: convert(value, OPTIONS[key], f"option {key!r}", text=False) if key in OPTIONS else dict(value)
        for key, value in given.items()
    }


def resolve(config: RunConfig) -> Resolved:
    """The same run with defaults filled in and all checks that need no data. Raises UserError.

    Settings are the system's own defaults, then those for the data set, then those of the mode, then those given.
    """
    if isinstance(config, Resolved):
        return config
    given = check_options(values_of(config))
    system = registry.get(config.system)
    defaults = defaults_for(config.data)
    if given["partition"] is None and is_path(config.data) and Path(config.data).is_dir():
        given["partition"] = f"by:{CLIENT}"
    for key in ("partition", "clients", "rounds", "model"):
        if given[key] is None and not (key == "clients" and column_of(given["partition"])):
            given[key] = (key == "clients" and system.clients) or getattr(defaults, key)
    if (given["clients"] or 0) > MOST_EVALUATED and given["evaluate"] == "sample" and not given["record"]:
        given["evaluated"] = given["evaluated"] or MOST_EVALUATED
    given |= _machine(given)
    if config.mode not in system.modes:
        hint = suggest(config.mode, system.modes)
        raise UserError(f"{system.name} has no mode {config.mode!r}{hint} It has: {', '.join(system.modes)}")
    check_bounds(config, "option {!r}")
    if given["schema"] is not None:
        said = [key for key in _OF_SCHEMA if given[key] != getattr(RunConfig, key)]
        if said:
            raise UserError(f"{said[0]}={given[said[0]]} has no effect beside a schema, which states it: leave it out")
    if given["fine_tune_every"] and given["fine_tune"] == "no":
        raise UserError("fine_tune_every has no effect without fine-tuning: give fine_tune (--fine-tune), too")
    if given["early_stop"] is not None and given["fine_tune"] != "no":
        raise UserError(
            "early_stop and fine_tune hold out the same samples to choose rounds and epochs: leave early_stop out, or "
            "say fine_tune='no' (--no-fine-tune)"
        )
    given["metrics"] = given["metrics"] or defaults.metrics
    if given["folds"] is None and given["test_share"] is None:
        given["folds"] = defaults.folds
    for key in ("delta", "public"):
        given[key] = getattr(system, key) if given[key] is None else given[key]
    delay_law(given["delay"])
    if not given["delta"] and given["delay"] != RunConfig.delay:
        raise UserError(f"delay={given['delay']} has no effect with delta=0: give delta (--delta), too")
    if given["drift"] is not None:
        parse_drift(given["drift"], given["rounds"])
    given |= _attack(config)
    known = field_types(system.config)
    of_data = {**defaults.settings, **defaults.of_model.get(given["model"], {})}
    layer = {key: value for key, value in of_data.items() if key in known}
    own = typed_settings(config.system, config.settings, text=False)
    settings = system.config(**{**layer, **system.defaults(config.mode), **own})
    system.check_counted(settings, config.task)
    given["settings"] = values_of(settings)
    return Resolved(**given)


def _attack(config: RunConfig) -> dict[str, Any]:
    if config.attack is None:
        if config.attackers is not None:
            raise UserError(f"attackers={config.attackers:g} has no effect without an attack: give attack, too")
        return {}
    from coterie.privacy.attacks.active import ATTACKERS, kind_of, parse

    attack = parse(config.attack)
    if kind_of(attack.kind).needs_classes and config.task != "classes":
        raise UserError(
            f"attack {attack.kind} needs classes as labels, and the task is {config.task}: leave one of the two out"
        )
    return {"attack": str(attack), "attackers": ATTACKERS if config.attackers is None else config.attackers}


def _machine(given: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    from coterie.training.jobs import has_fast_bf16
    from coterie.training.models import default_model

    accelerator, precision = given["accelerator"], given["precision"]
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    elif accelerator == "cuda" and not torch.cuda.is_available():
        raise UserError("option 'accelerator' is 'cuda', but torch finds no GPU here: use cpu, or auto")
    if precision == "auto":
        precision = "bf16" if has_fast_bf16(accelerator) else "fp32"
    paths = {"data_dir": given["data_dir"], "devices": given["devices"] if given["devices"].endswith(".toml") else None}
    paths |= {"data": given["data"] if is_path(given["data"]) else None, "schema": given["schema"]}
    absolute = {key: str(Path(path).expanduser().resolve()) for key, path in paths.items() if path is not None}
    model = given["model"] or default_model(given["data"])
    if given["availability"] is not None:
        absolute["availability"] = str(parse(given["availability"]).absolute())
    return {"model": model, "accelerator": accelerator, "precision": precision, **absolute}


def check_settings(keys: Iterable[str], known: Collection[str], what: str) -> None:
    """Raises UserError for an unknown setting, and says if it is an option of the run."""
    for key in keys:
        if key in known:
            continue
        word = key.rpartition(".")[2]
        option = nearest(word, known if word not in OPTIONS and nearest(word, known) else [*known, *OPTIONS])
        if option is None or option in known:
            raise unknown(what, str(key), known)
        raise UserError(
            f"{word} is no {what} but {'an' if word == option else 'probably the'} option of the run: give "
            f"--{option.replace('_', '-')}, or write {option} above the table [settings]"
        )


def _check_noise(given: Mapping[str, Any], known: Mapping[str, Any], name: str) -> None:
    """Raises UserError for noise in a system that adds none to what it opens."""
    for word in ("epsilon", "noise"):
        if word in given and word not in known:
            some = [one for one, system in registry.SYSTEMS.items() if "private_rounds" in field_types(system.config)]
            raise UserError(
                f"{name} has no setting {word!r}, since it adds no noise to what it opens: its page says why. "
                f"{', '.join(some)} and fl.Sums do (docs/privacy.md). sample_noise, where there is one, hides samples"
            )


def typed_settings(name: str, given: Mapping[str, Any], *, text: bool = True) -> dict[str, Any]:
    """Settings (``--set`` texts, if not said otherwise) as this system's values; raises UserError."""
    kind, what = registry.get(name).config, f"setting of {name}"
    _check_noise(given, field_types(kind), name)
    check_settings(given, field_types(kind), what)
    return typed(kind, given, what, text=text)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Options of a TOML file, checked; raises UserError naming the file."""
    try:
        given = tomllib.loads(Path(path).read_bytes().decode())
        check_format(path, given.pop("format", FORMAT))
        return check_options(given)
    except OSError as error:
        raise UserError(f"cannot read the config {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def from_toml(path: str | Path, **overrides: Any) -> RunConfig:
    """A run from a TOML file. Overrides win, also over the file's ``settings``. Raises UserError."""
    given = read_toml(path)
    settings = {**given.pop("settings", {}), **overrides.pop("settings", {})}
    given |= check_options(overrides)
    if "system" not in given:
        raise UserError(f'{path} names no system: add system = "fedavg", say, or give one')
    return RunConfig(**given, settings=settings)


def from_text(text: str) -> Resolved:
    try:
        given = tomllib.loads(text)
        check_format("config", given.pop("format", FORMAT))
        return resolve(RunConfig(**check_options(given)))
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise UserError(f"not a run's config: {error}") from None


def to_toml(config: Resolved) -> str:
    """All options of a resolved run but its folder and its workers, so that the file repeats the run anywhere."""
    left_out = ("out", "workers", "settings")
    given = {key: value for key, value in values_of(config).items() if value is not None and key not in left_out}
    table = {"format": FORMAT, **given}
    table["settings"] = {key: NONE if value is None else value for key, value in config.settings.items()}
    head = f"# coterie {coterie.__version__}; this file repeats the run: coterie run --config THIS_FILE\n\n"
    return head + tomli_w.dumps(table)


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """``"seed: 0, now 1"`` for each difference that keeps one resolved run from continuing as the other."""
    found = []
    for f in dataclasses.fields(RunConfig):
        a, b = getattr(old, f.name), getattr(new, f.name)
        if f.name == "settings":
            keys = sorted({*a, *b})
            found += [f"{key}: {a.get(key)}, now {b.get(key)}" for key in keys if a.get(key) != b.get(key)]
        elif f.name == "clients" and None in (a, b):  # as many as the data name
            continue
        elif f.name not in MAY_DIFFER and a != b:
            found.append(f"{f.name}: {a}, now {b}")
    return found
