"""What methods use of the protocols and of what lies below them: ``coterie.method`` has these names, too."""

from coterie.aggregation.buffers import stepped, with_buffers
from coterie.aggregation.sums import Sum
from coterie.aggregation.sums import WeightedMean as Mean
from coterie.crypto.roster import check_signed, signed
from coterie.dp.ledger import Release
from coterie.protocols.averaging import (
    Averaging,
    ChangeClient,
    Gather,
    OfModel,
    Server,
    ServerOfGroups,
    ServerOfSeveral,
    Train,
    Update,
    members,
    membership,
    own_model,
    own_models,
)
from coterie.protocols.averaging import Client as AveragingClient
from coterie.protocols.averaging import ModelClient as Client
from coterie.protocols.local_training import (
    MOST_SAMPLES,
    ClusterModels,
    LocalTraining,
    Share,
    SteppedTraining,
    ask_all,
    ask_each,
    ask_round,
    asked_in,
    batch_seed,
    best_model,
    check_model,
    fit,
    insist,
    joined,
    label_counts,
    positive,
    refuse_unused,
    sample_size,
    told,
    trained_for,
)
from coterie.protocols.local_training import training_cost as training
from coterie.protocols.own_parts import PartClient, PartServer, check_parts, whole_models
from coterie.training.solvers import Admm, Proximal, Scaffold, Sgd, augmented_change, largest
