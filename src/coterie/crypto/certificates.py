"""TLS certificates (X.509, P-256): an authority's own, and those that it signs. A subject has only a common name."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.protocol.errors import DecodeError, PeerError

DAY_S = 86400.0
SKEW_S = 3600.0
"""Certificates are valid from this long before they are made, for slow clocks."""
SOON_S = 30 * DAY_S
"""So long before its end a certificate is warned of, and renewed by `deploy renew`."""
AUTHORITY_NAME = "coterie authority"
_MAX_PEM = 1 << 14


def new_key() -> bytes:
    """SECRET: a fresh P-256 key as PEM (PKCS #8, not encrypted); at rest: a file of mode 0600."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def new_authority(key: bytes, now_s: float, days: float) -> bytes:
    """The self-signed certificate (PEM) of an authority of leaf certificates. now_s: Unix time."""
    secret, name = _secret(key), _name(AUTHORITY_NAME)
    builder = (
        _dated(now_s, days)
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(secret.public_key()), critical=False)
    )
    return _pem(builder.sign(secret, hashes.SHA256()))


def request(key: bytes, name: str) -> bytes:
    """A party's request for a certificate (PKCS #10, PEM)."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(name))
    return builder.sign(_secret(key), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def requested(data: bytes, name: str) -> bytes:
    """The public key (DER) that this party has proved to hold. Raises PeerError, or DecodeError for no request."""
    try:
        found = x509.load_pem_x509_csr(data[:_MAX_PEM])
        public, subject = found.public_key(), found.subject
        valid = found.is_signature_valid
    except Exception as error:  # the parser raises several types
        raise DecodeError(f"it is no request for a certificate: {error}") from None
    if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP256R1):
        raise PeerError("the request for a certificate has no P-256 key")
    if not valid:
        raise PeerError("the request for a certificate is not signed with its own key")
    if subject != _name(name):
        raise PeerError(f"the request for a certificate names {subject.rfc4514_string()[:60]!r} and not {name}")
    return public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def sign(
    authority: bytes,
    authority_key: bytes,
    name: str,
    public: bytes,
    now_s: float,
    days: float,
    hosts: Sequence[str] = (),
) -> bytes:
    """A certificate (PEM), which ends at the latest with the authority's.

    authority: its certificate.  name: the common name.  public: DER, from ``requested``.  hosts: a server's DNS names
    or addresses; it may also be a client of other servers.
    """
    builder = _leaf(authority, public, now_s, days).subject_name(_name(name))
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(one) for one in hosts]), critical=False)
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=True)
    return _pem(builder.sign(_secret(authority_key), hashes.SHA256()))


def public_of(key: bytes) -> bytes:
    public = _secret(key).public_key()
    return public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def scalar(key: bytes) -> bytes:
    """SECRET: the private number of a key (PEM), 32 bytes. Raises ValueError for what is no such key."""
    return _secret(key).private_numbers().private_value.to_bytes(32, "big")


def certified(certificate: bytes) -> bytes:
    """The public key (DER) in an unchecked certificate (PEM). Raises DecodeError."""
    public = _load(certificate).public_key()
    return public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def hosts(certificate: bytes) -> tuple[str, ...]:
    """The server's DNS names and addresses in a certificate (PEM); () if it has none. Raises DecodeError."""
    extensions = _load(certificate).extensions
    found = [one.value for one in extensions if isinstance(one.value, x509.SubjectAlternativeName)]
    return tuple(str(host.value) for one in found for host in one)


def check(certificate: bytes, authority: bytes, name: str, public: bytes, now_s: float) -> None:
    """Raises PeerError unless this is a valid certificate of this authority, party and key."""
    found, issuer = _load(certificate), _load(authority)
    issuer_key = issuer.public_key()
    assert isinstance(issuer_key, ec.EllipticCurvePublicKey)
    try:
        found.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError):
        raise PeerError("the certificate is not signed by this federation's authority") from None
    if found.subject != _name(name):
        raise PeerError(f"the certificate is of {found.subject.rfc4514_string()[:60]!r} and not of {name}")
    if certified(certificate) != public:
        raise PeerError("the certificate is of another key")
    begins, ends = validity(certificate)
    if not begins <= now_s <= ends:
        raise PeerError(
            f"the certificate is valid from {_day(begins)} to {_day(ends)}, and by this machine's clock it is "
            f"{_day(now_s)}: set it, or if it is right ask the operator for a new one (coterie deploy renew), and to "
            "look at her clock (coterie deploy doctor DIR --clock)"
        )


def validity(certificate: bytes) -> tuple[float, float]:
    """In Unix time, from when and to when. Raises DecodeError."""
    found = _load(certificate)
    return found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()


def _load(certificate: bytes) -> x509.Certificate:
    try:
        found = x509.load_pem_x509_certificate(certificate[:_MAX_PEM])
        public = found.public_key()
    except Exception as error:  # the parser raises several types
        raise DecodeError(f"it is no certificate: {error}") from None
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise DecodeError("the certificate has no P-256 key")
    return found


def _leaf(authority: bytes, public: bytes, now_s: float, days: float) -> x509.CertificateBuilder:
    issuer, key = _load(authority), serialization.load_der_public_key(public)
    days = min(days, (validity(authority)[1] - now_s) / DAY_S)
    issuer_key = issuer.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert isinstance(issuer_key, ec.EllipticCurvePublicKey)
    return (
        _dated(now_s, days)
        .issuer_name(issuer.subject)
        .public_key(key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _dated(now_s: float, days: float) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now_s - SKEW_S))
        .not_valid_after(_time(now_s + days * DAY_S))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _secret(key: bytes) -> ec.EllipticCurvePrivateKey:
    found = serialization.load_pem_private_key(key, password=None)
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ValueError("no key of an elliptic curve")
    return found


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _time(at_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC)


def _day(at_s: float) -> str:
    return _time(at_s).strftime("%Y-%m-%d %H:%M UTC")
