"""The `events` section of the configuration: which sinks are told of each entry of the ledger."""

import re
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from api.webhooks.webhooks_config import destination_url
from settings.secret_ref import SecretRef
from settings.types import Finite, Given, Section

_NAME: Final = r"^[a-z0-9][a-z0-9_-]*$"
_HEADER: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_SET_HERE: Final = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "te",
        "transfer-encoding",
        "upgrade",
    }
)


def _bootstrap(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536 or "/" in value or "@" in value:  # noqa: PLR2004 - ports
        raise ValueError("must be HOST:PORT")
    return value


def _inside_url(value: str) -> str:
    """Return an address that may also be http://, for a network that one trusts. Raises ValueError, which does not repeat it."""
    parts = urlsplit(value)
    if parts.scheme == "http" and parts.hostname is not None:
        destination_url(f"https{value[4:]}")
        return value
    return destination_url(value)


def _own_header(value: str) -> str:
    name = value.lower()
    if _HEADER.fullmatch(name) is None or name in _SET_HERE or name.startswith("webhook-"):
        raise ValueError("must be the name of a header that is not set by the sink itself")
    return name


class _Sink(Section):
    name: str = Field(
        pattern=_NAME,
        max_length=64,
        description="Its name in metrics and logs. The place up to which it was told is kept under it.",
    )
    timeout_s: Finite = Field(default=30.0, ge=0.1, le=300, description="How long one batch may take.")


class _TlsSink(_Sink):
    ca: Given[Path | None] = Field(
        default=None, description="Certificates to trust in place of the system's, a PEM file."
    )
    certificate: Given[Path | None] = Field(
        default=None, description="Our own certificate, a PEM file, where the receiver asks for one."
    )
    key: Given[Path | None] = Field(default=None, description="Its key, a PEM file.")

    @model_validator(mode="after")
    def _has_a_whole_certificate(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together")
        return self

    @property
    def has_own_tls(self) -> bool:
        """Return True where it says anything of certificates."""
        return self.ca is not None or self.certificate is not None


class HttpSinkConfig(_TlsSink):
    """A receiver of CloudEvents over HTTP."""

    kind: Literal["http"] = Field(description="CloudEvents by POST.")
    format: Literal["cloudevents", "lago"] = Field(
        default="cloudevents", description="`lago`: its /api/v1/events/batch, at most 100 events in a batch."
    )
    code: str | None = Field(
        default=None, min_length=1, max_length=255, description="Lago's billable metric that events are of."
    )
    url: Annotated[str, AfterValidator(_inside_url)] | None = Field(
        default=None, max_length=2_000, description="Where batches are posted. Redirects are not followed."
    )
    url_from: SecretRef | None = Field(default=None, description="In place of `url`, for a secret address: `env:NAME`.")
    allow_http: bool = Field(
        default=False, description="Lets `url` be http:// beyond this machine, in a network that you trust."
    )
    token: SecretRef | None = Field(default=None, description="Sent as `authorization: Bearer`: `env:NAME`.")
    headers: dict[Annotated[str, AfterValidator(_own_header)], SecretRef] = Field(
        default={}, max_length=16, description="Other headers, such as `x-api-key: env:NAME`; values as in `token`."
    )
    secret: SecretRef | None = Field(default=None, description="Signs batches as Standard Webhooks, as at `webhooks`.")
    previous_secret: SecretRef | None = Field(default=None, description="The old one while it is replaced; both sign.")
    events: int = Field(default=500, ge=1, le=10_000, description="Events in a batch. 1: single events, not in a list.")
    max_bytes: int = Field(default=900_000, ge=10_000, le=50_000_000, description="Bytes of a batch's body.")

    @model_validator(mode="after")
    def _has_one_address(self) -> Self:
        if (self.url is None) == (self.url_from is None):
            raise ValueError("needs a `url`, or a `url_from` that names where a secret one is found")
        if self.url is not None and not self.allow_http:
            destination_url(self.url)
        if self.token is not None and "authorization" in self.headers:
            raise ValueError("token and the header authorization are the same header; write one of them")
        if (self.format == "lago") != (self.code is not None):
            raise ValueError("format lago and code belong together: the billable metric that events are of")
        return self


class KafkaSinkConfig(_TlsSink):
    """A topic of Kafka. Needs the extra `kafka`."""

    kind: Literal["kafka"] = Field(
        description="CloudEvents, structured, a message each; key is the request. Extra `kafka`."
    )
    servers: tuple[Annotated[str, AfterValidator(_bootstrap)], ...] = Field(
        min_length=1, max_length=32, description="Brokers to begin with, HOST:PORT."
    )
    topic: str = Field(pattern=r"^[A-Za-z0-9._-]{1,249}$", description="The topic; it has to be there.")
    tls: bool = Field(default=True, description="TLS to the brokers, whose names are checked.")
    sasl: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(default=None, description="How to sign in.")
    user: str | None = Field(default=None, max_length=200, description="Who signs in.")
    password: SecretRef | None = Field(default=None, description="Where that one's password is found: `env:NAME`.")
    events: int = Field(default=1_000, ge=1, le=10_000, description="Events that go before the brokers are waited for.")

    @model_validator(mode="after")
    def _signs_in_whole(self) -> Self:
        if {self.sasl is None, self.user is None, self.password is None} != {self.sasl is None}:
            raise ValueError("sasl, user and password belong together")
        if self.has_own_tls and not self.tls:
            raise ValueError("ca and certificate need tls")
        return self


class NatsSinkConfig(_TlsSink):
    """A subject of NATS that a stream of JetStream keeps. Needs the extra `nats`."""

    kind: Literal["nats"] = Field(
        description="CloudEvents, structured, a message each, `Nats-Msg-Id` is its id. Extra `nats`."
    )
    servers: tuple[Annotated[str, AfterValidator(_bootstrap)], ...] = Field(
        min_length=1, max_length=32, description="Servers to begin with, HOST:PORT."
    )
    subject: str = Field(
        pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$",
        max_length=255,
        description="The subject; a stream has to take it.",
    )
    tls: bool = Field(default=True, description="TLS to the servers, whose names are checked.")
    user: str | None = Field(default=None, max_length=200, description="Who signs in.")
    password: SecretRef | None = Field(default=None, description="Where that one's password is found: `env:NAME`.")
    token: SecretRef | None = Field(default=None, description="In place of both: `env:NAME`.")
    events: int = Field(
        default=500, ge=1, le=10_000, description="Events that go before acknowledgements are waited for."
    )

    @model_validator(mode="after")
    def _signs_in_in_one_way(self) -> Self:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password belong together")
        if self.user is not None and self.token is not None:
            raise ValueError("signs in by user or by token; write one of them")
        if self.has_own_tls and not self.tls:
            raise ValueError("ca and certificate need tls")
        return self


class S3SinkConfig(_Sink):
    """Parquet files in an S3-compatible store. Needs the extra `s3`, and pyarrow."""

    kind: Literal["s3"] = Field(description="Parquet by hour, `date=…/hour=…`. Extra `s3`, and pyarrow.")
    bucket: str = Field(min_length=1, max_length=255, description="The bucket; it has to be there.")
    prefix: str = Field(default="weighbridge/events", max_length=500, description="What names begin with.")
    endpoint: str | None = Field(default=None, pattern=r"^https?://", description="The store; AWS's own if left out.")
    region: str = Field(default="us-east-1", max_length=64, description="The store's region.")
    access_key_id: SecretRef | None = Field(
        default=None, description="`env:NAME`; the machine's own rights without one."
    )
    secret_access_key: SecretRef | None = Field(default=None, description="`env:NAME`.")
    session_token: SecretRef | None = Field(default=None, description="`env:NAME`, of a key that ends.")
    every_s: Finite = Field(default=300.0, ge=0, le=3_600, description="How long a file waits for more events.")
    events: int = Field(default=20_000, ge=1, le=50_000, description="Events from which on it waits no longer.")

    @model_validator(mode="after")
    def _has_a_whole_key(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key belong together")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("session_token needs access_key_id and secret_access_key")
        return self


SinkConfig = Annotated[HttpSinkConfig | KafkaSinkConfig | NatsSinkConfig | S3SinkConfig, Field(discriminator="kind")]


class EventsSection(Section):
    """Events about entries of the ledger: [events](events.md)."""

    source: str = Field(
        default="weighbridge",
        min_length=1,
        max_length=200,
        pattern=r"^[!-~]+$",
        description="CloudEvents' `source`: a name of this installation. With `id` it tells events apart, so keep it.",
    )
    keep_days: int = Field(
        default=3,
        ge=1,
        le=30,
        description="How long events wait in the database for a sink that does not take them; then they are dropped.",
    )
    sinks: tuple[SinkConfig, ...] = Field(default=(), max_length=16, description="Who is told. Nobody unless set.")

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [each.name for each in self.sinks]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two sinks are named `{twice[0]}`")
        return self
