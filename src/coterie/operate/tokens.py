"""What passes between the operator and a party that joins.

    operator --- invitation (secret: whoever has it may ask) ---> party, which makes its keys
    operator <-- request (no secret: public keys, and proofs) --- party
    operator --- certificate (no secret: TLS, plan, roster) ----> party

All that follows is checked against the operator's public key in the invitation. A request proves with a MAC that its
sender has the invitation, and its secret keys by a signature (Ed25519), a Diffie-Hellman proof (X25519; RFC 6955,
section 4) and a PKCS #10 request (TLS, P-256).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from coterie.crypto import certificates, signing
from coterie.crypto.signing import SigningKey, VerifyKey
from coterie.data.form import SampleForm
from coterie.deploy.names import check_name, safe
from coterie.deploy.plan import OperatorSigned, decode
from coterie.protocol.errors import DecodeError, PeerError, UserError
from coterie.protocol.setup_info import Entry, Identity
from coterie.record.files import opened, reading

INVITATION, REQUEST, CERTIFICATE = "coterie-invitation-1", "coterie-request-1", "coterie-certificate-1"
MAX_TEXT = 1 << 25
ID_BYTES = 16

Key = Annotated[bytes, msgspec.Meta(min_length=signing.KEY_BYTES, max_length=signing.KEY_BYTES)]
Mac = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
Id = Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
Short = Annotated[str, msgspec.Meta(max_length=300)]

T = TypeVar("T")


def read_text(path: Path) -> str:
    """Unchecked. Raises UserError."""
    with reading(path, "name the file that you were sent"), opened(path) as file:
        data = file.read(MAX_TEXT + 1)
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not an invitation, request or certificate of coterie") from None


class Invitation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """operator: its public key.  possession: a public key (X25519) to prove against.  data: this role brings samples.
    scores: that parties may report.  max_epochs: local ones in a round.  again: how often the party will have joined.
    not_after_s: Unix time.
    """

    id: Id
    name: Short
    role: Short
    server: Short
    operator: Key
    possession: Key
    session: Id
    facts: SampleForm
    data: bool
    scores: tuple[Short, ...]
    max_epochs: int
    not_after_s: float
    again: int = 1


class Token(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """SECRET: an invitation as handed over. secret: the operator's MAC of the body."""

    body: bytes
    secret: Mac
    signature: Signature

    def __repr__(self) -> str:
        return "<Token>"


class KeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys for the roster.  tls: a PKCS #10 request (PEM)."""

    invitation: Id
    name: Short
    role: Short
    verify_key: Key
    sealing_key: Key
    tls: Annotated[bytes, msgspec.Meta(max_length=1 << 13)]

    @property
    def entry(self) -> Entry:
        return Entry(self.name, self.role, self.verify_key, self.sealing_key)


class Request(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request as it travels. invited, possession: MACs of the body."""

    body: bytes
    invited: Mac
    possession: Mac
    signature: Signature


class Certificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """tls, authority: X.509 (PEM).  plan: of ``plan.sign``."""

    name: Short
    tls: bytes
    authority: bytes
    plan: bytes


# -- invitations ----------------------------------------------------------------------------------------------------


def issue(invitation: Invitation, operator: SigningKey, secret: bytes) -> str:
    """SECRET. secret: the operator's key for MACs."""
    body = msgspec.msgpack.encode(invitation)
    shared = token_secret(secret, body)
    return armoured(INVITATION, Token(body, shared, operator.sign("invitation", body, shared)))


def token_secret(secret: bytes, body: bytes) -> bytes:
    """SECRET: of the invitation's holder and the operator."""
    return _mac(secret, "invitation", body)


def read_invitation(text: str, now_s: float) -> tuple[Invitation, Token]:
    """Raises UserError for one that is none, was changed, or has expired."""
    try:
        token = unarmoured(INVITATION, text, Token)
        invitation = decoded(token.body, Invitation)
        VerifyKey.load(invitation.operator).verify(token.signature, "invitation", token.body, token.secret)
        check_name(invitation.name)
    except PeerError as error:
        raise UserError(f"this is no invitation, or a damaged one: {error}; ask the operator for another") from None
    if now_s > invitation.not_after_s:
        raise UserError(
            f"the invitation of {invitation.name} has expired, by this machine's clock: ask the operator for another"
        )
    return invitation, token


# -- requests -------------------------------------------------------------------------------------------------------


def ask(invitation: Invitation, token: Token, identity: Identity, tls_key: bytes) -> str:
    """A party's request, with proof of its keys."""
    own = SigningKey.load(identity.signing)
    opening = signing.OpeningKey.load(identity.opening)
    tls = certificates.request(tls_key, safe(invitation.name))
    keys = KeyRequest(
        invitation.id, invitation.name, invitation.role, own.public.to_bytes(), opening.public.to_bytes(), tls
    )
    body = msgspec.msgpack.encode(keys)
    shared = _agreed(identity.opening, invitation.possession)
    request = Request(body, _mac(token.secret, "request", body), _possession(shared, body), own.sign("request", body))
    return armoured(REQUEST, request)


def read_request(text: str) -> tuple[KeyRequest, Request]:
    """Nothing of it is proved yet. Raises PeerError."""
    request = unarmoured(REQUEST, text, Request)
    return decoded(request.body, KeyRequest), request


def check_request(
    keys: KeyRequest, request: Request, invitation: Invitation, secret: bytes, possession: bytes
) -> bytes:
    """The TLS key (DER) of a request whose sender has this invitation and holds all three keys. Raises PeerError.

    secret: ``token_secret`` of the invitation.  possession: SECRET, the operator's X25519 key.
    """
    if not hmac.compare_digest(_mac(secret, "request", request.body), request.invited):
        raise PeerError("it was not made with the invitation that it names")
    if (keys.invitation, keys.name, keys.role) != (invitation.id, invitation.name, invitation.role):
        raise PeerError(
            f"{keys.name!r:.60} asks to join as {keys.role!r:.60}, and the invitation is for {invitation.name} as "
            f"{invitation.role}"
        )
    VerifyKey.load(keys.verify_key).verify(request.signature, "request", request.body)
    if not hmac.compare_digest(_possession(_agreed(possession, keys.sealing_key), request.body), request.possession):
        raise PeerError("its sender does not hold the key for opening that it names")
    return certificates.requested(keys.tls, safe(keys.name))


def _agreed(secret: bytes, public: bytes) -> bytes:
    try:
        return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise DecodeError(f"{public.hex()[:8]} is no usable X25519 key") from None


def _possession(shared: bytes, body: bytes) -> bytes:
    return _mac(_mac(shared, "possession", b""), "request", body)


# -- certificates ---------------------------------------------------------------------------------------------------


def approved(certificate: Certificate, operator: SigningKey) -> str:
    return armoured(CERTIFICATE, OperatorSigned.of(certificate, "certificate", operator))


def read_certificate(text: str, operator: bytes) -> Certificate:
    """Raises PeerError unless this operator has signed it."""
    return unarmoured(CERTIFICATE, text, OperatorSigned).read(
        Certificate, "certificate", operator, "are no certificate"
    )


# -- text -----------------------------------------------------------------------------------------------------------


def armoured(kind: str, value: msgspec.Struct) -> str:
    """One line: the kind, and the value in base64."""
    return f"{kind}:{base64.urlsafe_b64encode(msgspec.msgpack.encode(value)).decode()}\n"


def unarmoured(kind: str, text: str, of: type[T]) -> T:
    head, _, rest = text.strip().partition(":")
    if head != kind or len(text) > MAX_TEXT:
        raise DecodeError(f"a text that begins with {head[:40]!r} is no {kind}")
    try:
        data = base64.b64decode(rest, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise DecodeError(f"the {kind} is cut or damaged") from None
    return decoded(data, of)


def decoded(data: bytes, of: type[T]) -> T:
    return decode(data, of, f"are no {of.__name__.lower()}")


def _mac(key: bytes, purpose: str, body: bytes) -> bytes:
    return hmac.digest(key, f"coterie/{purpose}/1\0".encode() + hashlib.sha256(body).digest(), "sha256")
