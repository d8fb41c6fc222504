"""A run's transport and effects, in this process or with workers."""

from __future__ import annotations

from coterie.protocol.names import each
from coterie.runs.founding import FoundedRun
from coterie.runs.interpreter import LocalEffects
from coterie.runs.keyring import PartyKeys
from coterie.runs.metrics import class_weights
from coterie.runs.own_code import with_code
from coterie.runs.workers import workers_of
from coterie.transport.local import LocalTransport
from coterie.transport.transcript import Transcript


def effects_of(run: FoundedRun) -> LocalEffects:
    """Raises UserError for unavailable workers. The caller closes them."""
    config, inputs, targets = run.config, run.inputs, run.inputs.dataset.targets
    return LocalEffects(
        inputs.model,
        inputs.data,
        config.how,
        emulated=run.emulated,
        devices=run.around.devices,
        traces=run.around.traces,
        class_weights=class_weights(config.class_weights, targets, inputs.dataset.classes),
        workers=workers_of(config, with_code(run.inputs_digest, run.own_code), inputs.data.samples),
    )


def transport_of(run: FoundedRun, effects: LocalEffects) -> LocalTransport:
    config, system = run.config, run.system
    servers = system.roles(run.settings, (), config.mode)
    openings = {name: run.identity(name).opening for name in servers} if config.record else {}
    return LocalTransport(
        run.parties,
        run.federation.hub,
        effects,
        links=run.around.links,
        keyring=PartyKeys(run.federation.common.roster, each(run.parties.everybody, run.identity)),
        transcript=Transcript(config.record_mib << 20, openings) if config.record else None,
        counted=frozenset(kind.__name__ for kind in system.counted(run.settings, config.mode)),
    )
