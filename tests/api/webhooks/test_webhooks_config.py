"""Where messages may go is the operator's configuration, strictly read."""

from typing import Any

import pytest
from pydantic import ValidationError

from api.webhooks.webhooks_config import WebhooksSection

GOOD = {"name": "ops", "url": "https://example.com/hooks?x=1", "secret": "env:OPS_SECRET"}


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://10.0.0.8:8443/hooks",
        "http://127.0.0.1:9000/hooks",
        "http://[::1]/hooks",
        "http://localhost/",
    ],
)
def test_addresses_that_are_taken(url: str) -> None:
    """HTTPS anywhere, plain HTTP on this machine."""
    assert WebhooksSection.model_validate({"destinations": [{**GOOD, "url": url}]}).names() == ("ops",)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "http://example.com/hooks"),
        ("url", "http://localhost.example.com/"),
        ("url", "http://127.0.0.1.example.com/"),
        ("url", "https://user:password@example.com/"),
        ("url", "https://user@example.com/"),
        ("url", "https://"),
        ("url", "https:///hooks"),
        ("url", "https://example.com:0/"),
        ("url", "https://example.com:99999/"),
        ("url", "https://example.com/#part"),
        ("url", "https://example.com/\r\nx: y"),
        ("url", "https://exämple.com/"),
        ("url", "ftp://example.com/"),
        ("url", "file:///etc/passwd"),
        ("url", "https://example.com/" + "x" * 2_000),
        ("name", ""),
        ("name", "Ops Team"),
        ("name", "x" * 65),
        ("secret", "whsec_c2l4IHRpbWVzIGZpdmUgaXMgdGhpcnR5IGJ5dGVz"),
    ],
)
def test_what_is_refused(field: str, value: str) -> None:
    """No plain HTTP to other machines, no passwords in an address, no secret in the file; none is repeated."""
    with pytest.raises(ValidationError) as refused:
        WebhooksSection.model_validate({"destinations": [{**GOOD, field: value}]})
    assert field != "secret" or value not in str(refused.value)


def test_names_are_unique() -> None:
    """Two destinations of one name could not be told apart."""
    twice: list[Any] = [GOOD, {**GOOD, "url": "https://example.org/"}]
    with pytest.raises(ValidationError, match="two destinations are named `ops`"):
        WebhooksSection.model_validate({"destinations": twice})
