"""The types of a run folder's content."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from coterie.record.comparison import ACCURACY, Count, Measure, Share

FORMAT = 1
"""Of ``config.toml`` and ``result.json``, under ``format``; missing in early files of form 1."""

Seconds = Annotated[float, msgspec.Meta(ge=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
Delta = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Epsilon = Annotated[float, msgspec.Meta(ge=0)] | Literal["infinite"]
"""``"infinite"``: there is no proof."""
Band = tuple[float | None, float | None, float | None, float | None, float | None]
"""Smallest, lower quartile, median, upper quartile and largest over the clients."""
Matrix = tuple[tuple[float | None, ...], ...]
Members = tuple[tuple[Count, ...] | None, ...]
"""Of each client, the clusters that it is in."""

EMULATED = " (emulated cipher)"
SAMPLE, CLIENT = "replace one sample", "replace one client"
"""Relations of neighbours that an epsilon is for."""


class AttackRecord(msgspec.Struct, frozen=True):
    name: str
    verdict: Literal["nothing found", "cannot tell", "a little", "much", "everything"]
    leak: float
    error: Annotated[float, msgspec.Meta(ge=0)]
    metric: str
    chance: float
    perfect: float
    clients: Count
    value: float | None = None
    first: float | None = None
    last: float | None = None
    closed_form: float | None = None
    chance_known: bool = True
    rounds: Count = 0
    round: Count | None = None
    topic: str | None = None


class Unread(msgspec.Struct, frozen=True):
    """A field that no attack has read (``privacy.fields.NotJudged``)."""

    role: str
    message: str
    field: str
    why: str


class AuditRecord(msgspec.Struct, frozen=True):
    """not_applicable: by attack, why it can't be applied."""

    attacks: tuple[AttackRecord, ...] = ()
    not_applicable: dict[str, str] = {}
    not_judged: tuple[Unread, ...] = ()
    stopped: Count | None = None
    drifted: Count | None = None


class ReleaseRecord(msgspec.Struct, frozen=True):
    """One kind of release of one client. against: its observers; (): everybody."""

    what: str
    mechanism: str
    count: AtLeastOne
    epsilon: Epsilon
    epsilon_after_one_more: Epsilon
    neighbours: str = SAMPLE
    claimed_epsilon: Annotated[float, msgspec.Meta(gt=0)] | None = None
    against: tuple[str, ...] = ()


class LedgerRecord(msgspec.Struct, frozen=True):
    """All of one client's releases. epsilon: of all together, by relation of neighbours."""

    delta: Delta
    epsilon: dict[str, Epsilon]
    releases: tuple[ReleaseRecord, ...] = ()
    epsilon_after_one_more_round: dict[str, Epsilon] = {}
    against: dict[str, dict[str, Epsilon]] = {}


class NoiseRecord(msgspec.Struct, frozen=True):
    """What neighbouring data prove of a claim (``attacks/noisy_uploads.py``)."""

    mechanism: str
    neighbours: str
    claimed_epsilon: Epsilon
    lower_bound: Epsilon
    delta: Delta
    trials: AtLeastOne
    holds: bool
    exact_epsilon: Epsilon | None = None


class Joules(msgspec.Struct, frozen=True):
    """Nominal, of all clients of a type."""

    compute: Seconds
    radio: Seconds
    idle: Seconds


class Used(msgspec.Struct, frozen=True):
    """By all clients with one type of device.  compute_s, radio_s: virtual seconds of work, and of transfers with
    latency.  there_s: of presence in rounds.  peak_memory_bytes: of the client that needs most.  memory_gib: of the
    device that has least.
    """

    clients: AtLeastOne
    compute_s: Seconds
    radio_s: Seconds
    there_s: Seconds
    joules: Joules
    peak_memory_bytes: Count
    memory_gib: Seconds


class DetectionRecord(msgspec.Struct, frozen=True):
    """``aggregation.flagged.Detection``: shares of poisoned and of other contributions that were flagged."""

    rate: Share | None
    false_alarms: Share | None
    rounds: AtLeastOne


class Deployed(msgspec.Struct, frozen=True):
    """plan: its version.  repeated: attempts beyond the first.  running: the run goes on.  rehearsal: on one machine,
    with dealt data.  reporting: the smallest and largest number of clients that reported scores in a round.  unknown:
    in words.
    """

    engine: str = ""
    session: str = ""
    plan_sha256: str = ""
    plan: Count = 0
    parties: Count = 0
    rehearsal: bool = False
    running: bool = False
    repeated: Count = 0
    reporting: tuple[Count, Count] = (0, 0)
    unknown: tuple[str, ...] = ()


class Sizes(msgspec.Struct, frozen=True):
    sizes: tuple[Seconds, ...] | None = None


class CalibrationBin(msgspec.Struct, frozen=True):
    probability: Share
    share: Share
    samples: AtLeastOne


class CalibrationRecord(msgspec.Struct, frozen=True):
    """How often the class ``positive`` is true beside its probability (``runs.explained.calibration``)."""

    positive: str
    brier: Share
    samples: AtLeastOne
    bins: tuple[CalibrationBin, ...]


class ChoiceRecord(msgspec.Struct, frozen=True):
    """A cluster's choice in a round. mean, deviation: of the expected reward."""

    chosen: tuple[str, ...] = ()
    mean: float | None = None
    deviation: float | None = None
    skipped: str | None = None


class EventRecord(msgspec.Struct, frozen=True):
    """kind: ``merge``, ``split``, ...  value: the divergence that decided."""

    kind: str
    clusters: tuple[Count, ...] = ()
    names: tuple[str, ...] = ()
    value: float | None = None


class Notes(msgspec.Struct, frozen=True):
    """A system's notes of a round, each optional.

    selected: the cluster of each selected client.  too_slow: clients that no selection can have.
    """

    clustered: bool | None = None
    clusters: Sizes | None = None
    membership: Members | None = None
    participants: Count | None = None
    skipped: str | None = None
    outliers: dict[str, float] = {}
    too_slow: tuple[str, ...] = ()
    selected: dict[str, Count] | None = None
    choices: dict[str, ChoiceRecord] = {}
    events: tuple[EventRecord, ...] = ()


class Drifted(msgspec.Struct, frozen=True):
    """round: before which clients exchanged data.  data_of: by client, whose data it then has."""

    round: Count
    data_of: tuple[Count, ...]


class Partition(msgspec.Struct, frozen=True):
    """``partition.json``.  label_counts: (clients, classes).  samples, epochs: for training.  groups: of the data, if
    any.  names: the clients' own, or ().  class_names: of label_counts' columns, or ().  drift: which clients exchanged
    data during the run.
    """

    label_counts: tuple[tuple[Count, ...], ...] | None = None
    groups: tuple[Count, ...] | None = None
    samples: tuple[Count, ...] | None = None
    epochs: tuple[Seconds, ...] | None = None
    names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    drift: Drifted | None = None

    def class_name(self, label: int) -> str:
        return self.class_names[label] if self.class_names else str(label)

    def after(self, rounds: int) -> Partition:
        if self.drift is None or rounds < self.drift.round:
            return self
        of = self.drift.data_of
        moved = {key: getattr(self, key) for key in ("label_counts", "groups", "samples")}
        return msgspec.structs.replace(self, **{key: v and tuple(v[i] for i in of) for key, v in moved.items()})


class GroupingRecord(msgspec.Struct, frozen=True):
    """Clusters beside the data's groups (``coterie.clustering.agreement``); ari is at least -1/2."""

    clusters: Count
    per_client: Seconds
    sizes: tuple[Count, ...]
    ari: Annotated[float, msgspec.Meta(ge=-1, le=1 + 1e-6)] | None = None
    without: Count = 0


class CostsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Costs and mishaps, by role, ``"role/work"`` or message."""

    bytes_up: dict[str, Count] = {}
    bytes_down: dict[str, Count] = {}
    message_bytes: dict[str, Count] = {}
    phase_seconds: dict[str, Seconds] = {}
    phase_virtual_seconds: dict[str, Seconds] = {}
    virtual_seconds: Seconds | None = None
    refused: dict[str, Count] = {}
    lost: dict[str, str] = {}
    late: tuple[str, ...] = ()


class RoundRecord(CostsRecord, frozen=True, kw_only=True):
    """One line of ``metrics.jsonl``; None where not evaluated."""

    round: Count
    global_accuracy: Share | None = None
    local_accuracy: Share | None = None
    global_loss: float | None = None
    local_loss: float | None = None
    fine_tuned_global_accuracy: Share | None = None
    fine_tuned_local_accuracy: Share | None = None
    prior_local_accuracy: Share | None = None
    mixed_local_accuracy: Share | None = None
    backdoor_success: Share | None = None
    metrics: dict[str, float | None] = {}
    grouping: GroupingRecord | None = None
    bands: dict[str, Band] = {}
    notes: Notes = Notes()
    reported: dict[str, Count] = {}


class SampleRecord(msgspec.Struct, frozen=True):
    """Scores were measured on ``samples`` of ``of``.

    standard_error: at most, of a client's global accuracy, or of the mean training accuracy.
    """

    samples: AtLeastOne
    of: AtLeastOne
    standard_error: Share


class RunRecord(msgspec.Struct, frozen=True):
    """``result.json``. Bytes are those of all roles.

    attacker_names: whose scores do not count.  set_up, finish: before the first round and after the last.  stopped: why
    it ended after rounds_done.  best_round: whose models are kept, if not the last's.  evaluated: clients, if not all.
    test_sample, train_sample: None for all.
    """

    system: str
    crypto: Literal["real", "emulated", "none"]
    seed: int
    rounds: Count
    clients: AtLeastOne
    data: str
    partition: str
    global_accuracy: Share | None
    local_accuracy: Share | None
    bytes_up: Count
    bytes_down: Count
    seconds: Seconds
    virtual_seconds: Seconds | None
    version: str
    title: str | None = None
    mode: str | None = None
    model: str | None = None
    fine_tuned_global_accuracy: Share | None = None
    fine_tuned_local_accuracy: Share | None = None
    prior_local_accuracy: Share | None = None
    mixed_local_accuracy: Share | None = None
    grouping: GroupingRecord | None = None
    task: str = "classes"
    measures: tuple[Measure, ...] = ()
    metrics: dict[str, float | None] = {}
    client_role: str | None = None
    sees: dict[str, str] = {}
    assumes: str = ""
    refused: Count = 0
    lost: Count = 0
    late: Count = 0
    refused_why: dict[str, Count] = {}
    outliers: dict[str, Count] = {}
    skipped: dict[str, str] = {}
    set_up: CostsRecord = CostsRecord()
    finish: CostsRecord | None = None
    rounds_done: Count | None = None
    stopped: str | None = None
    best_round: Count | None = None
    models_sha256: str | None = None
    public_samples: Count = 0
    attack: str | None = None
    attacker_names: tuple[str, ...] = ()
    backdoor_success: Share | None = None
    detection: DetectionRecord | None = None
    audit: AuditRecord | None = None
    ledger: dict[str, LedgerRecord] | None = None
    dp_audit: tuple[NoiseRecord, ...] | None = None
    devices_used: dict[str, Used] | None = None
    deployment: Deployed | None = None
    evaluated: AtLeastOne | None = None
    test_sample: SampleRecord | None = None
    train_sample: SampleRecord | None = None
    calibration: CalibrationRecord | None = None
    devices: str | None = None
    availability: str | None = None
    emulated: bool = False
    parameters: Count | None = None
    train_accuracy: Share | None = None
    fine_tuned_epochs: Seconds | None = None
    bytes_up_by_role: dict[str, Count] = {}
    bytes_down_by_role: dict[str, Count] = {}
    observing_seconds: Seconds = 0.0
    attackers: Share | None = None
    poisoned: dict[str, Count] = {}
    inputs_digest: str | None = None
    own_code: dict[str, str] = {}
    recording: str | None = None
    peak_memory_bytes: Count | None = None
    format: Count = FORMAT

    @property
    def leading(self) -> Measure:
        return self.measures[0] if self.measures else ACCURACY

    def score(self, field: str) -> float | None:
        """``local_auroc``, say, at the end; None if unknown."""
        value: float | None = getattr(self, field, self.metrics.get(field))
        return value

    @property
    def shown(self) -> int:
        return self.clients if self.evaluated is None else self.evaluated

    @property
    def done(self) -> int:
        """Fewer rounds than asked for after an early stop."""
        return self.rounds if self.rounds_done is None else self.rounds_done

    @property
    def name(self) -> str:
        """For people; a badge says whether the cipher was emulated."""
        return (self.title or self.system).removesuffix(EMULATED)


class Observed(msgspec.Struct, frozen=True):
    """features: (clients, C) what clients sent of themselves; empty rows for none."""

    affinity: Matrix | None = None
    membership: Members | None = None
    features: Matrix | None = None
