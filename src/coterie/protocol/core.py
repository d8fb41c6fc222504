"""Parties, messages and steps: ``import coterie.protocol.core as fl``. ``coterie.method`` adds more."""

from msgspec import Meta, field
from msgspec import Struct as State
from msgspec.structs import replace as changed

from coterie.protocol import codec, state
from coterie.protocol.arrays import Array, Doubles, Flags, Flags2D, Floats, Floats2D, Integers, Words, Words64
from coterie.protocol.effects import (
    Compute,
    Effect,
    Encrypt,
    Evaluate,
    Evaluated,
    Fit,
    Fitted,
    Local,
    Losses,
    Open,
    OwnData,
    Vector,
    local,
)
from coterie.protocol.errors import (
    CapacityError,
    CoterieError,
    CoterieWarning,
    CryptoError,
    DecodeError,
    KeyMismatchError,
    PeerError,
    RunError,
    UserError,
    suggest,
    to_install,
)
from coterie.protocol.messages import (
    ANY,
    HUB,
    Bundle,
    Done,
    FromHub,
    FromTraining,
    M,
    Message,
    OfRound,
    Signed,
    bundle,
    message,
    split,
    unbundle,
)
from coterie.protocol.model_spec import ModelSpec, Part
from coterie.protocol.names import LazyMapping, Names, listed
from coterie.protocol.options import LARGEST, AtLeastOne, Count, NotNegative, Positive, TaskKind, check_bounds
from coterie.protocol.party import (
    Component,
    Cost,
    Handler,
    Nothing,
    Party,
    SecretStruct,
    To,
    When,
    Work,
    always,
    freeze,
    from_party,
    initial,
    initials,
    never,
    on,
    transaction,
    zeros,
)
from coterie.protocol.randomness import Derived, Randomness, Secrets, rng
from coterie.protocol.setup_info import Common, Entry, Identity, Own, Roster
from coterie.protocol.spool import Spool
from coterie.protocol.steps import (
    LATE,
    PATIENCE_S,
    REFUSED,
    UNACCEPTABLE,
    Answers,
    Fold,
    NoAnswerError,
    Step,
    Steps,
    ask,
    compute,
    for_each,
    ignored,
    post,
    spend,
    take,
    wake,
)
from coterie.protocol.system import (
    ClientModel,
    Federation,
    Mixture,
    PartyFactory,
    Sees,
    System,
    of_each,
    party_type,
    telling,
    two_others,
)
