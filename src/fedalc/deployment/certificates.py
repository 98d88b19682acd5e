"""Make the server's certificate and the certificate authority that signs it. Parties verify the server with ca.crt.

The authority is valid for ten years and signs later server certificates too, so parties can keep their ca.crt.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fedalc.core.atomic_files import make_folder, write_bytes
from fedalc.deployment.flower_programs import require_flower
from fedalc.deployment.node_keys import write_private
from fedalc.errors import ConfigError, FedalcError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

# The server's own processes connect to it under these names.
_OWN_NAMES = ("localhost", "127.0.0.1", "::1")
_AUTHORITY_LIVES = timedelta(days=3653)
_CLOCKS_DIFFER_BY = timedelta(hours=1)


@dataclass(frozen=True)
class Certificates:
    """The paths of a server's certificate files."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def authority_key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        return self.folder / "server.crt"

    @property
    def server_key(self) -> Path:
        return self.folder / "server.key"

    def check(self) -> None:
        for file in (self.authority, self.server, self.server_key):
            if not file.is_file():
                raise FedalcError(
                    f"{file}: not found; create it with `fedalc deploy certificates {self.folder} --host NAME`"
                )


@dataclass(frozen=True)
class _Authority:
    certificate: x509.Certificate
    key: EllipticCurvePrivateKey


def make_certificates(folder: Path, hosts: Sequence[str], days: int) -> Certificates:
    """Make a certificate for a server with these names and addresses, and an authority if the folder has none."""
    require_flower()
    if not hosts:
        raise ConfigError("--host: give the name or address that parties use to reach the server")
    names = [_general_name(host) for host in dict.fromkeys((*hosts, *_OWN_NAMES))]
    files = Certificates(folder)
    until = datetime.now(UTC) + timedelta(days=days)
    known = files.authority.exists() and files.authority_key.exists()
    if not known:
        _check_empty(files)
        make_folder(folder)
    authority = _read_authority(files) if known else _new_authority(files, hosts[0], until)
    key = _new_key()
    certificate = _server_certificate(authority, key, names, min(until, authority.certificate.not_valid_after_utc))
    for file in (files.server, files.server_key):
        with contextlib.suppress(FileNotFoundError):
            file.replace(file.with_name(f"{file.name}.old"))
    write_private(files.server_key, _pem(key))
    _write_certificate(files.server, certificate)
    return files


def _check_empty(files: Certificates) -> None:
    for file in (files.authority, files.authority_key, files.server, files.server_key):
        if file.exists():
            raise FedalcError(
                f"{file}: already exists, and is never overwritten; to renew the server certificate, the folder needs "
                f"both {files.authority.name} and {files.authority_key.name}; otherwise choose another folder"
            )


def _new_authority(files: Certificates, host: str, until: datetime) -> _Authority:
    key = _new_key()
    until = max(until, datetime.now(UTC) + _AUTHORITY_LIVES)
    certificate = _authority_certificate(_named(f"fedalc authority for {host}"[:64]), key, until)
    write_private(files.authority_key, _pem(key))
    _write_certificate(files.authority, certificate)
    return _Authority(certificate, key)


def _read_authority(files: Certificates) -> _Authority:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    public_key = None
    try:
        certificate = x509.load_pem_x509_certificate(files.authority.read_bytes())
        key = load_pem_private_key(files.authority_key.read_bytes(), None)
        public_key = certificate.public_key()
    except OSError as error:
        raise FedalcError(f"{error.filename}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion):  # also if the key needs a password
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != public_key:
        raise FedalcError(
            f"{files.authority}, {files.authority_key}: not an authority made by this command; choose another folder "
            "for a new one"
        )
    if certificate.not_valid_after_utc <= datetime.now(UTC):
        raise FedalcError(
            f"{files.authority}: expired on {certificate.not_valid_after_utc:%Y-%m-%d}; make new certificates in "
            "another folder, and give the new ca.crt to every party"
        )
    return _Authority(certificate, key)


def _authority_certificate(name: x509.Name, key: EllipticCurvePrivateKey, until: datetime) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA384

    signing_only = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        _builder(name, name, key, until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signing_only, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA384())
    )


def _server_certificate(
    authority: _Authority, key: EllipticCurvePrivateKey, names: Sequence[x509.GeneralName], until: datetime
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA384

    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    return (
        _builder(_named("fedalc server"), authority.certificate.subject, key, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(signer, critical=False)
        .sign(authority.key, SHA384())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, until: datetime
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _CLOCKS_DIFFER_BY)
        .not_valid_after(until)
    )


def _named(text: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        if not host or set(host) & set(" :/@"):
            raise ValueError
        return x509.DNSName(host.encode("idna").decode("ascii"))
    except ValueError:
        raise ConfigError(f"--host: {host!r} is neither a name nor an address (no port, no https://)") from None


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_certificate(file: Path, certificate: x509.Certificate) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding

    write_bytes(file, certificate.public_bytes(Encoding.PEM))
