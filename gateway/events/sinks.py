"""Sinks as the configuration names them."""

from collections.abc import Callable
from typing import Any, NamedTuple, assert_never

from api.webhooks.signature import BadSecret, signing_key
from api.webhooks.webhooks_config import destination_url
from cost.events.event import Event, encoder
from cost.events.lago import lago_encoder
from cost.events.sink import Sink, SinkLimits
from gateway.configuration.events_config import (
    HttpSinkConfig,
    KafkaSinkConfig,
    NatsSinkConfig,
    S3SinkConfig,
    SinkConfig,
)
from gateway.events.http_sink import BATCHED, LAGO, STRUCTURED, HttpSink
from gateway.events.kafka_sink import KafkaSink
from gateway.events.nats_sink import NatsSink
from gateway.events.s3_sink import S3Sink
from gateway.events.tls import Tls, tls_of
from gateway.exporters.parquet import Bucket
from providers.connections.forward_proxy import ForwardProxy

_NO_BOUND = 1 << 40
_PRODUCER_BYTES = 1_000_000


class BadSink(Exception):
    """A sink cannot be opened; says why, without a secret."""


class OpenSink(NamedTuple):
    """A sink, and the batches that it takes."""

    name: str
    sink: Sink
    limits: SinkLimits
    timeout_s: float
    encode: Callable[[Event], bytes]


def open_sink(
    config: SinkConfig, resolve: Callable[[str], str], proxy: ForwardProxy | None = None, source: str = "weighbridge"
) -> OpenSink:
    """Open a sink; nothing is contacted yet. `resolve` reads references to secrets. Raises BadSink."""
    try:
        sink, limits = _opened(config, resolve, proxy)
    except (BadSecret, ValueError) as error:
        raise BadSink(f"events: sink `{config.name}`: {error}") from None
    except ImportError as error:
        raise BadSink(
            f"events: sink `{config.name}` needs {error.name}: pip install 'weighbridge[{config.kind}]'"
        ) from None
    except (LookupError, OSError):
        raise BadSink(
            f"events: sink `{config.name}`: a secret or a file that it names is not there, or a file is no PEM"
        ) from None
    code = config.code if isinstance(config, HttpSinkConfig) else None
    return OpenSink(
        config.name, sink, limits, config.timeout_s, encoder(source) if code is None else lago_encoder(code)
    )


def _opened(config: SinkConfig, resolve: Callable[[str], str], proxy: ForwardProxy | None) -> tuple[Sink, SinkLimits]:
    match config:
        case HttpSinkConfig():
            return _http(config, resolve, proxy)
        case KafkaSinkConfig():
            return _kafka(config, resolve), SinkLimits(config.events, _NO_BOUND)
        case NatsSinkConfig():
            return _nats(config, resolve), SinkLimits(config.events, _NO_BOUND)
        case S3SinkConfig():
            return _s3(config, resolve), SinkLimits(config.events, _NO_BOUND, config.every_s)
        case _:
            assert_never(config)


def _tls(config: HttpSinkConfig | KafkaSinkConfig | NatsSinkConfig) -> Tls:
    made = tls_of(config.ca, config.certificate, config.key)
    made()
    return made


def _http(
    config: HttpSinkConfig, resolve: Callable[[str], str], proxy: ForwardProxy | None
) -> tuple[HttpSink, SinkLimits]:
    url = config.url
    if url is None:
        url = resolve(config.url_from or "")
        if not (config.allow_http and url.startswith("http://")):
            destination_url(url)
    keys = [signing_key(resolve(each)) for each in (config.secret, config.previous_secret) if each is not None]
    shape = LAGO if config.format == "lago" else STRUCTURED if config.events == 1 else BATCHED

    def headers() -> dict[str, str]:
        bearer = {} if config.token is None else {"authorization": f"Bearer {resolve(config.token)}"}
        return bearer | {name: resolve(reference) for name, reference in config.headers.items()}

    headers()
    tls = _tls(config) if config.has_own_tls else None
    sink = HttpSink(url, keys=keys, headers=headers, shape=shape, tls=tls, proxy=proxy)
    return sink, SinkLimits(min(config.events, shape.most), config.max_bytes)


def _kafka(config: KafkaSinkConfig, resolve: Callable[[str], str]) -> KafkaSink:
    settings = {
        "bootstrap_servers": list(config.servers),
        "client_id": "weighbridge",
        "security_protocol": ("SASL_" if config.sasl else "") + ("SSL" if config.tls else "PLAINTEXT"),
        "request_timeout_ms": int(config.timeout_s * 1_000),
        "max_request_size": _PRODUCER_BYTES,
    }
    if config.sasl is not None:
        settings |= {"sasl_mechanism": config.sasl, "sasl_plain_username": config.user}
    tls = _tls(config) if config.tls else None

    def renewed() -> dict[str, Any]:
        password = {} if config.password is None else {"sasl_plain_password": resolve(config.password)}
        return password if tls is None else password | {"ssl_context": tls()}

    renewed()
    return KafkaSink(config.topic, settings, renewed)


def _nats(config: NatsSinkConfig, resolve: Callable[[str], str]) -> NatsSink:
    settings: dict[str, Any] = {
        "servers": [f"nats://{each}" for each in config.servers],
        "connect_timeout": config.timeout_s,
        "user": config.user,
    }
    tls = _tls(config) if config.tls else None

    def renewed() -> dict[str, Any]:
        secrets = {"password": config.password, "token": config.token}
        found: dict[str, Any] = {name: resolve(each) for name, each in secrets.items() if each is not None}
        return found if tls is None else found | {"tls": tls()}

    renewed()
    return NatsSink(config.subject, settings, renewed)


def _s3(config: S3SinkConfig, resolve: Callable[[str], str]) -> S3Sink:
    return S3Sink(
        Bucket(
            bucket=config.bucket,
            prefix=config.prefix,
            endpoint=config.endpoint or "",
            region=config.region,
            access_key_id="" if config.access_key_id is None else resolve(config.access_key_id),
            secret_access_key="" if config.secret_access_key is None else resolve(config.secret_access_key),
            session_token="" if config.session_token is None else resolve(config.session_token),
        )
    )
