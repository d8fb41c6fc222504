"""Keys that nobody holds: parties make them together, open sums with them, and hand them over when they change.

    hub --Begin / Committed--> holder            each draws a contribution, and commits to it
    hub --Reveal / Revealed--> holder            all are shown, once all are committed
    hub --Exchange / Endorsed--> holder          each joins them, signs the joint key, and sends the others
              holder --Piece (sealed)--> holder  halves of common seeds and, for t-of-n, pieces of its contribution
    hub <--Complete-- holder
    hub --JointKey / Known--> everybody          the public key, which all its holders have signed

    hub --Announce / Present--> holder           who is there for these sums? The set that opens is fixed by that
    hub --Decrypt / Partials--> holder           one partial decryption of each ciphertext

Holders may have any roles. Nobody but all holders together (n-of-n), or t of them (t-of-n, by Shamir), opens anything.
The hub relays, adds up and learns the opened values. Every sum is prepared by it (fresh randomness, noise for a stated
number of openings, a smaller modulus: ``crypto.threshold``), so a sum that is opened again is another ciphertext.

**A holder that vanishes or lies.** While a key is made, it is left out, and the others begin again. While a sum is
opened, its place is taken by another if there are more than t. That a share is false shows only in the sum, which opens
to nonsense (the bounds on its values are broken). Then the sum is opened again without each holder of the set in turn.
With n-of-n this cannot be, and the sum stays closed. A share that is false by less than the bounds changes the values
unnoticed.

**When holders change.** ``make_keys`` makes a new key, with which nothing old can be opened. ``hand_over`` keeps the
key: the new holders get pieces of the old shares (t of them, or all), and old shares no longer fit. Holders erase old
shares when they hear of the new key. That is an assumption: t former holders (or all of them) that kept their shares
could open everything under that key.

A hub that lies about what is a sum is refused where vectors come under joint pads (``threshold_pads``,
``Joint(pads=True)``): holders compute c_1 of sums themselves. Any other key assumes a hub that follows the protocol.
There holders refuse what they can see is wrong: sums that were not announced, with too few senders by what they state,
opened too often.
"""

from __future__ import annotations

from coterie.protocols.threshold_dealt import JointGrant
from coterie.protocols.threshold_holder import JointParty, group_of, joint_of, terms_of
from coterie.protocols.threshold_hub import JointHub, Made, Opened
from coterie.protocols.threshold_making import hand_over, make_keys
from coterie.protocols.threshold_opening import open_sum, open_sums
from coterie.protocols.threshold_parts import HOLDER_MESSAGES, HUB_MESSAGES, Joint

__all__ = [
    "HOLDER_MESSAGES",
    "HUB_MESSAGES",
    "Joint",
    "JointGrant",
    "JointHub",
    "JointParty",
    "Made",
    "Opened",
    "group_of",
    "hand_over",
    "joint_of",
    "make_keys",
    "open_sum",
    "open_sums",
    "terms_of",
]
