"""Signatures: the standard's own example, its secrets' form, and two clients that others wrote."""

import base64
import time
from typing import Any

import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from api.webhooks.outbox import envelope
from api.webhooks.signature import BadSecret, signed_headers, signing_key
from tests.api.webhooks.receiver import OLDER_SECRET, SECRET


def test_the_examples_signature() -> None:
    """What the standard's reference signs comes out the same."""
    key = signing_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}', [key])
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "plain words",
        "whsec_",
        "whsec_@@@@",
        "whsec_é",
        "whsec_" + base64.b64encode(b"x" * 23).decode(),
        "whsec_" + base64.b64encode(b"x" * 65).decode(),
        base64.b64encode(b"x" * 32).decode(),
    ],
)
def test_a_secret_of_another_form_is_refused_and_not_shown(secret: str) -> None:
    """Too short, too long, without its prefix or not base64."""
    with pytest.raises(BadSecret) as refused:
        signing_key(secret)
    assert len(secret) < 7 or secret not in str(refused.value)


def _signed(*secrets: str) -> tuple[bytes, dict[str, str]]:
    body = envelope("msg_1", "budget.threshold_reached", time.time_ns() // 1_000, {"percent": 80})
    return body, signed_headers("msg_1", int(time.time()), body, [signing_key(each) for each in secrets])


@pytest.mark.parametrize("secret", [SECRET, OLDER_SECRET])
def test_the_openai_client_unwraps_it_with_either_secret(secret: str) -> None:
    """While a secret is replaced, receivers with the old and with the new one both verify; others do not."""
    client = OpenAI(api_key="unused")
    body, headers = _signed(SECRET, OLDER_SECRET)
    event: Any = client.webhooks.unwrap(body, headers, secret=secret)
    assert (event.id, event.object, event.type) == ("msg_1", "event", "budget.threshold_reached")
    assert abs(event.created_at - time.time()) < 60
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.unwrap(body + b" ", headers, secret=secret)
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.unwrap(body, headers, secret="whsec_" + base64.b64encode(b"y" * 32).decode())


def test_the_standards_own_package_verifies_it() -> None:
    """Payload and headers are what Standard Webhooks 1.0 asks for."""
    standard = pytest.importorskip("standardwebhooks", reason="the package standardwebhooks is not installed")
    body, headers = _signed(SECRET, OLDER_SECRET)
    for secret in (SECRET, OLDER_SECRET):
        payload = standard.Webhook(secret).verify(body, headers)
        assert {"type", "timestamp", "data"} <= payload.keys()
    with pytest.raises(standard.WebhookVerificationError):
        standard.Webhook(SECRET).verify(body.replace(b"80", b"81"), headers)
