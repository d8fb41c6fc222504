"""Parties with keys, for tests of the engine over Flower."""

from __future__ import annotations

from deployments import EMULATED

from coterie.crypto.roster import entry, new_identity, sign_roster
from coterie.crypto.signing import SigningKey
from coterie.protocol.told import Identity
from coterie.runs.keyring import PartyKeys

PARTIES = ("hub", "a", "b")
IDENTITIES: dict[str, Identity] = {name: new_identity(name, EMULATED) for name in PARTIES}
OPERATOR = SigningKey.load(new_identity("operator", EMULATED).signing)
ROSTER = sign_roster(tuple(entry(n, "any", one) for n, one in IDENTITIES.items()), OPERATOR, b"s" * 16)
KEYS = PartyKeys(ROSTER, IDENTITIES)
NONCE = b"n" * 16
ID = b"i" * 16
