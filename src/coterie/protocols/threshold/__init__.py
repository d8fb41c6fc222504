"""Joint keys, which no single party holds (docs/threshold.md): a party's parts, and what a hub and senders call."""

from coterie.protocols.threshold.halves import SignedSum, taken, vouched
from coterie.protocols.threshold.holder import KeyMaking
from coterie.protocols.threshold.keys import HubKey, Joint, JointGrant, JointKeys
from coterie.protocols.threshold.making import hand_over, make_keys
from coterie.protocols.threshold.opening import KeyOpening, OpenedSum, open_sums
from coterie.protocols.threshold.pads import JointPads, complete_pads, loaded, open_padded, open_weighted, padding
