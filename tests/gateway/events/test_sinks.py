"""Sinks as the configuration names them."""

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from gateway.configuration.events_config import EventsSection, SinkConfig
from gateway.configuration.extras import extra_problems
from gateway.configuration.file import Document
from gateway.configuration.gateway_config import GatewayConfig
from gateway.events.http_sink import HttpSink
from gateway.events.sinks import BadSink, OpenSink, open_sink
from tests.api.webhooks.receiver import SECRET
from tests.running_gateway import model

HTTP = {"name": "lake", "kind": "http", "url": "https://example.com/events"}
KAFKA = {"name": "bus", "kind": "kafka", "servers": ["kafka-1:9093"], "topic": "llm.usage"}

NATS = {"name": "subjects", "kind": "nats", "servers": ["nats-1:4222"], "subject": "llm.usage"}


def opened(written: dict[str, Any], **secrets: str) -> OpenSink:
    config: Any = TypeAdapter(SinkConfig).validate_python(written)
    return open_sink(config, lambda reference: secrets[reference.removeprefix("env:")])


def test_an_http_sink_has_its_limits_and_secrets() -> None:
    """Batches of 500 unless it says otherwise; 1 is single events."""
    made = opened({**HTTP, "secret": "env:S", "token": "env:T"}, S=SECRET, T="t0ken")
    assert isinstance(made.sink, HttpSink)
    assert (made.limits.events, made.limits.gather_s, made.timeout_s) == (500, 0.0, 30.0)
    assert opened({**HTTP, "events": 1}).limits.events == 1


@pytest.mark.parametrize(
    "spoilt",
    [
        {**HTTP, "url": "http://example.com/events"},
        {**HTTP, "url": "https://user:s3cret@example.com/"},
        {**HTTP, "url": "ftp://example.com/"},
        {**HTTP, "url_from": "env:URL"},
        {"name": "lake", "kind": "http"},
        {**HTTP, "kind": "smoke"},
        {**HTTP, "token": "the token itself"},
        {**HTTP, "name": "Has Spaces"},
        {**KAFKA, "servers": ["kafka-1"]},
        {**KAFKA, "servers": ["kafka://kafka-1:9092"]},
        {**KAFKA, "sasl": "PLAIN"},
        {**KAFKA, "user": "u", "password": "env:P"},
        {**KAFKA, "tls": False, "ca": "/etc/ca.pem"},
        {**KAFKA, "topic": "no/such"},
        {**KAFKA, "certificate": "/etc/tls.crt"},
        {**HTTP, "headers": {"x-api-key": "the key itself"}},
        {**HTTP, "headers": {"Content-Length": "env:K"}},
        {**HTTP, "headers": {"webhook-id": "env:K"}},
        {**HTTP, "headers": {"x key": "env:K"}},
        {**HTTP, "headers": {"Authorization": "env:K"}, "token": "env:T"},
        {**HTTP, "format": "lago"},
        {**HTTP, "code": "llm_usage"},
        {**NATS, "subject": "usage.>"},
        {**NATS, "user": "u"},
        {**NATS, "token": "env:T", "user": "u", "password": "env:P"},
        {**NATS, "tls": False, "ca": "/etc/ca.pem"},
        {"name": "s", "kind": "s3", "bucket": "b", "access_key_id": "env:K"},
        {"name": "s", "kind": "s3", "bucket": "b", "session_token": "env:K"},
        {"name": "s", "kind": "s3", "bucket": "b", "endpoint": "file:///etc"},
    ],
)
def test_what_cannot_be_meant_is_refused(spoilt: dict[str, Any]) -> None:
    """Before anything is contacted, and without repeating an address."""
    with pytest.raises(ValidationError) as failure:
        EventsSection.model_validate({"sinks": [spoilt]})
    assert "s3cret" not in str(failure.value)


def test_names_are_unique() -> None:
    """A place is kept under each."""
    with pytest.raises(ValidationError, match="two sinks are named `lake`"):
        EventsSection.model_validate({"sinks": [HTTP, HTTP]})


def test_plain_http_is_for_this_machine_or_said() -> None:
    """`allow_http` is for a network that one trusts."""
    assert opened({**HTTP, "url": "http://127.0.0.1:8888/events"})
    assert opened({**HTTP, "url": "http://openmeter.svc:8888/events", "allow_http": True})
    secret = {"name": "lake", "kind": "http", "url_from": "env:URL"}
    assert opened(secret, URL="https://example.com/t0ken")
    with pytest.raises(BadSink, match="lake") as failure:
        opened(secret, URL="http://example.com/t0ken")
    assert "t0ken" not in str(failure.value)


def test_a_secret_that_is_not_there_is_told_by_name() -> None:
    """And one that is no secret, without it."""
    with pytest.raises(BadSink, match="sink `lake`: a secret"):
        opened({**HTTP, "secret": "env:S"})
    with pytest.raises(BadSink, match="whsec_") as failure:
        opened({**HTTP, "secret": "env:S"}, S="hunter2")
    assert "hunter2" not in str(failure.value)


def test_an_extra_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what installs it."""
    monkeypatch.setitem(sys.modules, "aiokafka", None)
    with pytest.raises(BadSink, match=r"pip install 'weighbridge\[kafka\]'"):
        opened(KAFKA)
    monkeypatch.setitem(sys.modules, "nats.aio.client", None)
    with pytest.raises(BadSink, match=r"pip install 'weighbridge\[nats\]'"):
        opened(NATS)


def test_a_file_that_is_no_certificate_is_told_at_the_start(tmp_path: Path) -> None:
    """And one that is not there."""
    (tmp_path / "ca.pem").write_text("no certificate")
    for name in ("ca.pem", "none.pem"):
        with pytest.raises(BadSink, match=r"sink `lake`.*PEM"):
            opened({**HTTP, "ca": tmp_path / name})


def test_headers_are_names_of_secrets() -> None:
    """In lower case, so that one is not set twice."""
    made = opened({**HTTP, "headers": {"X-Api-Key": "env:K"}, "format": "lago", "code": "llm"}, K="k")
    assert made.limits.events == 100
    with pytest.raises(BadSink, match="sink `lake`: a secret"):
        opened({**HTTP, "headers": {"X-Api-Key": "env:K"}})


@pytest.mark.parametrize("sink", [KAFKA, NATS])
def test_the_check_of_a_configuration_names_what_is_missing(
    sink: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of sink that needs an extra is in its table."""
    monkeypatch.setattr("gateway.configuration.extras.importlib.util.find_spec", lambda _name: None)
    config = GatewayConfig.model_validate(
        {
            "providers": {"models": [model("small", [{"kind": "scripted", "upstream_model": "ok"}])]},
            "events": {"sinks": [sink]},
        }
    )
    (found,) = extra_problems(config, Document("gateway.yaml", {}, {}))
    assert f"weighbridge[{sink['kind']}]" in str(found)
