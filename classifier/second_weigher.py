"""The second weigher: a sentence encoder beside the lexical network, asked only where a decision hangs on it.

It runs off the event loop, on one thread of its own, within a deadline; whoever comes while its queue is
full, or waits longer than that, goes by the first weigher's answer. Where asking it changes next to no
decision of a team, it is left out for that team, and tried again now and then.
"""

import asyncio
import hashlib
import io
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.columns import read_columns
from classifier.encoder import MODEL_FILE, VOCABULARY_FILE, read_encoder
from classifier.features import CONTEXT_CHARS, FOLLOW_UP_CHARS
from classifier.manifest import ArtifactMalformed, ArtifactMismatch, ArtifactMissing, Manifest, read_limited
from classifier.prediction import Prompt

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

HEAD_FILE: Final = "encoder_head.npz"
FILES: Final = (MODEL_FILE, VOCABULARY_FILE, HEAD_FILE)
MAX_FILE_BYTES: Final = 32 * 2**20
DEADLINE_S: Final = 0.1
QUEUE: Final = 16
"""At most; and never more than are usually done within the deadline."""
_FADE: Final = 0.2
"""How fast the usual time follows the latest ones."""
TEAMS: Final = 1_024
WINDOW: Final = 200
LEAST_CHANGED: Final = 0.02
"""Of the decisions that it was asked about: below this it is left out."""
RETRY_EVERY: Final = 50
"""Left out, it is still asked once in so many close calls, to see whether that has changed."""


class TextEncoder(Protocol):
    """What is asked of an encoder."""

    width: int

    def vector(self, text: str) -> NDArray[np.float32]: ...


class Head(msgspec.Struct, frozen=True):
    """What the encoder's vector says of gains, and how far that moves each ability's probability."""

    weights: Floats
    """(width, pairs): vector @ weights + bias is the gain of a strong model over a weak one."""
    bias: Floats
    weak: Integers
    strong: Integers
    """(pairs,): numbers of abilities, in the manifest's order."""
    usual: Floats
    """(pairs, 2): the mean gain of each pair, as the encoder says it and as the first weigher does."""
    back: Floats
    """(pairs, abilities): how each ability's probability follows where the two, each about its mean, differ."""
    kind_of: Integers
    """(pairs,): a pair speaks of prompts of its kind alone."""

    def gains(self, vector: NDArray[np.float32]) -> Floats:
        found: Floats = vector.astype(np.float64) @ self.weights + self.bias
        return found

    def shifts(self, adequate: Floats, kind: int, gains: Floats) -> Floats:
        """What to add to the first weigher's probabilities (abilities,) of a prompt of the kind with this number."""
        mine = self.kind_of == kind
        said = np.stack([gains, adequate[self.strong] - adequate[self.weak]], axis=1)[mine]
        about = said - self.usual[mine]
        found: Floats = (about[:, 0] - about[:, 1]) @ self.back[mine]
        return found


class _Record(msgspec.Struct):
    """How often it was asked for a team lately, and how often that changed who served."""

    asked: float = 0.0
    changed: float = 0.0
    skipped: int = 0


class SecondWeigher:
    """One for a process."""

    def __init__(
        self,
        encoder: TextEncoder,
        head: Head,
        *,
        deadline_s: float = DEADLINE_S,
        queue: int = QUEUE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._encoder = encoder
        self._clock = clock
        self._usual_s = 0.0
        self._skipped = 0
        self.head = head
        self._deadline_s = deadline_s
        self._queue = queue
        self._waiting = 0
        # One thread: it must leave the other cores to the requests, and the encoder's own session has one, too.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="second-weigher")
        self._teams: OrderedDict[str, _Record] = OrderedDict()
        self.late = 0
        """How often the first's answer stood because this one came too late, or could not be asked."""
        self.broken = 0

    async def ask(self, prompt: Prompt) -> Floats | None:
        """The prompt's gains as the encoder sees them; None where the answer did not come in time, or not at all."""
        if self._waiting >= self._queue or self._hopeless():
            self.late += 1
            return None
        due = self._clock() + self._deadline_s
        try:
            work = asyncio.get_running_loop().run_in_executor(self._thread, self._in_time, read_text(prompt), due)
        except RuntimeError:  # It was closed, as the gateway is ending.
            self.late += 1
            return None
        self._waiting += 1
        # Shielded: a thread cannot be stopped, so the queue's place is given back when it has ended.
        work.add_done_callback(self._left)
        try:
            gains = await asyncio.wait_for(asyncio.shield(work), self._deadline_s)
        except TimeoutError:
            gains = None
        except Exception:  # noqa: BLE001 - whatever is wrong with it, the first's answer stands
            self.broken += 1
            return None
        self.late += gains is None
        return gains

    def _hopeless(self) -> bool:
        """Whether it would come too late as usual: it would be waited for in vain, and keep the thread from others."""
        if (self._waiting + 1) * self._usual_s <= self._deadline_s:
            return False
        self._skipped += 1
        if self._waiting or self._skipped < RETRY_EVERY:
            return True
        # Even alone it takes too long on this machine; whether it still does is seen by trying.
        self._skipped = 0
        return False

    def _in_time(self, text: str, due: float) -> Floats | None:
        """On the thread: None for a prompt that nobody waits for any more."""
        before = self._clock()
        if before > due:
            return None
        try:
            return self.gains(text)
        finally:
            # A machine that stood still for a second says little of what is usual.
            took_s = min(self._clock() - before, 2 * self._deadline_s)
            self._usual_s += _FADE * (took_s - self._usual_s)

    def gains(self, text: str) -> Floats:
        """The same at once: for the thread, and for whoever measures."""
        return self.head.gains(self._encoder.vector(text))

    def _left(self, work: "asyncio.Future[Floats | None]") -> None:
        self._waiting -= 1
        if not work.cancelled():
            # Read, so that a failure nobody waited for is not called unretrieved.
            work.exception()

    def worth_asking(self, team_id: str) -> bool:
        """Whether asking has changed enough of the team's close calls, or is due to be tried."""
        record = self._teams.get(team_id)
        if record is None or record.asked < WINDOW / 2 or record.changed >= LEAST_CHANGED * record.asked:
            return True
        record.skipped += 1
        if record.skipped < RETRY_EVERY:
            return False
        record.skipped = 0
        return True

    def answered(self, team_id: str, *, changed: bool) -> None:
        """Counts a second opinion. Old ones fade, so that a team whose prompts have changed gets another chance."""
        record = self._teams.pop(team_id, None) or _Record()
        fade = 1 - 1 / WINDOW
        record.asked = record.asked * fade + 1
        record.changed = record.changed * fade + changed
        self._teams[team_id] = record
        if len(self._teams) > TEAMS:
            self._teams.popitem(last=False)

    def close(self) -> None:
        """Lets the thread end, once it has done the few prompts that are queued: cancelled, they would cancel their requests."""
        self._thread.shutdown(wait=False)


def read_text(prompt: Prompt) -> str:
    """What the encoder reads: the last message, led by the end of the conversation when it is a short follow-up."""
    if prompt.history and len(prompt.text) < FOLLOW_UP_CHARS:
        return f"{prompt.history[-CONTEXT_CHARS:]}\n{prompt.text}"
    return prompt.text


_SINGLES: Final = ("weights", "bias", "usual", "back")
_NUMBERS: Final = ("weak", "strong", "kind_of")


def write_head(head: Head) -> bytes:
    """The same head gives the same bytes."""
    buffer = io.BytesIO()
    singles = {name: getattr(head, name).astype("<f4") for name in _SINGLES}
    np.savez(buffer, **singles, **{name: getattr(head, name).astype("<i4") for name in _NUMBERS})
    return buffer.getvalue()


def read_head(content: bytes) -> Head:
    """Raises ArtifactMalformed."""
    wanted = [*((name, np.float64) for name in _SINGLES), *((name, np.int64) for name in _NUMBERS)]
    found = read_columns(content, HEAD_FILE, wanted)
    head = Head(**dict(zip((*_SINGLES, *_NUMBERS), found, strict=True)))
    pairs = head.bias.shape
    fits = len(pairs) == 1 and head.weak.shape == head.strong.shape == head.kind_of.shape == pairs
    fits = fits and head.usual.shape == (*pairs, 2)
    fits = fits and head.weights.ndim == head.back.ndim == 2  # noqa: PLR2004
    fits = fits and head.weights.shape[1:] == head.back.shape[:1] == pairs
    if not fits or not all(np.isfinite(each).all() for each in found):
        raise ArtifactMalformed(f"{HEAD_FILE} does not hold a head")
    named = np.concatenate([head.weak, head.strong])
    if ((named < 0) | (named >= head.back.shape[1])).any():
        raise ArtifactMalformed(f"{HEAD_FILE} names abilities that it has no column for")
    return head


def read_second_weigher(folder: Path, manifest: Manifest) -> SecondWeigher | None:
    """The second weigher of an artifact, or None when it has none. Raises ArtifactError for one that does not fit."""
    if manifest.second is None:
        return None
    encoder = read_encoder(folder)
    if encoder is None:
        raise ArtifactMissing(f"{MODEL_FILE} is missing, which the manifest describes")
    files = read_files(folder)
    if manifest.second.sha256 != second_sha256(files):
        raise ArtifactMismatch(f"{', '.join(FILES)} are not what the manifest describes")
    head = read_head(files[HEAD_FILE])
    if len(head.weights) != encoder.width or head.back.shape[1:] != (len(manifest.abilities),):
        raise ArtifactMalformed(f"{HEAD_FILE} does not fit the encoder and the abilities")
    return SecondWeigher(encoder, head)


def read_files(folder: Path) -> dict[str, bytes]:
    """The second weigher's files. Raises ArtifactMissing, or ArtifactMalformed for one that is far too large."""
    return {name: read_limited(folder / name, MAX_FILE_BYTES) for name in FILES}


def second_sha256(files: Mapping[str, bytes]) -> str:
    """Of the encoder's graph, its vocabulary and its head together."""
    digest = hashlib.sha256()
    for name in FILES:
        digest.update(hashlib.sha256(files[name]).digest())
    return digest.hexdigest()
