"""What lets the two sides trust each other: certificates for the server, a key pair for each party.

No private key is ever overwritten: a lost one cannot be made again, and somebody may rely on it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fedalc.deployment.flower import require_flower
from fedalc.errors import ConfigError, FedalcError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

# The server's own processes talk to it under these names.
_OWN_NAMES = ("localhost", "127.0.0.1", "::1")
_CLOCKS_DIFFER_BY = timedelta(hours=1)


@dataclass(frozen=True)
class Certificates:
    """Where the files of a server are."""

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
                    f"{file}: is not there; make it with `fedalc deploy certificates {self.folder} --host NAME`"
                )


def make_certificates(folder: Path, hosts: Sequence[str], days: int) -> Certificates:
    """A certificate authority of one's own, and a certificate it signed for a server of these names and addresses."""
    require_flower()
    from cryptography.hazmat.primitives.asymmetric import ec

    if not hosts:
        raise ConfigError("--host: name the server as the parties will call it")
    names = [_general_name(host) for host in dict.fromkeys((*hosts, *_OWN_NAMES))]
    made = Certificates(folder)
    for file in (made.authority, made.authority_key, made.server, made.server_key):
        if file.exists():
            raise FedalcError(f"{file}: exists already, and is never overwritten; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    authority = _named(f"fedalc authority for {hosts[0]}"[:64])
    until = datetime.now(UTC) + timedelta(days=days)
    issued = [
        (made.authority, _authority_certificate(authority, authority_key, until)),
        (made.server, _server_certificate(authority, authority_key, server_key, names, until)),
    ]
    _write_private(made.authority_key, _pem(authority_key))
    _write_private(made.server_key, _pem(server_key))
    for file, certificate in issued:
        file.write_bytes(certificate.public_bytes(_encoding().PEM))
    return made


def make_node_key(file: Path) -> Path:
    """A party's key pair, in the form Flower reads. The public half is for the server: FILE.pub."""
    require_flower()
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import NoEncryption, PrivateFormat, PublicFormat

    public = file.with_name(f"{file.name}.pub")
    if public.exists():
        raise FedalcError(f"{public}: exists already, and is never overwritten; name another file")
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(file, key.private_bytes(_encoding().PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(_encoding().OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def check_node_key(file: Path) -> None:
    """A private key that Flower will take, and that nobody else can read."""
    require_flower()
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        mode = file.stat().st_mode & 0o777
        content = file.read_bytes()
    except OSError as error:
        raise FedalcError(
            f"{file}: this party's node key cannot be read: {error.strerror}; make one with `fedalc deploy node-key`"
        ) from None
    if mode & 0o077:
        raise FedalcError(f"{file}: others than its owner have access to it (mode {mode:03o}); run `chmod 600 {file}`")
    try:
        key = load_ssh_private_key(content, None)
    except (ValueError, TypeError):  # also when it wants a password
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedalcError(f"{file}: not a party's private key; make one with `fedalc deploy node-key FILE`")


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
    authority: x509.Name,
    authority_key: EllipticCurvePrivateKey,
    key: EllipticCurvePrivateKey,
    names: Sequence[x509.GeneralName],
    until: datetime,
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA384

    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _builder(_named("fedalc server"), authority, key, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(signer, critical=False)
        .sign(authority_key, SHA384())
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


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import NoEncryption, PrivateFormat

    return key.private_bytes(_encoding().PEM, PrivateFormat.PKCS8, NoEncryption())


def _encoding():  # type: ignore[no-untyped-def]  # the package is imported only where it is used
    from cryptography.hazmat.primitives.serialization import Encoding

    return Encoding


def _write_private(file: Path, content: bytes) -> None:
    """Nobody else's from its first moment, whole or not there at all."""
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise FedalcError(f"{file}: exists already, and a key is never overwritten; name another file") from None
    except OSError as error:
        raise FedalcError(f"{file}: the key cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
    except BaseException:
        with contextlib.suppress(OSError):
            file.unlink()
        raise
