"""A file that a caller uploaded, on its way to an upstream: the beginning in memory, a larger one in an unnamed file."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from hashlib import blake2b
from typing import Final

_IN_MEMORY_BYTES: Final = 64 * 1024
_AT_ONCE: Final = 256 * 1024


class Upload:
    """A file that is written once and may be read several times, as each attempt at an upstream reads it anew.

    Of a file of any size at most a few hundred kilobytes are in memory. What is on disk has no name, so nobody else opens
    it and it is gone with the process.
    """

    __slots__ = ("_digest", "_file", "_give_back", "_held", "content_type", "filename", "head", "more", "part", "size")

    def __init__(
        self, filename: str, content_type: str, give_back: Callable[[int], None], *, part: str = "file"
    ) -> None:
        """`give_back` is told the size once the file is closed; `part` is its name in the form."""
        self.part = part
        self.more: list[Upload] = []
        """Further files of the same form, in their order."""
        self.filename = filename
        self.content_type = content_type
        self.size = 0
        self.head = b""
        """Its first bytes."""
        self._held = bytearray()
        self._file: int | None = None
        self._digest = blake2b(digest_size=16)
        self._give_back = give_back

    @property
    def files(self) -> "tuple[Upload, ...]":
        """The form's files, this one first."""
        return (self, *self.more)

    @property
    def whole_size(self) -> int:
        """Bytes of all the form's files."""
        return sum(each.size for each in self.files)

    @property
    def digest(self) -> str:
        """A hash of what was written, by which a repeated request is known."""
        return self._digest.hexdigest()

    async def write(self, data: bytes) -> None:
        """Add a piece. Raises OSError when the disk is full."""
        if len(self.head) < _HEAD_BYTES:
            self.head += data[: _HEAD_BYTES - len(self.head)]
        self.size += len(data)
        self._digest.update(data)
        self._held += data
        if len(self._held) > (_IN_MEMORY_BYTES if self._file is None else _AT_ONCE):
            await self._spill()

    async def written(self) -> None:
        """Wait until everything was written. Raises OSError."""
        if self._file is not None and self._held:
            await self._spill()

    async def _spill(self) -> None:
        data, self._held = bytes(self._held), bytearray()
        if self._file is None:
            self._file = await asyncio.to_thread(_unnamed)
        await asyncio.to_thread(_write_all, self._file, data)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the whole file, a bounded piece at a time."""
        if self._file is None:
            yield bytes(self._held)
            return
        at = 0
        while piece := await asyncio.to_thread(os.pread, self._file, _AT_ONCE, at):
            at += len(piece)
            yield piece

    def close(self) -> None:
        """Forget the file, and the form's further ones. Idempotent."""
        for each in self.more:
            each.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._held = bytearray()
        self._give_back(self.size)
        self._give_back = _nothing


_HEAD_BYTES: Final = 64


def _nothing(_size: int) -> None:
    pass


def _unnamed() -> int:
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
