"""Certificates and keys: who they are for, who may read them, and that none is lost."""

from __future__ import annotations

import ipaddress
import os
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedalc.deployment.credentials import Certificates, check_node_key, make_certificates, make_node_key
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
        make_node_key(tmp_path / "node")
    finally:
        os.umask(before)
    assert [mode(file) for file in (made.authority_key, made.server_key, tmp_path / "node")] == [0o600] * 3


@pytest.mark.parametrize("file", ["ca.crt", "ca.key", "server.crt", "server.key"])
def test_no_certificate_is_overwritten(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("mine")
    with pytest.raises(FedalcError, match="never overwritten"):
        make_certificates(tmp_path, ["localhost"], days=1)
    assert [path.name for path in tmp_path.iterdir()] == [file]
    assert (tmp_path / file).read_text() == "mine"


@pytest.mark.parametrize("host", ["", "https://fl.example.org", "fl.example.org:9443", "two words", "a..b"])
def test_what_is_no_name_of_a_host(tmp_path: Path, host: str) -> None:
    with pytest.raises(FedalcError, match="--host"):
        make_certificates(tmp_path / "certificates", [host], days=1)
    assert not (tmp_path / "certificates").exists()


def test_a_missing_certificate_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(FedalcError, match=r"ca\.crt: is not there; make it with `fedalc deploy certificates"):
        Certificates(tmp_path).check()


def test_a_node_key_is_a_pair_that_belongs_together(tmp_path: Path) -> None:
    file = tmp_path / "a key"
    public = make_node_key(file)
    check_node_key(file)
    private = load_ssh_private_key(file.read_bytes(), None)
    assert private.public_key() == load_ssh_public_key(public.read_bytes())
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")


@pytest.mark.parametrize("name", ["node", "node.pub"])
def test_no_node_key_is_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(FedalcError, match="never overwritten"):
        make_node_key(tmp_path / "node")
    assert (tmp_path / name).read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


def test_node_keys_that_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "node"
    with pytest.raises(FedalcError, match="cannot be read"):
        check_node_key(file)
    make_node_key(file)
    file.chmod(0o640)
    with pytest.raises(FedalcError, match="chmod 600"):
        check_node_key(file)
    public = tmp_path / "node.pub"
    public.chmod(0o600)
    with pytest.raises(FedalcError, match="not a party's private key") as error:
        check_node_key(public)
    assert public.read_text().split()[1] not in str(error.value)
