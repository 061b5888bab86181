"""Replicas behind a Service, from an API that speaks HTTPS under a made-up authority, and that may answer with anything."""

import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from selfhosted.config import KubernetesConfig
from selfhosted.discovery.kubernetes import PAGE_BYTES, KubernetesSource, cluster_of
from selfhosted.discovery.source import DiscoveredReplica, SourceFailed, SourceResult
from tests.selfhosted.discovery.authorities import ONE, TWO, Authority

Serve = Callable[[web.Request], Any]


def authority(folder: Path, made_up: Authority = ONE) -> ssl.SSLContext:
    """Leaves the authority as `ca.crt` in the folder, and gives the side of a server that it vouches for."""
    (folder / "ca.crt").write_text(made_up.certificate)
    both = folder / "server.pem"
    both.write_text(made_up.key + made_up.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return context


class Api:
    """A cluster's API, a pod's folder of secrets, and what was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[web.Request] = []
        self.serve: Serve = lambda _request: {"items": []}
        self.port = 0
        (folder / "token").write_text("token-1\n")
        (folder / "namespace").write_text("models")

    def source(self, session: aiohttp.ClientSession, **fields: Any) -> KubernetesSource:
        config = KubernetesConfig.model_validate({"service": "engines", **fields})
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}
        secrets = {"env:TOKEN": "configured"}.__getitem__
        cluster = cluster_of(config, environment=environment, secrets=secrets, account=self.folder)
        return KubernetesSource(config, cluster, session)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        told = self.serve(request)
        if isinstance(told, web.StreamResponse):
            return told
        return web.Response(body=told if isinstance(told, bytes) else json.dumps(told).encode())


@contextlib.asynccontextmanager
async def served(api: Api, context: ssl.SSLContext | None) -> AsyncIterator[None]:
    app = web.Application()
    app.router.add_get("/{path:.*}", api.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", api.port, ssl_context=context)
        await site.start()
        api.port = runner.addresses[0][1]
        yield
    finally:
        await runner.cleanup()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    made = Api(tmp_path)
    async with served(made, authority(tmp_path)):
        yield made


def endpoint(address: str, pod: str | None = None, **conditions: bool | None) -> dict[str, Any]:
    found: dict[str, Any] = {"addresses": [address], "conditions": conditions}
    if pod is not None:
        found["targetRef"] = {"kind": "Pod", "name": pod, "namespace": "models"}
    return found


def a_slice(*endpoints: dict[str, Any], ports: Any = ({"name": "http", "port": 8000},), **more: Any) -> dict[str, Any]:
    return {"addressType": "IPv4", "endpoints": list(endpoints), "ports": ports, **more}


async def test_pods_are_replicas_and_those_that_terminate_drain(api: Api, session: aiohttp.ClientSession) -> None:
    """Also those that are not ready yet; what the API is asked is what it understands."""
    api.serve = lambda _request: {
        "metadata": {"resourceVersion": "1"},
        "items": [
            a_slice(
                endpoint("10.0.0.1", "engine-a", ready=True, serving=True, terminating=False),
                endpoint("10.0.0.2", "engine-b", ready=False, serving=True, terminating=True),
                endpoint("10.0.0.3", "engine-c", ready=False),
                endpoint("10.0.0.4", ready=None, serving=None, terminating=None),
            )
        ],
    }
    found = await api.source(session).fetch()
    assert found == SourceResult(
        replicas=(
            DiscoveredReplica(name="10.0.0.4", url="http://10.0.0.4:8000"),
            DiscoveredReplica(name="engine-a", url="http://10.0.0.1:8000"),
            DiscoveredReplica(name="engine-b", url="http://10.0.0.2:8000", draining=True),
            DiscoveredReplica(name="engine-c", url="http://10.0.0.3:8000"),
        )
    )
    (asked,) = api.asked
    assert asked.path == "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
    assert asked.query["labelSelector"] == "kubernetes.io/service-name=engines"
    assert asked.headers["authorization"] == "Bearer token-1"


async def test_pages_are_read_to_the_last(api: Api, session: aiohttp.ClientSession) -> None:
    """A list that never ends is a failure, and so is one that grew too old."""
    pages = {None: ("a", "to=b&c/d+e"), "to=b&c/d+e": ("b", "")}

    def page(request: web.Request) -> dict[str, Any]:
        pod, more = pages[request.query.get("continue")]
        address = {"a": "10.0.0.1", "b": "10.0.0.2"}[pod]
        return {"metadata": {"continue": more}, "items": [a_slice(endpoint(address, pod))]}

    api.serve = page
    source = api.source(session)
    assert [each.name for each in (await source.fetch()).replicas] == ["a", "b"]
    api.serve = lambda _request: {"metadata": {"continue": "again"}, "items": None}
    with pytest.raises(SourceFailed, match="more than"):
        await source.fetch()
    assert len(api.asked) < 50
    api.serve = lambda _request: web.Response(status=410)
    with pytest.raises(SourceFailed, match="410"):
        await source.fetch()


async def test_tokens_and_authorities_that_change_are_followed(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    """Kubernetes exchanges both while we run; a server of another authority is not spoken to."""
    api = Api(tmp_path)
    async with served(api, authority(tmp_path)):
        source = api.source(session)
        await source.fetch()
        (tmp_path / "token").write_text("token-2")
        await source.fetch()
    assert [asked.headers["authorization"] for asked in api.asked] == ["Bearer token-1", "Bearer token-2"]
    old = (tmp_path / "ca.crt").read_bytes()
    async with served(api, authority(tmp_path, TWO)):
        await source.fetch()
        new = (tmp_path / "ca.crt").read_bytes()
        (tmp_path / "ca.crt").write_bytes(old)
        strict = api.source(session)
        with pytest.raises(SourceFailed, match="cannot be reached"):
            await strict.fetch()
        (tmp_path / "ca.crt").write_bytes(new[:100])
        with pytest.raises(SourceFailed, match="cannot be read"):
            await strict.fetch()
        (tmp_path / "ca.crt").write_bytes(new)
        await strict.fetch()
    assert len(api.asked) == 4


async def test_a_pods_token_goes_to_its_own_cluster_alone(api: Api, session: aiohttp.ClientSession) -> None:
    """Another API gets the configured token, or none; and a redirect takes it nowhere."""
    elsewhere = Api(api.folder)
    async with served(elsewhere, None):
        other = f"http://127.0.0.1:{elsewhere.port}"
        await api.source(session, api=other, namespace="a").fetch()
        await api.source(session, api=other, namespace="a", token="env:TOKEN").fetch()
        api.serve = lambda _request: web.Response(status=307, headers={"location": f"{other}/stolen"})
        with pytest.raises(SourceFailed, match="307"):
            await api.source(session).fetch()
    tokens = [asked.headers.get("authorization") for asked in elsewhere.asked]
    assert tokens == [None, "Bearer configured"]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (web.Response, "no list"),
        (lambda: web.Response(status=401), "token"),
        (lambda: web.Response(status=403), "may not list"),
        (lambda: web.Response(status=404), "not there"),
        (lambda: web.Response(status=500, body=b"secret words"), "500"),
        (lambda: b"<html>", "no list"),
        (lambda: b"[]", "no list"),
        (lambda: b'{"items": [{"endpoints": [{"addresses": 5}]}]}', "no list"),
        (lambda: b'{"items": [' + b" " * PAGE_BYTES + b"]}", "more than"),
        (lambda: b"\xff\xfe", "no list"),
    ],
)
async def test_what_is_no_answer_is_a_failure(
    api: Api, session: aiohttp.ClientSession, told: Callable[[], Any], why: str
) -> None:
    """With a reason that says what to mend, and none of what was sent."""
    api.serve = lambda _request: told()
    with pytest.raises(SourceFailed, match=why) as failed:
        await api.source(session).fetch()
    assert "secret" not in str(failed.value)


async def test_an_api_that_is_not_there_is_a_failure(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    """Nobody listens; or this is no cluster; or the pod has no secrets."""
    authority(tmp_path)
    api = Api(tmp_path)
    api.port = 1
    with pytest.raises(SourceFailed, match="reached"):
        await api.source(session).fetch()
    config = KubernetesConfig(service="engines")
    nowhere = cluster_of(config, environment={}, secrets=str, account=tmp_path)
    with pytest.raises(SourceFailed, match="no cluster"):
        await KubernetesSource(config, nowhere, session).fetch()
    (tmp_path / "token").unlink()
    with pytest.raises(SourceFailed, match="token cannot be read"):
        await api.source(session).fetch()


@pytest.mark.parametrize(
    ("port", "ports", "found"),
    [
        ("http", [{"name": "metrics", "port": 9000}, {"name": "http", "port": 8000}], 8000),
        (8000, [{"name": "metrics", "port": 9000}, {"name": "http", "port": 8000}], 8000),
        ("8000", [{"name": "http", "port": 8000}], 8000),
        ("http", [{"name": None, "port": 8000}], None),
        (8001, [{"name": "http", "port": 8000}], None),
        (8000, None, 8000),
        ("http", None, None),
        ("http", [{"name": "http", "port": None}], None),
    ],
)
async def test_the_port_is_the_slices(
    api: Api, session: aiohttp.ClientSession, port: int | str, ports: Any, found: int | None
) -> None:
    """By name or number; what there is instead is told."""
    api.serve = lambda _request: {"items": [a_slice(endpoint("10.0.0.1", "a"), ports=ports)]}
    told = await api.source(session, port=port).fetch()
    assert [each.url for each in told.replicas] == ([] if found is None else [f"http://10.0.0.1:{found}"])
    assert bool(told.unusable) == (found is None)


async def test_odd_slices_are_read_as_far_as_they_go(api: Api, session: aiohttp.ClientSession) -> None:
    """A pod of both families once, one that stands in two slices by its better word, names that are too long cut."""
    long = "engine-" + "x" * 200
    api.serve = lambda _request: {
        "items": [
            a_slice(endpoint("fd00::1", "both"), addressType="IPv6"),
            a_slice(endpoint("10.0.0.1", "both"), endpoint("10.0.0.2", "twice", terminating=True)),
            a_slice(endpoint("10.0.0.2", "twice"), endpoint("10.0.0.3", long), endpoint("10.0.0.4", long + "y")),
            a_slice(
                endpoint("name.example", "odd"), {"addresses": None}, {"addresses": [], "targetRef": {"kind": "Node"}}
            ),
            a_slice(endpoint("name.example", "odd"), addressType="FQDN"),
            {"addressType": "IPv4", "endpoints": None, "ports": None},
        ]
    }
    found = await api.source(session, scheme="https").fetch()
    urls = {each.name: each.url for each in found.replicas}
    assert len(urls) == 4
    assert urls["both"] == "https://10.0.0.1:8000"
    assert not any(each.draining for each in found.replicas)
    assert max(map(len, urls)) == 64
    assert len(found.unusable) == 2


async def test_an_api_that_hangs_is_not_waited_for(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    """Told as what it is."""
    authority(tmp_path)
    api = Api(tmp_path)
    # Connections are made, and nobody takes them.
    silent = socket.create_server(("127.0.0.1", 0))
    api.port = silent.getsockname()[1]
    config = KubernetesConfig(service="engines")
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api.port)}
    cluster = cluster_of(config, environment=environment, secrets=str, account=tmp_path)
    with pytest.raises(SourceFailed, match="in time"):
        await KubernetesSource(config, cluster, session, patience_s=0.05).fetch()
    silent.close()
