"""Keys of providers that stand in files (`file:PATH`): read again when their file is replaced, each with the one before it.

A file that another one takes the place of (a rename, Kubernetes' swap of a link) is read at the next look; one that is written over is
read once two looks find it the same, as half a key would be refused. An empty or missing file changes nothing, nor does what no key can be:
a pipe, which would be waited at for ever, 64 KiB, several lines.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from providers.key_metrics import KeyMetrics
from providers.secret_references import read_secret_file
from settings.secret_ref import SecretRef

OVERLAP_S: Final = 900.0
"""How long the key before is tried where the new one is refused, and the other way round."""
REFUSED_S: Final = 30.0
"""How long a refused key comes second."""
_LOOKED_AGAIN_S: Final = 1.0
_DIGEST_CHARS: Final = 8
_log: Final = logging.getLogger("weighbridge.keys")


class _Look(NamedTuple):
    """What tells a file from the one before it, without reading it."""

    place: tuple[int, int]
    size: int
    written_ns: int


class _KeyFile:
    """One file's key."""

    __slots__ = (
        "before",
        "before_until",
        "key",
        "look",
        "looking",
        "read_again_at",
        "refused_until",
        "told",
        "unsettled",
    )

    def __init__(self, key: str, look: _Look | None) -> None:
        self.key = key
        self.look = look
        self.unsettled: _Look | None = None
        """A look at a file that was written over, which the next has to equal."""
        self.before = ""
        self.before_until = 0.0
        self.refused_until = 0.0
        """Until when `before` comes first, as `key` was refused and it was not."""
        self.looking = asyncio.Lock()
        self.read_again_at = 0.0
        self.told = ""
        """Why it could not be read at the last look, which is logged once."""


def digest_of(key: str) -> str:
    """Return what a key is called in logs and metrics: the first 8 digits of its SHA-256."""
    return hashlib.sha256(key.encode()).hexdigest()[:_DIGEST_CHARS]


class KeyFiles:
    """The keys of one process that stand in files. `read` makes one known, `look` finds the replaced ones."""

    def __init__(
        self,
        otherwise: Callable[[SecretRef], str],
        metrics: KeyMetrics | None = None,
        *,
        clock: Callable[[], float],
        wall_s: Callable[[], float],
    ) -> None:
        self._otherwise = otherwise
        self._metrics = metrics
        self._clock = clock
        self._wall_s = wall_s
        self._files: dict[SecretRef, _KeyFile] = {}
        self._by_key: dict[str, _KeyFile] = {}
        self._is_changed = False

    def read(self, reference: SecretRef) -> str:
        """Return the secret as it is now, whether or not its file changed. Raises LookupError or OSError."""
        if not reference.startswith("file:"):
            return self._otherwise(reference)
        look = _look(reference)
        key = read_secret_file(reference)
        known = self._files.get(reference)
        if known is None:
            self._files[reference] = known = _KeyFile(key, look)
            self._note(reference, known)
        elif key:
            self._take(reference, known, key, look)
        return key

    def current(self, reference: SecretRef) -> str:
        """Return the secret as it was read last, without a look at its file. Raises LookupError or OSError."""
        known = self._files.get(reference)
        return self.read(reference) if known is None else known.key

    def keep(self, references: Iterable[SecretRef]) -> None:
        """Forget all files but these: no others are configured any more."""
        kept = set(references)
        for reference in [each for each in self._files if each not in kept]:
            gone = self._files.pop(reference)
            self._by_key = {key: each for key, each in self._by_key.items() if each is not gone}
            if self._metrics is not None:
                self._metrics.forget(reference, digest_of(gone.key))

    def look(self) -> bool:
        """Read the files that were replaced. Return True where a key changed since the last look; it may wait for a disk."""
        for reference, known in list(self._files.items()):
            now = _look(reference)
            if now is None or now == known.look:
                continue
            is_written_over = known.look is not None and now.place == known.look.place
            if is_written_over and known.unsettled != now:
                known.unsettled = now
                continue
            self._reread(reference, known, now)
        changed, self._is_changed = self._is_changed, False
        return changed

    @property
    def has_files(self) -> bool:
        """True where any key stands in a file."""
        return bool(self._files)

    def knows(self, key: str | None) -> bool:
        """Return True for a key that came from a file."""
        return key in self._by_key

    def first(self, key: str) -> str:
        """Return the key to call with in place of a known one: the one before it while it is refused."""
        known = self._by_key.get(key)
        if known is None or key != known.key or not known.refused_until:
            return key
        return known.before if self._clock() < min(known.refused_until, known.before_until) else key

    async def after_refusal(self, key: str) -> str | None:
        """Return the key to try in place of a refused one: what its file holds by now, or within the overlap the one before. None without."""
        known = self._by_key.get(key)
        if known is None:
            return None
        if self._metrics is not None:
            self._metrics.refused(digest_of(key))
        if key == known.key:
            async with known.looking:
                if key == known.key and self._clock() >= known.read_again_at:
                    known.read_again_at = self._clock() + _LOOKED_AGAIN_S
                    await asyncio.to_thread(self._reread_of, known)
        if key != known.key:
            return known.key
        return known.before if known.before and self._clock() < known.before_until else None

    def went_on(self, refused: str, key: str) -> None:
        """Note that a call was taken with `key` after `refused` was not."""
        known = self._by_key.get(key)
        if known is None:
            return
        now = self._clock()
        if key == known.before and refused == known.key:
            if now >= known.refused_until:
                _log.warning(
                    "the key %s is refused: calls go on with %s, the one before it, for up to %d s",
                    digest_of(refused),
                    digest_of(key),
                    max(0, known.before_until - now),
                )
            known.refused_until = now + REFUSED_S
        elif key == known.key:
            known.refused_until = 0.0

    def _reread_of(self, known: _KeyFile) -> None:
        for reference, each in list(self._files.items()):
            if each is known:
                self._reread(reference, known, _look(reference))

    def _reread(self, reference: SecretRef, known: _KeyFile, now: _Look | None) -> None:
        try:
            key = read_secret_file(reference)
        except (OSError, ValueError) as error:
            # The words of a decoder's error hold a part of the key.
            self._cannot(
                reference, known, (error.strerror if isinstance(error, OSError) else "") or type(error).__name__
            )
            return
        if not key.isprintable():
            # As at a start: it would break out of its header.
            self._cannot(reference, known, "it contains a line end or another control character")
            return
        known.told = ""
        if key:
            self._take(reference, known, key, now)
        else:
            known.look, known.unsettled = now, None
            _log.warning("%s is empty, the key before stays", reference)

    def _cannot(self, reference: SecretRef, known: _KeyFile, told: str) -> None:
        if told != known.told:
            known.told = told
            _log.warning("%s cannot be read, the key before stays: %s", reference, told)

    def _take(self, reference: SecretRef, known: _KeyFile, key: str, look: _Look | None) -> None:
        known.look, known.unsettled = look, None
        if key == known.key:
            return
        self._by_key.pop(known.before, None)
        known.before, known.key = known.key, key
        known.before_until, known.refused_until = self._clock() + OVERLAP_S, 0.0
        self._is_changed = True
        self._note(reference, known)

    def _note(self, reference: SecretRef, known: _KeyFile) -> None:
        self._by_key[known.key] = known
        if self._metrics is not None:
            self._metrics.read(reference, digest_of(known.key), self._wall_s(), digest_of(known.before))
        if known.before:
            _log.warning("%s: the key %s is in use, after %s", reference, digest_of(known.key), digest_of(known.before))


def _look(reference: SecretRef) -> _Look | None:
    """Return what the file looks like, links followed; None where there is none."""
    try:
        found = Path(reference.removeprefix("file:")).stat()
    except OSError:
        return None
    return _Look((found.st_dev, found.st_ino), found.st_size, found.st_mtime_ns)
