"""Password rules, and Argon2id hashes that are made and checked in threads beside the event loop."""

import asyncio
import threading
import unicodedata
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from accounts.people.people_errors import SignInBusy, WeakPassword

Result = TypeVar("Result")

MAX_CHARS: Final = 256
# A letter can be typed as several characters that make one.
_MAX_TYPED_CHARS: Final = 4 * MAX_CHARS
# OWASP's first choice of parameters: 19 MiB, two passes, one lane.
MEMORY_KIB: Final = 19_456
PASSES: Final = 2
LANES: Final = 1
_MIN_DIFFERENT_CHARS: Final = 5
_MIN_KNOWN_WORD_CHARS: Final = 4
# Each takes 19 MiB and a core; a flood waits here and takes neither from requests to models.
_MAX_CONCURRENT: Final = 2
_MAX_WAITING: Final = 64


class Hasher(Protocol):
    """The part of `argon2.PasswordHasher` that is used."""

    def hash(self, password: str) -> str: ...

    def verify(self, hash: str, password: str) -> bool: ...  # noqa: A002 - its parameter's name

    def check_needs_rehash(self, hash: str) -> bool: ...  # noqa: A002 - as above


def argon2id() -> Hasher:
    """Return an Argon2id hasher with the first parameters of OWASP's Password Storage Cheat Sheet."""
    return PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=LANES)


class Passwords:
    """The hasher and verifier of passwords, two at a time; when too many wait, the next raises SignInBusy at once."""

    def __init__(self, *, min_chars: int, hasher: Hasher | None = None, waiting: int = _MAX_WAITING) -> None:
        self._min_chars = min_chars
        self._hasher = hasher or argon2id()
        self._threads = ThreadPoolExecutor(_MAX_CONCURRENT, thread_name_prefix="passwords")
        self._slots = threading.BoundedSemaphore(_MAX_CONCURRENT + waiting)
        self._cached_dummy_hash: str | None = None

    async def hash(self, password: str) -> str:
        """Return the Argon2id hash in PHC notation, with its parameters and salt. Raises SignInBusy."""
        plain = _normalized(password)
        return await self._in_thread(lambda: self._hasher.hash(plain))

    async def matches(self, password: str, stored: str | None) -> bool:
        """Return True when the password fits the hash; with None, False after the same work. Raises SignInBusy."""
        plain = _normalized(password)
        compared = stored if len(password) <= _MAX_TYPED_CHARS else None
        return await self._in_thread(lambda: self._verify(plain, compared))

    def is_weaker(self, stored: str) -> bool:
        """Return True when the hash was made with other parameters than today's."""
        return self._hasher.check_needs_rehash(stored)

    def check(self, password: str, *, known: Iterable[str] = ()) -> None:
        """Raise WeakPassword, whose message says what to do. `known` are words that others know of the person."""
        plain = _normalized(password)
        if len(plain) < self._min_chars:
            raise WeakPassword(f"Use at least {self._min_chars} characters; a few words in a row are easy to remember.")
        if len(plain) > MAX_CHARS or len(password) > _MAX_TYPED_CHARS:
            raise WeakPassword(f"Use at most {MAX_CHARS} characters.")
        if len(set(plain)) < _MIN_DIFFERENT_CHARS:
            raise WeakPassword(f"Use at least {_MIN_DIFFERENT_CHARS} different characters.")
        folded = plain.casefold()
        for word in known:
            # What remains once the word is taken out has to be a password by itself, if a short one.
            if len(word) >= _MIN_KNOWN_WORD_CHARS and len(folded.replace(word.casefold(), "")) < self._min_chars // 2:
                raise WeakPassword("Use a password that is not made of your name, e-mail address or organisation.")

    def _verify(self, plain: str, stored: str | None) -> bool:
        # Made before it is known whether it is needed, so that the first attempt's time tells nothing either.
        dummy = self._dummy_hash()
        return self._verifies(plain, stored or dummy) and stored is not None

    def _dummy_hash(self) -> str:
        if self._cached_dummy_hash is None:
            self._cached_dummy_hash = self._hasher.hash("of nobody")
        return self._cached_dummy_hash

    def _verifies(self, plain: str, stored: str) -> bool:
        try:
            return self._hasher.verify(stored, plain)
        except (VerificationError, InvalidHashError):
            return False

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        if not self._slots.acquire(blocking=False):
            raise SignInBusy
        try:
            future = self._threads.submit(work)
        except BaseException:
            self._slots.release()
            raise
        # In the thread's own callback: a caller that goes away leaves the work running, and it still takes its room.
        future.add_done_callback(self._release_slot)
        return await asyncio.wrap_future(future)

    def _release_slot(self, _future: "Future[Result]") -> None:
        self._slots.release()


def _normalized(password: str) -> str:
    """Return the NFKC form, so that the same password typed on another keyboard is equal."""
    return unicodedata.normalize("NFKC", password[:_MAX_TYPED_CHARS])
