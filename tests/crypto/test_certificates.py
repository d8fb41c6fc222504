"""TLS certificates: whose they are, who signed them, and what a request may bring in."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from coterie.crypto import certificates
from coterie.protocol.errors import DecodeError, PeerError

NOW_S = 1_800_000_000.0
CA_KEY = certificates.new_key()
CA = certificates.new_authority(CA_KEY, NOW_S, 30)
KEY = certificates.new_key()
PUBLIC = certificates.public_of(KEY)
OWN = certificates.sign(CA, CA_KEY, "client-3", PUBLIC, NOW_S, 10)


def test_a_certificate_is_good_for_its_party() -> None:
    certificates.check(OWN, CA, "client-3", PUBLIC, NOW_S)
    found = x509.load_pem_x509_certificate(OWN)
    assert found.subject.rfc4514_string() == "CN=client-3"
    assert ExtendedKeyUsageOID.SERVER_AUTH not in found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    with pytest.raises(x509.ExtensionNotFound):
        found.extensions.get_extension_for_class(x509.SubjectAlternativeName)


def test_a_party_cannot_sign_certificates() -> None:
    mine = certificates.sign(OWN, KEY, "client-4", PUBLIC, NOW_S, 10)
    with pytest.raises(PeerError, match="not signed by this"):
        certificates.check(mine, CA, "client-4", PUBLIC, NOW_S)
    assert not x509.load_pem_x509_certificate(OWN).extensions.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.mark.parametrize(
    ("name", "public", "now_s", "says"),
    [
        ("client--3", PUBLIC, NOW_S, "not of client--3"),
        ("client-3", certificates.public_of(CA_KEY), NOW_S, "another key"),
        ("client-3", PUBLIC, NOW_S + 11 * certificates.DAY_S, "valid from"),
        (
            "client-3",
            PUBLIC,
            NOW_S - 2 * certificates.SKEW_S,
            "valid from .* by this machine's clock it is .*: set it, .*deploy doctor DIR --clock",
        ),
    ],
    ids=["another name", "another key", "too late", "too early"],
)
def test_a_certificate_is_good_for_nothing_else(name: str, public: bytes, now_s: float, says: str) -> None:
    with pytest.raises(PeerError, match=says):
        certificates.check(OWN, CA, name, public, now_s)


def test_another_authority_of_the_same_name() -> None:
    other = certificates.new_key()
    forged = certificates.sign(certificates.new_authority(other, NOW_S, 30), other, "client-3", PUBLIC, NOW_S, 10)
    with pytest.raises(PeerError, match="not signed by this"):
        certificates.check(forged, CA, "client-3", PUBLIC, NOW_S)


def test_the_servers_certificate_names_its_hosts() -> None:
    found = x509.load_pem_x509_certificate(
        certificates.sign(CA, CA_KEY, "engine", PUBLIC, NOW_S, 10, ["hub.example.org", "127.0.0.1"])
    )
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["hub.example.org"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert found.subject.rfc4514_string() == "CN=engine"


def test_a_request_proves_its_key() -> None:
    assert certificates.requested(certificates.request(KEY, "client-3"), "client-3") == PUBLIC
    with pytest.raises(PeerError, match="names 'CN=client-3'"):
        certificates.requested(certificates.request(KEY, "client-3"), "client-4")


def of_another_key(request: bytes) -> bytes:
    """The same request with the key of somebody else in it, under the old signature."""
    der = x509.load_pem_x509_csr(request).public_bytes(serialization.Encoding.DER)
    other = certificates.public_of(certificates.new_key())
    assert PUBLIC in der
    return x509.load_der_x509_csr(der.replace(PUBLIC, other)).public_bytes(serialization.Encoding.PEM)


def test_a_request_for_somebody_elses_key() -> None:
    with pytest.raises(PeerError, match="not signed with its own key"):
        certificates.requested(of_another_key(certificates.request(KEY, "client-3")), "client-3")


def test_a_request_with_another_kind_of_key() -> None:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "client-3")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    for key, algorithm in ((ed25519.Ed25519PrivateKey.generate(), None), (ec.generate_private_key(ec.SECP384R1()), 1)):
        signed = builder.sign(key, hashes.SHA256() if algorithm else None)  # type: ignore[arg-type]
        with pytest.raises(PeerError, match="no P-256 key"):
            certificates.requested(signed.public_bytes(serialization.Encoding.PEM), "client-3")


def test_what_a_request_asks_for_beside_its_key_is_not_granted() -> None:
    key = serialization.load_pem_private_key(KEY, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "client-3")])
    )
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("server")]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    asked = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    public = certificates.requested(asked, "client-3")
    found = x509.load_pem_x509_certificate(certificates.sign(CA, CA_KEY, "client-3", public, NOW_S, 1))
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert all(not isinstance(one.value, x509.SubjectAlternativeName) for one in found.extensions)


@given(st.binary(max_size=200) | st.integers(0, 400).map(lambda cut: OWN[:cut]))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        certificates.check(data, CA, "client-3", PUBLIC, NOW_S)
    with pytest.raises(DecodeError):
        certificates.requested(data, "client-3")


def test_validity_is_in_unix_time() -> None:
    begins, ends = certificates.validity(OWN)
    assert (begins, ends) == (NOW_S - certificates.SKEW_S, NOW_S + 10 * certificates.DAY_S)
    assert datetime.datetime.fromtimestamp(ends, datetime.UTC).year == 2027
