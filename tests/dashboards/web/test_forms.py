"""What forms send."""

from decimal import Decimal

import pytest
from starlette.requests import Request
from starlette.types import Message

from dashboards.web.forms import FORM, MAX_FORM_BYTES, Form, FormError, read_form
from proxy.errors import BadRequest, BodyTooLarge


def sent(*parts: bytes, kind: str = FORM) -> Request:
    waiting = list(parts)

    async def receive() -> Message:
        body = waiting.pop(0) if waiting else b""
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", kind.encode())]}
    return Request(scope, receive)


async def test_fields() -> None:
    """Several values of a name are kept, control characters are not, and a password stays as it was typed."""
    form = await read_form(
        sent(b"name=+a%00b%0D%0Ac+&box=on&team=x&team=y", b"&word=+p+&csrf=t", kind=f"{FORM}; charset=utf-8")
    )
    assert form.text("name") == "ab\nc"
    assert form.texts("team") == ("x", "y")
    assert form.flag("box")
    assert not form.flag("other")
    assert form.secret("word") == " p "
    assert form.plain == {"name": " ab\nc ", "box": "on", "team": "y", "word": " p "}


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (sent(b"a=1", kind="application/json"), BadRequest),
        (sent(b"a=1", kind="multipart/form-data"), BadRequest),
        (sent(b"a=%FF"), BadRequest),
        (sent(b"&".join([b"a=1"] * 501)), BadRequest),
        (sent(b"a=" + b"x" * MAX_FORM_BYTES), BodyTooLarge),
        (sent(*[b"x" * 1_000] * 70), BodyTooLarge),
    ],
)
async def test_refused(request_: Request, kind: type[Exception]) -> None:
    """What is no form, is too large or cannot be read is refused, whatever its length was said to be."""
    with pytest.raises(kind):
        await read_form(request_)


async def test_whoever_goes_before_the_end_is_no_failure_of_ours() -> None:
    """It is refused as any other broken form: what is no refusal of ours is logged with its traceback."""
    told: list[Message] = [
        {"type": "http.request", "body": b"a=", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return told.pop(0)

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", FORM.encode())]}
    with pytest.raises(BadRequest):
        await read_form(Request(scope, receive))


def form(**fields: str) -> Form:
    return Form({name: [value] for name, value in fields.items()})


@pytest.mark.parametrize("value", ["1.5", "1e3", "²", "-1", "11", "9" * 30, "0x1", "\u0661"])
def test_whole_numbers_in_their_bounds(value: str) -> None:
    """Anything else is told with the bounds."""
    with pytest.raises(FormError, match="from 0 to 10") as told:
        form(n=value).whole("n", least=0, most=10)
    assert told.value.field == "n"


@pytest.mark.parametrize("value", ["NaN", "inf", "-1", "1e99", "abc", "0.0000000000001"])
def test_decimals_in_their_bounds(value: str) -> None:
    """No amount is anything but a number."""
    with pytest.raises(FormError):
        form(n=value).decimal("n")


def test_sound_numbers() -> None:
    """And what is left empty is None."""
    assert form(n=" 7 ").whole("n", least=0, most=10) == 7
    assert form(n="12.50").decimal("n") == Decimal("12.50")
    assert form().whole("n", least=0, most=1) is None
    assert form(n="").decimal("n") is None


def test_texts_are_bounded() -> None:
    """Too long, missing, or none of the words that are allowed."""
    with pytest.raises(FormError):
        form(n="x" * 201).text("n")
    with pytest.raises(FormError):
        form(n=" ").text("n", required=True)
    with pytest.raises(FormError):
        form(n="c").one_of("n", ("a", "b"))
    assert form(n="").one_of("n", ("", "b")) == ""
