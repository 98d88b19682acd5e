"""Certificates: their hosts, file permissions, lifetime and renewal."""

from __future__ import annotations

import ipaddress
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from fedalc.deployment.certificates import Certificates, make_certificates
from fedalc.errors import FedalcError


def mode(file: Path) -> int:
    return file.stat().st_mode & 0o777


def read(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def test_the_server_is_known_by_every_name(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "new" / "folder", ["fl.example.org", "192.0.2.7"], days=30)
    server, authority = read(made.server), read(made.authority)
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"fl.example.org", "localhost"}
    addresses = {ipaddress.ip_address(text) for text in ("192.0.2.7", "127.0.0.1", "::1")}
    assert set(names.get_values_for_type(x509.IPAddress)) == addresses
    assert 29 <= (server.not_valid_after_utc - server.not_valid_before_utc).days <= 31
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server, made.server_key)  # raises unless the two belong together
    ssl.create_default_context(cafile=str(made.authority))


def test_private_files_are_the_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = make_certificates(tmp_path, ["localhost"], days=1)
    finally:
        os.umask(before)
    assert [mode(file) for file in (made.authority_key, made.server_key)] == [0o600] * 2


@pytest.mark.parametrize("file", ["ca.crt", "ca.key", "server.crt", "server.key"])
def test_no_certificate_is_overwritten(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("mine")
    with pytest.raises(FedalcError, match="never overwritten"):
        make_certificates(tmp_path, ["localhost"], days=1)
    assert [path.name for path in tmp_path.iterdir()] == [file]
    assert (tmp_path / file).read_text() == "mine"


def test_the_authority_outlives_the_server_certificate(tmp_path: Path) -> None:
    """It also signs the next certificate: clients with the first ca.crt trust that one too."""
    made = make_certificates(tmp_path, ["fl.example.org"], days=30)
    authority, first = made.authority.read_bytes(), (made.server.read_bytes(), made.server_key.read_bytes())
    assert 3650 <= (read(made.authority).not_valid_after_utc - datetime.now(UTC)).days <= 3653
    make_certificates(tmp_path, ["fl.example.com"], days=60)
    assert made.authority.read_bytes() == authority
    second = read(made.server)
    second.verify_directly_issued_by(read(made.authority))
    assert 59 <= (second.not_valid_after_utc - datetime.now(UTC)).days <= 60
    names = second.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "fl.example.com" in names.get_values_for_type(x509.DNSName)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(made.server, made.server_key)
    assert ((tmp_path / "server.crt.old").read_bytes(), (tmp_path / "server.key.old").read_bytes()) == first
    assert mode(tmp_path / "server.key.old") == mode(made.server_key) == 0o600


def test_no_server_certificate_outlives_its_authority(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, ["localhost"], days=30)
    make_certificates(tmp_path, ["localhost"], days=5000)
    assert read(made.server).not_valid_after_utc == read(made.authority).not_valid_after_utc


def test_an_authority_that_cannot_sign_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (make_certificates(tmp_path / name, ["localhost"], days=1) for name in ("one", "other"))
    one.authority_key.write_bytes(other.authority_key.read_bytes())
    other.authority.write_text("mine")
    before = one.server.read_bytes()
    for made in (one, other):
        with pytest.raises(FedalcError, match="not an authority made by this command"):
            make_certificates(made.folder, ["localhost"], days=1)
    assert one.server.read_bytes() == before and not (one.folder / "server.crt.old").exists()
    monkeypatch.setattr("fedalc.deployment.certificates._AUTHORITY_LIVES", timedelta(seconds=-1))
    monkeypatch.setattr("fedalc.deployment.certificates.max", min, raising=False)
    with pytest.raises(FedalcError, match="expired on"):
        for _ in range(2):
            make_certificates(tmp_path / "old", ["localhost"], days=1)


@pytest.mark.parametrize("host", ["", "https://fl.example.org", "fl.example.org:9443", "two words", "a..b"])
def test_what_is_no_name_of_a_host(tmp_path: Path, host: str) -> None:
    with pytest.raises(FedalcError, match="--host"):
        make_certificates(tmp_path / "certificates", [host], days=1)
    assert not (tmp_path / "certificates").exists()


def test_a_missing_certificate_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(FedalcError, match=r"ca\.crt: not found; create it with `fedalc deploy certificates"):
        Certificates(tmp_path).check()
