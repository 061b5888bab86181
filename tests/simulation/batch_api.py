"""A provider's batch API in the simulated network, in OpenAI's shape: files, batches, answers, and what goes wrong with each."""

import asyncio
import json
from collections.abc import Mapping
from email.parser import BytesParser
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

if TYPE_CHECKING:
    from tests.simulation.upstream import Call, Provider

Slip = Literal["answers", "busy", "broken", "does_and_hangs_up", "hangs_up", "cut"]
"""What becomes of one request: `does_and_hangs_up` does it, and nobody hears of it."""
LineSlip = Literal["answers", "fails", "not_made", "garbage", "twice", "a_strangers"]
"""What becomes of one line in the file of answers."""
_MANY: Final = 10_000
Reply = tuple[int, bytes]


class BatchMood(msgspec.Struct, kw_only=True):
    """How often the API does what, and how long its batches take."""

    slips: dict[Slip, float]
    lines: dict[LineSlip, float]
    endings: dict[str, float]
    takes_s: float = 5.0


class _Batch(msgspec.Struct, kw_only=True):
    number: int
    name: str
    input_file: str
    created_at: float
    status: str = "in_progress"
    output_file: str = ""
    answered: int = 0
    is_cancelled: bool = False

    def told(self) -> dict[str, Any]:
        ended = self.status not in {"in_progress", "cancelling"}
        return {
            "id": f"upstream-batch-{self.number}",
            "object": "batch",
            "status": self.status,
            "input_file_id": self.input_file,
            "output_file_id": self.output_file or None if ended else None,
            "created_at": int(self.created_at),
            "metadata": {"weighbridge": self.name},
            "request_counts": {"total": 0, "completed": self.answered if ended else 0, "failed": 0},
        }


class ProviderBatches:
    """The files and batches of one provider."""

    def __init__(self, provider: "Provider") -> None:
        self._provider = provider
        self._files: dict[str, tuple[str, bytes]] = {}
        self._batches: dict[str, _Batch] = {}
        self._made = 0

    def draw(self) -> Slip:
        slip: Slip = self._provider.drawn(self._provider.batch_mood.slips)
        return slip

    @property
    def left(self) -> list[str]:
        """What callers' prompts and answers are in."""
        return list(self._files)

    def do(self, method: str, path: str, headers: Mapping[bytes, bytes], body: bytes) -> Reply:
        """Do what is asked."""
        parts = path.partition("?")[0].removeprefix("/v1/").split("/")
        told: Reply | None = None
        match method, parts:
            case "POST", ["files"]:
                told = self._upload(headers, body)
            case "GET", ["files"]:
                told = _ok({"data": [{"id": name, "filename": each[0]} for name, each in self._files.items()]})
            case "DELETE", ["files", name]:
                told = _ok({"deleted": True}) if self._files.pop(name, None) else None
            case "GET", ["files", name, "content"]:
                told = (200, self._files[name][1]) if name in self._files else None
            case "POST", ["batches"]:
                told = self._make(json.loads(body))
            case "GET", ["batches"]:
                told = _ok({"data": [each.told() for each in reversed(self._batches.values())], "has_more": False})
            case "GET", ["batches", name]:
                told = _ok(self._batches[name].told()) if name in self._batches else None
            case "POST", ["batches", name, "cancel"]:
                told = self._cancel(name)
        return told or _none()

    def _upload(self, headers: Mapping[bytes, bytes], body: bytes) -> Reply:
        kind = b"content-type: " + headers[b"content-type"] + b"\r\n\r\n"
        form: Any = BytesParser().parsebytes(kind + body)
        for part in form.get_payload():
            filename = part.get_filename()
            if filename is not None:
                self._made += 1
                name = f"file-in-{self._made}"
                self._files[name] = (filename, part.get_payload(decode=True))
                self._tell("takes a file", file=name)
                return _ok({"id": name, "filename": filename})
        return 400, b"{}"

    def _make(self, asked: Mapping[str, Any]) -> Reply:
        if asked["input_file_id"] not in self._files:
            return _none()
        self._made += 1
        batch = _Batch(
            number=self._made,
            name=asked["metadata"]["weighbridge"],
            input_file=asked["input_file_id"],
            created_at=self._provider.wall(),
        )
        told = batch.told()
        self._batches[told["id"]] = batch
        self._tell("takes a batch", batch=batch.number, name=batch.name)
        task = asyncio.ensure_future(self._work_on(batch))
        self._provider.running.add(task)
        task.add_done_callback(self._provider.running.discard)
        return _ok(told)

    def _cancel(self, name: str) -> Reply:
        batch = self._batches.get(name)
        if batch is None:
            return _none()
        if batch.status != "in_progress":
            return 400, b'{"error": {"message": "it has ended", "type": "invalid_request_error"}}'
        self._tell("cancels a batch", batch=batch.number)
        batch.is_cancelled, batch.status = True, "cancelling"
        return _ok(batch.told())

    async def _work_on(self, batch: _Batch) -> None:
        chance, mood = self._provider.chance, self._provider.batch_mood
        ends = self._provider.drawn(mood.endings)
        _, calls = self._files[batch.input_file]
        lines: list[bytes] = []
        each_s = mood.takes_s / max(1, calls.count(b"\n"))
        for raw in calls.splitlines():
            await asyncio.sleep(chance.expovariate(1 / each_s))
            if batch.is_cancelled or (ends in {"expired", "failed"} and chance.random() < 0.5):
                continue
            lines += self._answered(batch, json.loads(raw))
        chance.shuffle(lines)
        if lines:
            self._made += 1
            batch.output_file = f"file-out-{self._made}"
            self._files[batch.output_file] = ("answers.jsonl", b"".join(lines))
        batch.status = "cancelled" if batch.is_cancelled else ends
        self._tell("ends a batch", batch=batch.number, status=batch.status, answered=batch.answered)

    def _answered(self, batch: _Batch, asked: Mapping[str, Any]) -> list[bytes]:
        """Answer one line, and return what stands of it in the file of answers."""
        slip: LineSlip = self._provider.drawn(self._provider.batch_mood.lines)
        custom_id, body = asked["custom_id"], asked["body"]
        if slip == "not_made":
            return []
        if slip == "fails":
            return [_line(custom_id, 500, {"error": {"message": "no"}})]
        call = self._provider.called(json.dumps(body), "", stream=False)
        call.custom_id, call.behaviour, call.batch = custom_id, "answers", batch.name
        self._answer(call, int(body.get("max_tokens") or body.get("max_completion_tokens") or 20))
        batch.answered += 1
        line = _line(custom_id, 200, self._provider.chat(call))
        if slip == "garbage":
            return [line[: len(line) // 2] + b"\n"]
        call.told_usage = True
        match slip:
            case "twice":
                return [line, line]
            case "a_strangers":
                return [line, _line("somebody-elses-1", 200, {"choices": []})]
        return [line]

    def _answer(self, call: "Call", most: int) -> None:
        chance = self._provider.chance
        call.input_tokens = 10 + chance.randrange(20)
        call.said = call.output_tokens = 1 + chance.randrange(min(most, 30))
        call.whole, call.ended_at = True, self._provider.now

    def _tell(self, what: str, **facts: Any) -> None:
        self._provider.story.tell(self._provider.name, what, **facts)


def _ok(told: Mapping[str, Any]) -> Reply:
    return 200, json.dumps(told).encode()


def _none() -> Reply:
    return 404, b'{"error": {"message": "there is none", "type": "invalid_request_error"}}'


def _line(custom_id: str, status: int, body: Mapping[str, Any]) -> bytes:
    told = {"custom_id": custom_id, "response": {"status_code": status, "request_id": "r", "body": body}, "error": None}
    return json.dumps(told).encode() + b"\n"
