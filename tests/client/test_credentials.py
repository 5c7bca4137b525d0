"""Tokens never cross a network in the clear by accident."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from firsttoken.client import Client, Tls
from firsttoken.client.channels import stays_on_this_machine
from firsttoken.commands import token as token_command
from firsttoken.errors import ArgumentError
from firsttoken.request_options import add_request_options, credentials_of
from server.access.directory import hash_token

LOCAL = (
    "localhost:1",
    "127.0.0.1:1",
    "127.1.2.3:1",
    "[::1]:1",
    "unix:/s",
    "unix-abstract:s",
    "dns:///localhost:1",
    "ipv4:127.0.0.1:1",
)
REMOTE = (
    "example.com:1",
    "10.0.0.1:1",
    "[2001:db8::1]:1",
    "dns:///example.com:1",
    "127.0.0.1.example.com:1",
    "localhost.example.com:1",
)


@pytest.mark.parametrize("address", LOCAL)
def test_here(address: str) -> None:
    assert stays_on_this_machine(address)
    Client(address, token="t").close()


@pytest.mark.parametrize("address", REMOTE)
def test_elsewhere_a_token_needs_tls(address: str) -> None:
    assert not stays_on_this_machine(address)
    with pytest.raises(ArgumentError, match="unencrypted"):
        Client(address, token="t")
    Client(address, token="t", tls=Tls()).close()
    Client(address, token="t", token_in_clear=True).close()
    Client(address).close()


def test_half_an_identity_is_refused() -> None:
    with pytest.raises(ArgumentError, match="go together"):
        Tls(certificate_chain=b"x")


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_request_options(parser)
    return parser.parse_args(arguments)


def test_the_command_takes_tokens_from_files_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, pem = tmp_path / "token", tmp_path / "ca.pem"
    file.write_text("from-file\n")
    pem.write_bytes(b"PEM")
    monkeypatch.delenv("FIRSTTOKEN_TOKEN", raising=False)
    assert credentials_of(parse()) == (None, None)
    monkeypatch.setenv("FIRSTTOKEN_TOKEN", "from-environment")
    assert credentials_of(parse("--tls")) == (Tls(), "from-environment")
    assert credentials_of(parse("--ca", str(pem), "--token-file", str(file))) == (Tls(b"PEM"), "from-file")


def test_a_new_token_and_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    token_command.add_arguments(parser)
    assert token_command.run(parser.parse_args(["--days", "90"])) == 0
    out, err = capsys.readouterr()
    assert hash_token(out.strip()) in err
    assert out.strip() not in err
    assert "expires = " in err
