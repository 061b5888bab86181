"""Sinks as the configuration names them."""

from collections.abc import Callable
from typing import NamedTuple, assert_never

from api.webhooks.signature import BadSecret, signing_key
from api.webhooks.webhooks_config import destination_url
from cost.events.sink import Sink, SinkLimits
from gateway.configuration.events_config import HttpSinkConfig, KafkaSinkConfig, S3SinkConfig, SinkConfig
from gateway.events.http_sink import HttpSink
from gateway.events.kafka_sink import KafkaSink
from gateway.events.s3_sink import S3Sink
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


def open_sink(config: SinkConfig, resolve: Callable[[str], str], proxy: ForwardProxy | None = None) -> OpenSink:
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
        raise BadSink(f"events: sink `{config.name}`: a secret or a file that it names is not there") from None
    return OpenSink(config.name, sink, limits, config.timeout_s)


def _opened(config: SinkConfig, resolve: Callable[[str], str], proxy: ForwardProxy | None) -> tuple[Sink, SinkLimits]:
    match config:
        case HttpSinkConfig():
            return _http(config, resolve, proxy), SinkLimits(config.events, config.max_bytes)
        case KafkaSinkConfig():
            return _kafka(config, resolve), SinkLimits(config.events, _NO_BOUND)
        case S3SinkConfig():
            return _s3(config, resolve), SinkLimits(config.events, _NO_BOUND, config.every_s)
        case _:
            assert_never(config)


def _http(config: HttpSinkConfig, resolve: Callable[[str], str], proxy: ForwardProxy | None) -> HttpSink:
    url = config.url
    if url is None:
        url = resolve(config.url_from or "")
        if not (config.allow_http and url.startswith("http://")):
            destination_url(url)
    keys = [signing_key(resolve(each)) for each in (config.secret, config.previous_secret) if each is not None]
    token = None if config.token is None else resolve(config.token)
    return HttpSink(url, keys=keys, token=token, single=config.events == 1, proxy=proxy)


def _kafka(config: KafkaSinkConfig, resolve: Callable[[str], str]) -> KafkaSink:
    protocol = ("SASL_" if config.sasl else "") + ("SSL" if config.tls else "PLAINTEXT")
    settings = {
        "bootstrap_servers": list(config.servers),
        "client_id": "weighbridge",
        "security_protocol": protocol,
        "request_timeout_ms": int(config.timeout_s * 1_000),
        "max_request_size": _PRODUCER_BYTES,
    }
    if config.sasl is not None and config.password is not None:
        settings |= {
            "sasl_mechanism": config.sasl,
            "sasl_plain_username": config.user,
            "sasl_plain_password": resolve(config.password),
        }
    return KafkaSink(config.topic, settings, ca=None if config.ca is None else str(config.ca), tls=config.tls)


def _s3(config: S3SinkConfig, resolve: Callable[[str], str]) -> S3Sink:
    return S3Sink(
        Bucket(
            bucket=config.bucket,
            prefix=config.prefix,
            endpoint=config.endpoint or "",
            region=config.region,
            access_key_id="" if config.access_key_id is None else resolve(config.access_key_id),
            secret_access_key="" if config.secret_access_key is None else resolve(config.secret_access_key),
        )
    )
