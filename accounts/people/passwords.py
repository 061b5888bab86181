"""Passwords: which are good enough, and their Argon2id hashes, made and checked beside the event loop."""

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
_MOST_TYPED: Final = 4 * MAX_CHARS
# OWASP's first choice of parameters: 19 MiB, two passes, one lane.
MEMORY_KIB: Final = 19_456
PASSES: Final = 2
LANES: Final = 1
_FEWEST_DIFFERENT: Final = 5
_FEWEST_TELLING: Final = 4
# Each takes 19 MiB and a core; a flood waits here and takes neither from requests to models.
_AT_ONCE: Final = 2
_WAITING: Final = 64


class Hasher(Protocol):
    """What is used of `argon2.PasswordHasher`."""

    def hash(self, password: str) -> str: ...

    def verify(self, hash: str, password: str) -> bool: ...  # noqa: A002 - its parameter's name

    def check_needs_rehash(self, hash: str) -> bool: ...  # noqa: A002 - as above


def argon2id() -> Hasher:
    """Argon2id as OWASP recommends it."""
    return PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=LANES)


class Passwords:
    """Hashes and checks a few at a time; when too many wait, the next is refused at once."""

    def __init__(self, *, min_chars: int, hasher: Hasher | None = None, waiting: int = _WAITING) -> None:
        self._min_chars = min_chars
        self._hasher = hasher or argon2id()
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="passwords")
        self._room = threading.BoundedSemaphore(_AT_ONCE + waiting)
        self._nobodys: str | None = None

    async def hash(self, password: str) -> str:
        """In PHC's notation, with its parameters and salt."""
        plain = _normal(password)
        return await self._beside(lambda: self._hasher.hash(plain))

    async def matches(self, password: str, stored: str | None) -> bool:
        """Whether it is the password. Without a stored one the answer is no, after the same work."""
        plain = _normal(password)
        compared = stored if len(password) <= _MOST_TYPED else None
        return await self._beside(lambda: self._verify(plain, compared))

    def is_weaker(self, stored: str) -> bool:
        """Whether the hash was made with other parameters than those of today."""
        return self._hasher.check_needs_rehash(stored)

    def check(self, password: str, *, known: Iterable[str] = ()) -> None:
        """Raises WeakPassword, which says what to do. `known`: what everybody knows of the person."""
        plain = _normal(password)
        if len(plain) < self._min_chars:
            raise WeakPassword(f"Use at least {self._min_chars} characters; a few words in a row are easy to remember.")
        if len(plain) > MAX_CHARS or len(password) > _MOST_TYPED:
            raise WeakPassword(f"Use at most {MAX_CHARS} characters.")
        if len(set(plain)) < _FEWEST_DIFFERENT:
            raise WeakPassword(f"Use at least {_FEWEST_DIFFERENT} different characters.")
        folded = plain.casefold()
        for word in known:
            # What remains once the word is taken out has to be a password by itself, if a short one.
            if len(word) >= _FEWEST_TELLING and len(folded.replace(word.casefold(), "")) < self._min_chars // 2:
                raise WeakPassword("Use a password that is not made of your name, e-mail address or organisation.")

    def _verify(self, plain: str, stored: str | None) -> bool:
        # Made before it is known whether it is needed, so that the first attempt tells nothing either.
        nobodys = self._nobodys_hash()
        return self._try(plain, stored or nobodys) and stored is not None

    def _nobodys_hash(self) -> str:
        if self._nobodys is None:
            self._nobodys = self._hasher.hash("of nobody")
        return self._nobodys

    def _try(self, plain: str, stored: str) -> bool:
        try:
            return self._hasher.verify(stored, plain)
        except (VerificationError, InvalidHashError):
            return False

    async def _beside(self, work: Callable[[], Result]) -> Result:
        if not self._room.acquire(blocking=False):
            raise SignInBusy
        try:
            future = self._threads.submit(work)
        except BaseException:
            self._room.release()
            raise
        # In the thread's own callback: a caller that goes away leaves the work running, and it still takes its room.
        future.add_done_callback(self._leave)
        return await asyncio.wrap_future(future)

    def _leave(self, _future: "Future[Result]") -> None:
        self._room.release()


def _normal(password: str) -> str:
    """The same for a password typed on another keyboard."""
    return unicodedata.normalize("NFKC", password[:_MOST_TYPED])
