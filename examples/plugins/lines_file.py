"""An exporter: appends finished requests to a file of JSON lines, in a thread, so that no disk holds up the gateway."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from weighbridge.plugins import Outcome


@dataclass(frozen=True)
class Where:
    """What the configuration's `settings` may say."""

    file: str


class LinesFile:
    protocol = 1
    Settings = Where

    def __init__(self, settings: Where) -> None:
        self._file = Path(settings.file)

    async def finished(self, outcomes: Sequence[Outcome]) -> None:
        # `config check` makes outcomes up.
        real = [asdict(each) for each in outcomes if not each.is_sample]
        if real:
            await asyncio.to_thread(self._append, "".join(f"{json.dumps(each)}\n" for each in real))

    def _append(self, lines: str) -> None:
        # One write of whole lines: several processes append to the same file.
        with self._file.open("a", encoding="utf-8") as opened:
            opened.write(lines)
