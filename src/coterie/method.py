"""The face for authors of methods: ``import coterie.method as fl``. The page is docs/own_system.md.

``averaging`` is FedAvg with one thing changed; ``system`` is any other method. Importing it takes no torch and no
tenseal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.protocol import core
from coterie.protocol.core import *
from coterie.protocol.system import undeclared
from coterie.protocols import face
from coterie.protocols.face import *
from coterie.protocols.own_mean import averaged
from coterie.protocols.padded_counts import PaddedCounts

if TYPE_CHECKING:
    from coterie.protocols.sums import SumClient, SumKeys, Sums, SumServer

Class = TypeVar("Class", bound=type)

__all__ = ["LEARNS", "SumClient", "SumKeys", "SumServer", "Sums", "averaged_models", "averaging", "global_models"]
__all__ += ["settings", "system"]
__all__ += [name for name in (*dir(core), *dir(face)) if not name.startswith("_")]


def __getattr__(name: str) -> Any:
    """Sealed sums import a cipher: at their first use."""
    if name in ("SumClient", "SumKeys", "SumServer", "Sums"):
        return getattr(import_module("coterie.protocols.sums"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclass_transform(frozen_default=True)
def settings(cls: Class) -> Class:
    """A method's settings: a frozen dataclass, one documented field each, which inherits from ``LocalTraining``."""
    return dataclass(frozen=True)(cls)  # type: ignore[return-value]


def averaging(
    name: str,
    settings: type,
    *,
    local: Any = None,
    server_rule: Callable[[Any, NDArray[np.float64], Any], NDArray[Any]] | None = None,
    keeps: type[msgspec.Struct] = Server.State,
    **more: Any,
) -> System:
    """Federated averaging with one thing changed.

    settings: inherits from ``Averaging``.
    local: what clients train with: a solver's class, whose settings are fields of ``settings``; a loss of one batch,
    ``loss(network, start, x, y, config)``; or a generator ``local(client, start, r)`` that returns a ``Fitted``.
    server_rule: ``rule(state, change, config)``, the server's step (d,) of the clients' mean change (d,) float64.
    keeps: the server's state, which inherits from ``Server.State``; the rule may change it.
    more: see ``system``.
    """
    client = type("OwnClient", (AveragingClient,), {"local": staticmethod(local)} if local else {})
    rule = {"rule": staticmethod(server_rule)} if server_rule else {}
    server = type("OwnServer", (Server,), {"State": keeps, **rule})
    if local is not None and "check" not in more:
        more["check"] = lambda config, common: _check_local(config, local)
    return system(name, settings, server, client, **more)


def _check_local(config: Any, local: Any) -> None:
    if isinstance(local, type):
        config.solver_of(local)


LEARNS = {
    "server": "every client's plain model and number of samples in every round, by name",
    "client": "the global model of every round that it takes part in",
}
"""What the roles of federated averaging learn."""


def system(
    name: str,
    settings: type,
    server: PartyFactory,
    client: PartyFactory,
    *,
    choice: Callable[[Any], int | None] | None = None,
    model: Callable[[Any], Vector | Mixture] | None = None,
    learns: Any = LEARNS,
    described_in: str = "",
    **more: Any,
) -> System:
    """A method with a server and clients, described from its parties.

    server, client: the classes of the parties.
    choice: a client's last choice among the server's models, None before the first.
    model: a client's own model, (d,). Without choice and model all clients use the server's model.
    learns: by role, in words, what it learns.
    described_in: the module whose first paragraph has title and citation, by default that of the settings, such as
    ``FedProx: Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.``
    more: other fields of ``System``.
    """
    fields: dict[str, Any] = {
        "parties": lambda config: {"server": server, "client": client},
        "releases": telling(tells) if (tells := _tells(client)) is not None else None,
        **_models_of(choice, model),
    }
    title, citation = _cited(sys.modules[described_in or settings.__module__].__doc__ or name)
    fields |= {"title": title, "citation": citation, "assumes": "", **more}
    why = _why_uncounted(server, client, choice is not None, fields)
    if why:
        return System(name=name, config=settings, learns=learns, uncounted=why, **fields)
    said = fields["assumes"], bool(fields.get("encrypted"))
    fields |= {"counts": _told_counts, "releases": partial(_counted_releases, fields["releases"])}
    fields |= {"assumes": partial(_counted_assumes, *said)}
    return System(name=name, config=settings, learns=partial(_counted_learns, learns), **fields)


def _why_uncounted(server: PartyFactory, client: PartyFactory, chooses: bool, fields: Mapping[str, Any]) -> str:
    """Why clients cannot learn the label counts of their model, or ""."""
    if not chooses and fields["models"] not in (global_models, averaged_models, own_models):
        return "every client has a model of its own"
    if not issubclass(party_type(server), Server) or not issubclass(party_type(client), Client):
        return "its parties have no messages for them"
    if fields["releases"] is None or "ledger" in fields:
        return "its ledger has no line for them, which nothing protects but their sum"
    return ""


def _told_counts(client: Any) -> NDArray[np.int64] | None:
    counts: NDArray[np.int64] | None = client.counts.secret.total
    return counts


def _counted_releases(releases: Any, config: Any, mode: str) -> Mapping[type[Message], Sequence[str]]:
    counts = {PaddedCounts: PaddedCounts.TELLS} if config.label_counts else {}
    return {**releases(config, mode), **counts}


def _counted_learns(learns: Any, config: Any, mode: str) -> Mapping[str, str]:
    words: Mapping[str, str] = learns(config, mode) if callable(learns) else learns
    if not config.label_counts:
        return words
    more = {
        "server": "; after the last round, label counts in sums of three clients or more that hold one model",
        "client": "; after the last round, the label counts of the clients that hold its model",
    }
    return {role: text + more.get(role, "") for role, text in words.items()}


def _counted_assumes(assumes: Any, encrypted: bool, config: Any, mode: str) -> str:
    words = (assumes(config, mode) if callable(assumes) else assumes) or undeclared(encrypted)
    counts = "; two clients of each list of label counts keep their keys from the server"
    return f"{words}{counts if config.label_counts else ''}"


def _models_of(choice: Callable[[Any], int | None] | None, model: Callable[[Any], Any] | None) -> dict[str, Any]:
    if model is not None:
        return {"models": of_each(model), "own_model": model}
    if choice is None:
        return {"models": global_models, "own_model": own_model, "sent_next": True}

    def models(federation: Federation) -> Mapping[str, Vector]:
        every = list(federation.look(federation.hub).state.weights)
        return {client.name: every[choice(client) or 0] for client in federation.of_role("client")}

    def observe(federation: Federation) -> Mapping[str, Any]:
        chosen = map(choice, federation.of_role("client"))
        return {"membership": [[] if one is None else [one] for one in chosen]}

    return {
        "models": models,
        "own_model": lambda client: np.asarray(client.last_models()[choice(client) or 0]),
        "sent_next": True,
        "observe": observe,
        "pool": lambda federation: [federation.look(federation.hub).state.weights],
    }


def global_models(federation: Federation) -> Mapping[str, Vector]:
    return dict.fromkeys(federation.common.clients, federation.look(federation.hub).state.weights)


def averaged_models(federation: Federation) -> Mapping[str, Vector]:
    """The global model, or with ``ema`` each client's average of those that it was sent."""
    return averaged(federation, global_models(federation))


def _tells(client: PartyFactory) -> dict[type[Message], Sequence[str]] | None:
    """None if a message does not say what it tells."""
    kinds = {kind for handler in party_type(client).handlers.values() for kind in handler.answers} - {PaddedCounts}
    told = {kind: kind.TELLS for kind in kinds}
    if any(words is None for words in told.values()):
        return None
    return {kind: words for kind, words in told.items() if words}


def _cited(doc: str) -> tuple[str, str]:
    paragraph = " ".join(doc.strip().split("\n\n")[0].split())
    title, _, citation = paragraph.partition(": ")
    return title, citation.replace('"', "").removesuffix(".") or title
