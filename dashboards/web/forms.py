"""Form bodies: bounded, with fields that are read by name and validated."""

import asyncio
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from cost.amounts import BadAmount, amount_in, ungrouped
from proxy.errors import BadRequest, BodyTooLarge, UploadTimeout

MAX_FORM_BYTES: Final = 64 * 1024
MAX_FIELDS: Final = 500
FORM: Final = "application/x-www-form-urlencoded"
_PATIENCE_S: Final = 10.0
_MAX_DIGITS: Final = 15
_MAX_PLACES: Final = 12


class FormError(Exception):
    """A field is not valid. `field` names it; the message says how to correct it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


class Form:
    """A form's fields. Control characters except tabs and line ends are removed; text is stripped. Readers raise
    FormError.
    """

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        self._fields = fields

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    @property
    def plain(self) -> dict[str, str]:
        """Each field's last value, to fill the form in again."""
        return {name: values[-1] for name, values in self._fields.items() if name != "csrf"}

    def text(self, name: str, *, most: int = 200, required: bool = False) -> str:
        """Return a field's value, stripped; '' when it is missing."""
        value = (self._fields.get(name) or [""])[-1].strip()
        if required and not value:
            raise FormError(name, "This is needed.")
        if len(value) > most:
            raise FormError(name, f"At most {most} characters.")
        return value

    def secret(self, name: str, *, most: int = 1_024) -> str:
        """Return a field's value exactly as entered, for passwords."""
        value = (self._fields.get(name) or [""])[-1]
        if len(value) > most:
            raise FormError(name, f"At most {most} characters.")
        return value

    def texts(self, name: str, *, most: int = MAX_FIELDS) -> tuple[str, ...]:
        """Return all values of a field, without empty ones."""
        return tuple(value.strip() for value in self._fields.get(name, [])[:most] if value.strip())

    def flag(self, name: str) -> bool:
        """Return True if a checkbox is ticked."""
        return bool(self._fields.get(name))

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return one of the permitted words."""
        value = self.text(name)
        if value not in allowed:
            raise FormError(name, f"Choose one of: {', '.join(word or 'none' for word in allowed)}.")
        return value

    def number(self, name: str) -> str:
        """Return a number's text, without a dollar sign before it and commas between its thousands."""
        return ungrouped(self.text(name, most=40))

    def whole(self, name: str, *, least: int, most: int) -> int | None:
        """Return a whole number from `least` to `most`, or None when the field is empty."""
        value = self.number(name)
        if not value:
            return None
        sound = value.removeprefix("-")
        if not (sound.isascii() and sound.isdigit() and len(sound) <= _MAX_DIGITS and least <= int(value) <= most):
            raise FormError(name, f"A whole number from {least:,} to {most:,}.")
        return int(value)

    def day(self, name: str) -> date | None:
        """Return a day such as 2027-01-31; None for an empty field."""
        text = self.text(name, most=10)
        try:
            return date.fromisoformat(text) if text else None
        except ValueError as error:
            raise FormError(name, "A day such as 2027-01-31, or nothing.") from error

    def decimal(self, name: str, *, least: Decimal = Decimal(0), most: Decimal = Decimal(10) ** 9) -> Decimal | None:
        """Return a decimal number from `least` to `most`, or None when the field is empty."""
        value = self.text(name, most=40)
        if not value:
            return None
        bounds = f"A number from {least:,} to {most:,}."
        try:
            found = amount_in(value)
        except BadAmount as error:
            raise FormError(name, f"{bounds} {error}") from error
        if not least <= found <= most or found.as_tuple().exponent < -_MAX_PLACES:  # type: ignore[operator]
            raise FormError(name, bounds)
        return found


async def read_form(request: Request) -> Form:
    """Return the body as a form. Raises BodyTooLarge, UploadTimeout, or BadRequest, also when its sender goes before its end."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != FORM:
        raise BadRequest(f"Send a form as {FORM}.")
    try:
        async with asyncio.timeout(_PATIENCE_S):
            body = await _read_bounded(request)
    except TimeoutError as error:
        raise UploadTimeout("The form did not arrive in time; send it again.") from error
    except ClientDisconnect as error:
        # Nobody reads this one, and without it anybody could fill the log with tracebacks.
        raise BadRequest("The connection was closed before the form was here.") from error
    fields: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except (UnicodeDecodeError, ValueError) as error:
        raise BadRequest(f"The form cannot be read; it has at most {MAX_FIELDS} fields of UTF-8 text.") from error
    for name, value in pairs:
        fields.setdefault(name, []).append(_printable(value))
    return Form(fields)


async def _read_bounded(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_FORM_BYTES:
            raise BodyTooLarge(f"A form has at most {MAX_FORM_BYTES:,} bytes.")
        parts.append(part)
    return b"".join(parts)


def _printable(text: str) -> str:
    return "".join(char for char in text.replace("\r\n", "\n") if char >= " " or char in "\n\t")
