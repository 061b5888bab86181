"""Discovery source: replicas behind a Kubernetes Service, from its EndpointSlices.

Endpoints that are not ready are included: a pod that loads its weights is a replica that starts and costs money, and
the watch finds out itself whether it answers. A pod that terminates drains: it takes nothing new and finishes what it
has. The service account's token and the cluster's certificates change while the process runs, so their files are read
at each poll.
"""

import asyncio
import hashlib
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import quote

import aiohttp
import msgspec

from selfhosted.config import KubernetesConfig
from selfhosted.discovery.dns import name_of
from selfhosted.discovery.source import LOOK_S, MOST_REPLICAS, DiscoveredReplica, SourceFailed, SourceResult
from selfhosted.registry.origin import origin
from selfhosted.replica import Source as SourceName
from settings.decoding import DECODE_ERRORS

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAGE_BYTES: Final = 4_000_000
_PAGES: Final = 20
_PER_PAGE: Final = 100
_MOST_FILE_BYTES: Final = 1_000_000
_NAME_CHARS: Final = 64
_DIGEST_CHARS: Final = 12


class _Conditions(msgspec.Struct):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class _TargetRef(msgspec.Struct):
    kind: str = ""
    name: str = ""


class _Endpoint(msgspec.Struct, rename="camel"):
    addresses: list[str] | None = None
    conditions: _Conditions | None = None
    target_ref: _TargetRef | None = None


class _Port(msgspec.Struct):
    name: str | None = None
    port: int | None = None


class _Slice(msgspec.Struct, rename="camel"):
    address_type: str = ""
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


class _Meta(msgspec.Struct, rename={"more": "continue"}):
    more: str | None = None


class _Page(msgspec.Struct):
    metadata: _Meta | None = None
    items: list[_Slice] | None = None


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Access to the cluster's API."""

    api: str
    """`https://host:port`; empty outside a cluster."""
    token: Callable[[], str | None]
    """Reads the bearer token, at each poll and in a thread, as it changes. None: no token is sent."""
    ca: Path | None
    """File of the CA certificates that the API's certificate is verified with; None: the system's."""
    namespace: Callable[[], str]


def cluster_of(
    config: KubernetesConfig,
    *,
    environment: Mapping[str, str],
    secrets: Callable[[str], str],
    account: Path = SERVICE_ACCOUNT,
) -> Cluster:
    """Return the access as configured, with the pod's environment and service account as defaults."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    own = f"https://{f'[{host}]' if ':' in host else host}:{port}" if host else ""
    api = config.api or own

    def token() -> str | None:
        if config.token is not None:
            return secrets(config.token)
        # The pod's own token must never be sent to another cluster.
        return _read_text(account / "token") if api and api == own else None

    def namespace() -> str:
        return config.namespace or _read_text(account / "namespace")

    files = [Path(config.ca_file)] if config.ca_file else [account / "ca.crt"] if api == own else []
    return Cluster(api=api, token=token, ca=next(iter(files), None), namespace=namespace)


class KubernetesSource:
    """The replicas behind a Kubernetes Service."""

    name: Final[SourceName] = "kubernetes"

    def __init__(
        self,
        config: KubernetesConfig,
        cluster: Cluster,
        session: aiohttp.ClientSession,
        *,
        patience_s: float = LOOK_S,
    ) -> None:
        self.every_s = config.every_s
        self._config = config
        self._cluster = cluster
        self._session = session
        self._patience_s = patience_s
        self._ca: tuple[bytes, ssl.SSLContext] | None = None

    async def fetch(self) -> SourceResult:
        if not self._cluster.api:
            raise SourceFailed(
                "this process runs in no cluster: KUBERNETES_SERVICE_HOST is not set; set `kubernetes.api`"
            )
        try:
            async with asyncio.timeout(self._patience_s):
                token, namespace, context = await asyncio.to_thread(self._read_files)
                slices = await self._slices(token, namespace, context)
        except TimeoutError as error:
            raise SourceFailed("the cluster's API does not answer in time") from error
        except aiohttp.ClientError as error:
            # Only its class: the message may quote what the server sent.
            raise SourceFailed(f"the cluster's API cannot be reached ({type(error).__name__})") from error
        return found_in(self._config, slices)

    def _read_files(self) -> tuple[str | None, str, ssl.SSLContext | None]:
        cluster = self._cluster
        try:
            token, namespace = cluster.token(), cluster.namespace()
            if cluster.ca is not None and cluster.api.startswith("https:"):
                self._read_ca(cluster.ca)
        except (OSError, LookupError, ValueError) as error:
            name = Path(error.filename).name if isinstance(error, OSError) and error.filename else "a secret"
            raise SourceFailed(f"{name} cannot be read ({type(error).__name__})") from error
        return token, namespace, None if self._ca is None else self._ca[1]

    def _read_ca(self, path: Path) -> None:
        certificates = _read_bytes(path)
        if self._ca is None or self._ca[0] != certificates:
            # ssl.SSLError is an OSError; while the file is being exchanged it may hold half of them.
            self._ca = (certificates, ssl.create_default_context(cadata=certificates.decode()))

    async def _slices(self, token: str | None, namespace: str, context: ssl.SSLContext | None) -> list[_Slice]:
        url = f"{self._cluster.api}/apis/discovery.k8s.io/v1/namespaces/{quote(namespace, safe='')}/endpointslices"
        params = {"labelSelector": f"kubernetes.io/service-name={self._config.service}", "limit": str(_PER_PAGE)}
        found: list[_Slice] = []
        for _ in range(_PAGES):
            page = await self._page(url, params, token, context)
            found += page.items or []
            more = page.metadata.more if page.metadata is not None else None
            if not more:
                return found
            params = {**params, "continue": more}
        raise SourceFailed(f"the Service has more than {_PAGES * _PER_PAGE} EndpointSlices")

    async def _page(
        self, url: str, params: Mapping[str, str], token: str | None, context: ssl.SSLContext | None
    ) -> _Page:
        # Nothing that was compressed can swell.
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        asked = self._session.get(
            url,
            params=params,
            headers=headers,
            ssl=True if context is None else context,
            # The token is for this address, wherever it points to.
            allow_redirects=False,
        )
        async with asked as reply:
            if reply.status != 200:  # noqa: PLR2004 - HTTP's own number
                raise SourceFailed(_refusal(reply.status, self._config))
            body = b""
            async for chunk in reply.content.iter_chunked(65_536):
                body += chunk
                if len(body) > PAGE_BYTES:
                    raise SourceFailed(f"the cluster's API answered with more than {PAGE_BYTES} bytes")
        try:
            return msgspec.json.decode(body, type=_Page)
        except DECODE_ERRORS as error:
            raise SourceFailed("the cluster's API answered with something that is no list of EndpointSlices") from error


def _refusal(status: int, config: KubernetesConfig) -> str:
    match status:
        case 401:
            return "the cluster's API does not know the token (401)"
        case 403:
            return "the service account may not list endpointslices.discovery.k8s.io in the namespace (403)"
        case 404:
            return f"the namespace of {config.service} is not there, or the cluster has no EndpointSlices (404)"
        case _:
            return f"the cluster's API answered with {status}"


def found_in(config: KubernetesConfig, slices: Iterable[_Slice]) -> SourceResult:
    """Return one replica for each endpoint, named after its pod."""
    # A Service with both families has each pod twice: the IPv4 one counts.
    ordered = sorted((each for each in slices if each.address_type in {"IPv4", "IPv6"}), key=lambda s: s.address_type)
    found: dict[str, DiscoveredReplica] = {}
    unusable: set[str] = set()
    for each in ordered:
        endpoints = each.endpoints or []
        port = _port_of(config.port, each.ports)
        if port is None:
            if endpoints:
                has = ", ".join(f"{p.name or 'unnamed'} {p.port}" for p in each.ports or ())[:200]
                unusable.add(f"the Service {config.service} has no port {config.port}; it has: {has or 'none'}")
            continue
        for spotted in _replicas_in(config, endpoints, port, unusable):
            before = found.get(spotted.name)
            if before is None:
                found[spotted.name] = spotted
            elif before.url == spotted.url and before.draining and not spotted.draining:
                # While slices are rearranged an endpoint is in two; as in kube-proxy, the one that is not terminating wins.
                found[spotted.name] = spotted
    replicas = tuple(sorted(found.values()))
    if len(replicas) > MOST_REPLICAS:
        unusable.add(f"the Service has {len(replicas)} endpoints; a pool has at most {MOST_REPLICAS} replicas")
    return SourceResult(replicas=replicas[:MOST_REPLICAS], unusable=tuple(sorted(unusable)[:10]))


def _replicas_in(
    config: KubernetesConfig, endpoints: Sequence[_Endpoint], port: int, unusable: set[str]
) -> Iterable[DiscoveredReplica]:
    for endpoint in endpoints:
        told = next(iter(endpoint.addresses or ()), "")
        try:
            # The others, if any, are fungible: the API's documentation says to take the first.
            address = ip_address(told)
        except ValueError:
            unusable.add(f"an endpoint's address is none: {told[:64]!r}")
            continue
        ref = endpoint.target_ref
        pod = ref.name if ref is not None and ref.kind == "Pod" else ""
        conditions = endpoint.conditions or _Conditions()
        yield DiscoveredReplica(
            name=_shortened(pod) if pod else name_of(address),
            url=origin(config.scheme, address, port),
            draining=bool(conditions.terminating),
        )


def _port_of(wanted: int | str, ports: Sequence[_Port] | None) -> int | None:
    number = int(wanted) if isinstance(wanted, int) or wanted.isdecimal() else None
    if not ports:
        # A Service without a selector may leave them open: all ports.
        return number
    fits = (
        each.port for each in ports if each.port and (each.port == number or (number is None and each.name == wanted))
    )
    return next(fits, None)


def _shortened(pod: str) -> str:
    """Return the pod's name, the end of one longer than 64 characters replaced by a digest."""
    if len(pod) <= _NAME_CHARS:
        return pod
    return f"{pod[: _NAME_CHARS - _DIGEST_CHARS - 1]}-{hashlib.sha256(pod.encode()).hexdigest()[:_DIGEST_CHARS]}"


def _read_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MOST_FILE_BYTES)


def _read_text(path: Path) -> str:
    return _read_bytes(path).decode().strip()
