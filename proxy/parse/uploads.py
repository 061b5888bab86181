"""Uploads: a form's fields as a body that a wire reads, and its file beside them, within limits of size and number."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from providers.upload import Upload
from proxy.errors import BadRequest, BodyTooLarge, Overloaded
from proxy.http.content_coding import unsupported
from proxy.http.exchange import Exchange
from proxy.http.multipart import Head, Multipart, missing_end

_MAX_FIELD_BYTES: Final = 16 * 1024
_MOST_FIELDS: Final = 40
_MOST_HELD_BYTES: Final = 2 * 1024**3
"""The most bytes of all uploads that one process holds on disk at once."""
_FRAMING_BYTES: Final = _MAX_FIELD_BYTES * _MOST_FIELDS
_MOST_NAME_CHARS: Final = 200


class Uploads:
    """A receiver of uploads that counts the bytes they hold together."""

    def __init__(self) -> None:
        self.held_bytes = 0

    async def take(self, exchange: Exchange, max_bytes: int, parts: Mapping[str, int]) -> tuple[bytes, Upload]:
        """Return the form's fields as a JSON object, in which each of these `parts` describes its file, or is a list of several, and
        the files, which the caller of this must close. `max_bytes` bounds them together. Raises BadRequest, BodyTooLarge, Overloaded, UnsupportedEncoding, and the errors of
        reading a body.
        """
        if exchange.is_encoded:
            raise unsupported(exchange.coding)
        parser = Multipart((exchange.field(b"content-type") or b"").decode("latin-1"))
        if (exchange.length or 0) > max_bytes + _FRAMING_BYTES:
            raise _too_large(max_bytes)
        form = _Form(self, max_bytes, parts)
        try:
            while data := await exchange.read():
                for found in parser.feed(data):
                    await form.add(found)
            return await form.whole(parser)
        except OSError as error:
            form.close()
            raise Overloaded(
                "There is no room for uploads on this gateway's disk; try again shortly.", retry_after_s=5.0
            ) from error
        except BaseException:
            form.close()
            raise

    def hold(self, count: int) -> None:
        """Count `count` bytes more. Raises Overloaded."""
        if self.held_bytes + count > _MOST_HELD_BYTES:
            raise Overloaded(
                "This gateway process holds as many uploads as it may; try again shortly.", retry_after_s=5.0
            )
        self.held_bytes += count

    def give_back(self, count: int) -> None:
        self.held_bytes -= count


class _Form:
    """A form as it comes in."""

    def __init__(self, uploads: Uploads, max_bytes: int, parts: Mapping[str, int]) -> None:
        self._uploads = uploads
        self._max_bytes = max_bytes
        self._fields: dict[str, list[bytes]] = {}
        self._parts = parts
        self._needed = next(iter(parts))
        self._files: list[Upload] = []
        self._is_file = False
        self._part = ""

    async def add(self, found: Head | bytes) -> None:
        """Add a part's beginning, or a piece of the part that began last. Raises BadRequest, BodyTooLarge,
        Overloaded.
        """
        if isinstance(found, Head):
            self._begin(found)
        elif self._is_file:
            if sum(each.size for each in self._files) + len(found) > self._max_bytes:
                raise _too_large(self._max_bytes)
            self._uploads.hold(len(found))
            await self._files[-1].write(found)
        else:
            values = self._fields[self._part]
            values[-1] += found
            if len(values[-1]) > _MAX_FIELD_BYTES:
                raise BadRequest(f"The field `{self._part[:40]}` is too long.", param=self._part[:40])

    def _begin(self, head: Head) -> None:
        self._part = name = head.name
        most = self._parts.get(name)
        self._is_file = most is not None
        if most is None:
            self._fields.setdefault(name, []).append(b"")
            return
        # `image` and `image[]` are two names of one list.
        plain = name.removesuffix("[]")
        if sum(each.part.removesuffix("[]") == plain for each in self._files) >= most:
            many = f"more than {most} parts" if most > 1 else "two parts"
            raise BadRequest(f"There are {many} `{name}`; send {most} at most.", param=name)
        filename = (head.filename or "upload").rpartition("/")[2].rpartition("\\")[2][:_MOST_NAME_CHARS]
        kind = head.content_type or "application/octet-stream"
        self._files.append(Upload(filename, kind, self._uploads.give_back, part=name))

    async def whole(self, parser: Multipart) -> tuple[bytes, Upload]:
        """Return the fields as JSON, and the files. Raises BadRequest without the needed one, or without the form's end."""
        if not parser.is_complete:
            raise missing_end()
        if not any(each.part.removesuffix("[]") == self._needed for each in self._files):
            raise BadRequest(f"There is no part `{self._needed}`.", param=self._needed)
        told: dict[str, list[dict[str, Any]]] = {}
        for each in self._files:
            await each.written()
            told.setdefault(each.part, []).append({"name": each.filename, "bytes": each.size, "digest": each.digest})
        fields = {name: _value(each) for name, each in self._fields.items()}
        files = {name: each[0] if self._parts[name] == 1 else each for name, each in told.items()}
        first, *more = self._files
        first.more = more
        return msgspec.json.encode({**fields, **files}), first

    def close(self) -> None:
        for each in self._files:
            each.close()


def _value(values: list[bytes]) -> str | list[str]:
    texts = [each.decode("utf-8", "replace") for each in values]
    return texts[0] if len(texts) == 1 else texts


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The file is larger than {max_bytes} bytes, the limit of this gateway (`server.max_upload_bytes`); send it in parts."
    )
