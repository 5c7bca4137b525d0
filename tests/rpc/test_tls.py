"""TLS and mutual TLS, with certificates that change while streams run."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
from server.access.directory import hash_token
from server.config_ports import TlsConfig
from server.rpc.tls import ServerCertificates, TlsError
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import Running, collect, request, running


class Authority:
    """Issues the server's certificate into files, and clients' ones."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.certificate, self.key, self.client_ca = folder / "server.pem", folder / "server.key", folder / "ca.pem"
        self.client_ca.write_bytes(self.ca.cert_pem.bytes())
        self.issue()

    def issue(self) -> None:
        issued = self.ca.issue_cert("localhost")
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())

    def flags(self, *, mutual: bool = False) -> dict[str, Any]:
        flags: dict[str, Any] = {"tls__certificate": self.certificate, "tls__key": self.key}
        return flags | ({"tls__client_ca": self.client_ca} if mutual else {}) | {"access__reload_period": 0.02}


def channel(server: Running, root: trustme.CA, client: trustme.LeafCert | None = None) -> Any:
    key = None if client is None else client.private_key_pem.bytes()
    chain = None if client is None else b"".join(blob.bytes() for blob in client.cert_chain_pems)
    credentials = grpc.ssl_channel_credentials(root.cert_pem.bytes(), key, chain)
    options = [("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.secure_channel(server.target, credentials, options=options)


async def speak(server: Running, root: trustme.CA, client: trustme.LeafCert | None = None) -> grpc.StatusCode:
    """The status of a short call over a new connection."""
    async with channel(server, root, client) as secure:
        call = GenerationStub(secure).Generate(request(max_tokens=2), timeout=120)
        try:
            await collect(call)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return await call.code()


async def test_only_who_checks_out_gets_a_connection(tmp_path: Path) -> None:
    """The warm-up went through, too, or the server would not be ready."""
    authority, stranger = Authority(tmp_path), trustme.CA()
    async with running(**authority.flags()) as server:
        assert await speak(server, authority.ca) is grpc.StatusCode.OK
        assert await speak(server, stranger) is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(server.generation.Generate(request()))  # in the clear
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_client_certificates_are_tenants(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), trustme.CA()
    access = tmp_path / "access.toml"
    access.write_text('[tenants.acme]\ncertificates = ["client.acme.example"]\n')
    flags = authority.flags(mutual=True) | {"access__file": access, "lifecycle__warm_up": False}
    async with running(**flags) as server:
        acme, unknown = (authority.ca.issue_cert(name) for name in ("client.acme.example", "evil.example"))
        expired = authority.ca.issue_cert("client.acme.example", not_after=dt.datetime(2021, 1, 1, tzinfo=dt.UTC))
        assert await speak(server, authority.ca, acme) is grpc.StatusCode.OK
        assert [submitted.tenant for submitted in server.engine.submitted] == ["acme"]
        assert await speak(server, authority.ca, unknown) is grpc.StatusCode.UNAUTHENTICATED
        forged = stranger.issue_cert("client.acme.example")
        for nobody in (None, forged, expired):
            assert await speak(server, authority.ca, nobody) is grpc.StatusCode.UNAVAILABLE
        assert len(server.engine.submitted) == 1


async def test_rotation_under_load_drops_nothing_case_H11(tmp_path: Path) -> None:
    """Old connections go on, new ones get the new certificate, halves of a pair are never used."""
    (tmp_path / "new").mkdir()
    old, new = Authority(tmp_path), Authority(tmp_path / "new")
    async with running(FakeEngine(step_seconds=0.005), **old.flags()) as server, channel(server, old.ca) as kept:
        streams = [GenerationStub(kept).Generate(request(max_tokens=200)) for _ in range(16)]
        reading = [asyncio.ensure_future(collect(stream)) for stream in streams]
        await asyncio.gather(*(stream.initial_metadata() for stream in streams))
        old.certificate.write_bytes(new.certificate.read_bytes())  # with the old key: a rotation half done
        await reloaded(server, "failed")
        assert await speak(server, old.ca) is grpc.StatusCode.OK
        old.key.write_bytes(new.key.read_bytes())
        await reloaded(server, "ok")
        assert await speak(server, new.ca) is grpc.StatusCode.OK
        assert await speak(server, old.ca) is grpc.StatusCode.UNAVAILABLE
        assert [len(tokens) for tokens, _, _ in await asyncio.gather(*reading)] == [200] * 16
        await collect(GenerationStub(kept).Generate(request(max_tokens=1)))


async def reloaded(server: Running, outcome: str) -> None:
    while not (await server.metrics()).get(f"firsttoken_reloads_total{{outcome={outcome},what=tls}}"):
        pass


async def test_a_token_over_tls(tmp_path: Path) -> None:
    from firsttoken.client import AccessError, AsyncClient, Tls

    authority, access = Authority(tmp_path), tmp_path / "access.toml"
    access.write_text(f'[tenants.a]\ntokens = [{{ sha256 = "{hash_token("good")}" }}]\n')
    async with running(**authority.flags(), access__file=access) as server:
        address = f"localhost:{server.app.grpc_port}"
        tls, token = Tls.from_files(authority.client_ca), "bad"
        async with AsyncClient(address, tls=tls, token=lambda: token) as client:
            with pytest.raises(AccessError):
                await client.generate("x", max_tokens=1).text()
            token = "good"
            assert await client.generate("x", max_tokens=3).text()  # the function was asked again


def test_files_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    config = TlsConfig(certificate=str(authority.certificate), key=str(authority.key))
    ServerCertificates(config)
    authority.key.write_bytes(authority.ca.issue_cert("x").private_key_pem.bytes())
    with pytest.raises(TlsError, match=r"server\.key"):
        ServerCertificates(config)
    authority.certificate.write_text("nothing")
    with pytest.raises(TlsError, match=r"server\.pem"):
        ServerCertificates(config)
    authority.certificate.unlink()
    with pytest.raises(OSError, match=r"server\.pem"):
        ServerCertificates(config)
