"""A party's key pair: readable by its owner only, and never overwritten."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedalc.deployment.node_keys import check_node_key, check_public_key, make_node_key
from fedalc.errors import FedalcError


def test_a_node_key_is_the_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_node_key(tmp_path / "node")
    finally:
        os.umask(before)
    assert (tmp_path / "node").stat().st_mode & 0o777 == 0o600


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
    with pytest.raises(FedalcError, match="cannot read"):
        check_node_key(file)
    make_node_key(file)
    file.chmod(0o640)
    with pytest.raises(FedalcError, match="chmod 600"):
        check_node_key(file)
    other = tmp_path / "other"
    other.write_text("a secret of another kind")
    other.chmod(0o600)
    with pytest.raises(FedalcError, match="not a party's private key") as error:
        check_node_key(other)
    assert "another kind" not in str(error.value)


def test_the_halves_are_told_apart(tmp_path: Path) -> None:
    public = make_node_key(tmp_path / "node")
    check_public_key(public)
    with pytest.raises(FedalcError, match="must not leave its party"):
        check_public_key(tmp_path / "node")
    with pytest.raises(FedalcError, match="this is the public key"):
        check_node_key(public)
    (tmp_path / "else").write_text("anything")
    with pytest.raises(FedalcError, match="not a party's public key"):
        check_public_key(tmp_path / "else")
    with pytest.raises(FedalcError, match="cannot read"):
        check_public_key(tmp_path / "none")
