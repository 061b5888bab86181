"""Request bodies that come compressed: Codex sends zstd, others gzip or deflate.

zstd is read by Python from 3.14 on, and by `backports.zstd` before.
"""

import importlib
import zlib
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from proxy.errors import BadRequest, BodyTooLarge, UnsupportedEncoding


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Coding(Protocol):
    def __call__(self) -> _Decompressor: ...


def _zstd() -> tuple[_Coding | None, tuple[type[Exception], ...]]:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        return module.ZstdDecompressor, (module.ZstdError,)
    return None, ()


_ZSTD, _ZSTD_ERRORS = _zstd()
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
_zlib: Final[Callable[[], _Decompressor]] = lambda: zlib.decompressobj(_GZIP_OR_ZLIB)  # noqa: E731
_CODINGS: Final[Mapping[bytes, _Coding]] = {
    **dict.fromkeys((b"gzip", b"x-gzip", b"deflate"), _zlib),
    **({} if _ZSTD is None else {b"zstd": _ZSTD}),
}
_KNOWN: Final = "gzip, deflate" + ("" if _ZSTD is None else ", zstd")
_ERRORS: Final[tuple[type[Exception], ...]] = (zlib.error, EOFError, *_ZSTD_ERRORS)


def unsupported(coding: bytes) -> UnsupportedEncoding:
    """Return the refusal of a coding that is not read, or not at this address."""
    if coding == b"zstd" and _ZSTD is None:
        return UnsupportedEncoding(
            "This gateway lacks `backports.zstd`, which its operators can install. Codex sends plain JSON with "
            "`-c features.enable_request_compression=false`."
        )
    return UnsupportedEncoding(f"Send the body without a `content-encoding`; JSON of models may come in {_KNOWN}.")


def is_read(coding: bytes) -> bool:
    """Return whether a coding, in lower case, can be undone."""
    return coding in _CODINGS


def decompressed(coding: bytes, body: bytes, limit: int) -> bytes:
    """Return a body without its coding, of at most `limit` bytes. Raises BodyTooLarge or BadRequest."""
    reader = _CODINGS[coding]()
    try:
        plain = reader.decompress(body, limit + 1)
    except _ERRORS as error:
        raise _broken(coding) from error
    if len(plain) > limit:
        raise BodyTooLarge(f"The request body has more than {limit} bytes once it is decompressed.")
    if not reader.eof or reader.unused_data:
        raise _broken(coding)
    return plain


def _broken(coding: bytes) -> BadRequest:
    return BadRequest(f"The request body is not whole as {coding.decode()}, though `content-encoding` says so.")
