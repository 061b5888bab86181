"""Uploads: a form's fields as a body that a wire reads, and its file beside them, within limits of size and number."""

from typing import Final

import msgspec

from providers.upload import Upload
from proxy.errors import BadRequest, BodyTooLarge, Overloaded
from proxy.http.content_coding import unsupported
from proxy.http.exchange import Exchange
from proxy.http.multipart import Head, Multipart, missing_end

_MAX_FIELD_BYTES: Final = 16 * 1024
_MOST_FIELDS: Final = 20
_MOST_HELD_BYTES: Final = 2 * 1024**3
"""The most bytes of all uploads that one process holds on disk at once."""
_FILE: Final = "file"
_FRAMING_BYTES: Final = _MAX_FIELD_BYTES * _MOST_FIELDS
_MOST_NAME_CHARS: Final = 200


class Uploads:
    """A receiver of uploads that counts the bytes they hold together."""

    def __init__(self) -> None:
        self.held_bytes = 0

    async def take(self, exchange: Exchange, max_bytes: int) -> tuple[bytes, Upload]:
        """Return the form's fields as a JSON object, in which `file` describes the file, and the file, which the
        caller of this must close. Raises BadRequest, BodyTooLarge, Overloaded, UnsupportedEncoding, and the errors of
        reading a body.
        """
        if exchange.is_encoded:
            raise unsupported(exchange.coding)
        parser = Multipart((exchange.field(b"content-type") or b"").decode("latin-1"))
        if (exchange.length or 0) > max_bytes + _FRAMING_BYTES:
            raise _too_large(max_bytes)
        form = _Form(self, max_bytes)
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

    def __init__(self, uploads: Uploads, max_bytes: int) -> None:
        self._uploads = uploads
        self._max_bytes = max_bytes
        self._fields: dict[str, list[bytes]] = {}
        self._upload: Upload | None = None
        self._part = ""

    async def add(self, found: Head | bytes) -> None:
        """Add a part's beginning, or a piece of the part that began last. Raises BadRequest, BodyTooLarge,
        Overloaded.
        """
        if isinstance(found, Head):
            self._begin(found)
        elif self._part == _FILE and self._upload is not None:
            if self._upload.size + len(found) > self._max_bytes:
                raise _too_large(self._max_bytes)
            self._uploads.hold(len(found))
            await self._upload.write(found)
        else:
            values = self._fields[self._part]
            values[-1] += found
            if len(values[-1]) > _MAX_FIELD_BYTES:
                raise BadRequest(f"The field `{self._part[:40]}` is too long.", param=self._part[:40])

    def _begin(self, head: Head) -> None:
        self._part = name = head.name
        if name != _FILE:
            self._fields.setdefault(name, []).append(b"")
            return
        if self._upload is not None:
            raise BadRequest("There are two parts `file`; send one file at a time.", param=_FILE)
        filename = (head.filename or "upload").rpartition("/")[2].rpartition("\\")[2][:_MOST_NAME_CHARS]
        self._upload = Upload(filename, head.content_type or "application/octet-stream", self._uploads.give_back)

    async def whole(self, parser: Multipart) -> tuple[bytes, Upload]:
        """Return the fields as JSON, and the file. Raises BadRequest without a file, or without the form's end."""
        if not parser.is_complete:
            raise missing_end()
        if self._upload is None:
            raise BadRequest("There is no part `file`.", param=_FILE)
        told = {"name": self._upload.filename, "bytes": self._upload.size, "digest": self._upload.digest}
        await self._upload.written()
        fields = {name: _value(each) for name, each in self._fields.items()}
        return msgspec.json.encode({**fields, _FILE: told}), self._upload

    def close(self) -> None:
        if self._upload is not None:
            self._upload.close()


def _value(values: list[bytes]) -> str | list[str]:
    texts = [each.decode("utf-8", "replace") for each in values]
    return texts[0] if len(texts) == 1 else texts


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The file is larger than {max_bytes} bytes, the limit of this gateway (`server.max_upload_bytes`); send it in parts."
    )
