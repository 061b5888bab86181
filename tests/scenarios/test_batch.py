"""Batches through the official client: files, lines, results, and what goes wrong with them."""

import asyncio
import io
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
import yaml
from openai.types import Batch
from pydantic import SecretStr

from gateway.configuration.environment import Environment
from tests.processes import until
from tests.running_gateway import CHEAP_PRICES, PEPPER, Running, gateway_at, model, running_gateway
from tests.scenarios.conftest import Upstream
from tests.scenarios.test_embeddings import embedding_house

FAST: dict[str, Any] = {"poll_s": 0.05, "lease_s": 5}
_DONE = {"completed", "failed", "expired", "cancelled"}


def client(gateway: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0)


def house(upstream: Upstream, script: str = "ok") -> list[dict[str, Any]]:
    return [
        model("cheap", [upstream.deployment(script)], capability=0.4, prices=CHEAP_PRICES),
        model("dear", [upstream.deployment(script)]),
        model("broken", [upstream.deployment("error-500")]),
    ]


def line(custom_id: str, model_name: str = "auto", **body: Any) -> dict[str, Any]:
    asked = {"model": model_name, "messages": [{"role": "user", "content": f"What is {custom_id}?"}], **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": asked}


def jsonl(lines: Sequence[object]) -> io.BytesIO:
    file = io.BytesIO(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
    file.name = "requests.jsonl"
    return file


async def submit(caller: openai.AsyncOpenAI, lines: Sequence[object], **options: Any) -> Batch:
    file = await caller.files.create(file=jsonl(lines), purpose="batch")
    asked: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **options}
    return await caller.batches.create(input_file_id=file.id, **asked)


async def ended(caller: openai.AsyncOpenAI, batch: Batch) -> Batch:
    async with asyncio.timeout(60):
        while batch.status not in _DONE:
            await asyncio.sleep(0.05)
            batch = await caller.batches.retrieve(batch.id)
    return batch


async def results(caller: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    text = (await caller.files.content(file_id)).text
    return [msgspec.json.decode(each) for each in text.splitlines()]


async def test_two_hundred_lines_are_answered_once_and_in_order(tmp_path: Path, upstream: Upstream) -> None:
    """Each is in the output file, booked once with the tier batch, and the batch tells what all came to."""
    async with running_gateway(tmp_path, house(upstream), batch=FAST) as gateway, client(gateway) as caller:
        asked = [line(f"question-{number}") for number in range(200)]
        made = await submit(caller, asked, metadata={"job": "nightly"})
        assert made.status == "validating"
        batch = await ended(caller, made)
        assert batch.status == "completed", batch.errors
        assert batch.request_counts is not None
        assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (
            200,
            200,
            0,
        )
        assert batch.metadata == {"job": "nightly"}
        assert batch.error_file_id is None
        answers = await results(caller, batch.output_file_id)
        assert [each["custom_id"] for each in answers] == [each["custom_id"] for each in asked]
        assert {each["response"]["status_code"] for each in answers} == {200}
        assert all(each["error"] is None and each["response"]["body"]["model_used"] for each in answers)
        assert len({each["id"] for each in answers}) == 200
        rows = await gateway.rows("entry = 'settle'")
        assert Counter(row["request_id"] for row in rows) == Counter(each["response"]["request_id"] for each in answers)
        assert {row["tier"] for row in rows} == {"batch"}
        assert sorted(upstream.arrived()) == sorted(row["request_id"] for row in rows)
        assert batch.usage is not None
        assert batch.usage.input_tokens == sum(row["input_tokens"] for row in rows)
        assert batch.usage.output_tokens == sum(row["output_tokens"] for row in rows)
        listed = await caller.batches.list(limit=1)
        assert [each.id for each in listed.data] == [batch.id]


async def test_a_line_that_fails_stands_in_the_error_file(tmp_path: Path, upstream: Upstream) -> None:
    """A refusal is final at once; a failure that may pass is tried again, as often as configured, and counted."""
    section = {**FAST, "tries": 2}
    async with running_gateway(tmp_path, house(upstream), batch=section) as gateway, client(gateway) as caller:
        asked = [line("good"), line("unknown", "nobody"), line("broken", "broken"), line("empty", messages=[])]
        batch = await ended(caller, await submit(caller, asked))
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 3)
        assert [each["custom_id"] for each in await results(caller, batch.output_file_id)] == ["good"]
        failed = await results(caller, batch.error_file_id)
        told = {each["custom_id"]: each["response"] for each in failed}
        assert list(told) == ["unknown", "broken", "empty"]
        assert [each["status_code"] for each in told.values()] == [404, 502, 400]
        assert told["unknown"]["body"]["error"]["code"] == "model_not_found"
        # Twice, under two ids: nothing that was sent is unbooked.
        rows = await gateway.rows("target_id = 'broken' AND entry <> 'reserve'")
        assert len({row["request_id"] for row in rows}) == 2


async def test_embeddings_are_answered_too(tmp_path: Path) -> None:
    """The endpoint of a batch is the one of its lines."""
    async with embedding_house(tmp_path, batch=FAST) as (gateway, engine), client(gateway) as caller:
        asked = [
            {"custom_id": f"e{number}", "method": "POST", "url": "/v1/embeddings",
             "body": {"model": "bge", "input": ["one", "two"]}}
            for number in range(3)
        ]  # fmt: skip
        batch = await ended(caller, await submit(caller, asked, endpoint="/v1/embeddings"))
        assert batch.status == "completed", batch.errors
        answers = await results(caller, batch.output_file_id)
        assert [len(each["response"]["body"]["data"]) for each in answers] == [2, 2, 2]
        assert len(engine.asked) == 3


@pytest.mark.parametrize(
    ("endpoint", "body", "kind"),
    [
        ("/v1/responses", {"input": "hi", "max_output_tokens": 50}, "response"),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 50}, "text_completion"),
    ],
)
async def test_other_wires_are_answered_too(
    tmp_path: Path, upstream: Upstream, endpoint: str, body: dict[str, Any], kind: str
) -> None:
    """In their own shape."""
    async with running_gateway(tmp_path, house(upstream), batch=FAST) as gateway, client(gateway) as caller:
        asked = [
            {"custom_id": f"r{number}", "method": "POST", "url": endpoint, "body": {"model": "dear", **body}}
            for number in range(3)
        ]
        batch = await ended(caller, await submit(caller, asked, endpoint=endpoint))
        assert batch.status == "completed", batch.errors
        answers = await results(caller, batch.output_file_id)
        assert [each["response"]["body"]["object"] for each in answers] == [kind] * 3


@pytest.mark.parametrize(
    ("spoil", "code", "at"),
    [
        (lambda lines: [*lines, {**lines[0]}], "duplicate_custom_id", 4),
        (lambda lines: [lines[0], {**lines[1], "url": "/v1/embeddings"}], "invalid_url", 2),
        (lambda lines: [lines[0], {**lines[1], "method": "GET"}], "invalid_method", 2),
        (lambda lines: [{**lines[0], "body": {"messages": []}}], "missing_required_parameter", 1),
        (lambda lines: [lines[0], {"custom_id": "x"}], "missing_required_parameter", 2),
        (lambda lines: [lines[0], line("s", stream=True)], "invalid_request", 2),
        (lambda lines: [lines[0], 17], "invalid_json_line", 2),
        (lambda lines: [], "empty_file", None),
    ],
)
async def test_a_bad_file_fails_whole_and_says_where(
    tmp_path: Path,
    upstream: Upstream,
    spoil: Callable[[list[dict[str, Any]]], list[object]],
    code: str,
    at: int | None,
) -> None:
    """Nothing of it is asked."""
    async with running_gateway(tmp_path, house(upstream), batch=FAST) as gateway, client(gateway) as caller:
        batch = await ended(caller, await submit(caller, spoil([line("a"), line("b"), line("c")])))
        assert batch.status == "failed"
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [(each.code, each.line) for each in batch.errors.data] == [(code, at)]
        assert not upstream.log


async def test_a_truncated_file_fails_at_its_last_line(tmp_path: Path, upstream: Upstream) -> None:
    """The line that was cut off is named."""
    async with running_gateway(tmp_path, house(upstream), batch=FAST) as gateway, client(gateway) as caller:
        cut = io.BytesIO(jsonl([line("a"), line("b")]).getvalue()[:-10])
        cut.name = "cut.jsonl"
        file = await caller.files.create(file=cut, purpose="batch")
        made = await caller.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        batch = await ended(caller, made)
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [(each.code, each.line) for each in batch.errors.data] == [("invalid_json_line", 2)]


async def test_what_was_not_begun_when_a_batch_is_cancelled_costs_nothing(tmp_path: Path, upstream: Upstream) -> None:
    """Lines that run come to their end; each of the others stands in the error file as cancelled."""
    slow = [model("slow", [upstream.deployment("slow-first-token-300ms+tokens-2")])]
    section = {**FAST, "at_once": 4}
    async with running_gateway(tmp_path, slow, batch=section) as gateway, client(gateway) as caller:
        made = await submit(caller, [line(f"q{number}", "slow") for number in range(40)])
        await until(lambda: bool(upstream.arrived()))
        cancelling = await caller.batches.cancel(made.id)
        assert cancelling.status in {"cancelling", "cancelled"}
        batch = await ended(caller, cancelling)
        assert batch.status == "cancelled"
        answers = await results(caller, batch.output_file_id)
        dropped = await results(caller, batch.error_file_id)
        assert len(answers) + len(dropped) == 40
        assert {each["error"]["code"] for each in dropped} == {"batch_cancelled"}
        assert {each["response"] for each in dropped} == {None}
        assert len(upstream.arrived()) == len(answers) < 40
        assert len(await gateway.rows("entry = 'settle'")) == len(answers)
        with pytest.raises(openai.NotFoundError):
            await caller.batches.cancel("batch_of_nobody")


async def test_a_host_leaves_lines_to_another(tmp_path: Path, upstream: Upstream) -> None:
    """It takes the batch in and gives the results out; every line is booked in the other's journal."""
    section = {**FAST, "folder": str(tmp_path / "files")}
    taking = running_gateway(tmp_path, house(upstream), batch={**section, "answers": False})
    async with taking as gateway, client(gateway) as caller:
        made = await submit(caller, [line("a"), line("b")])
        config = yaml.safe_load(gateway.config_path.read_text())
        config["batch"], config["cost"]["journal_dir"] = section, str(tmp_path / "other")
        path = tmp_path / "other.yaml"
        path.write_text(yaml.safe_dump(config))
        environment = Environment(data_dir=tmp_path, pepper=SecretStr(PEPPER))
        async with gateway_at(path, environment, gateway.engine, gateway.key) as answering:
            batch = await ended(caller, made)
            assert batch.status == "completed"
            assert len(await results(caller, batch.output_file_id)) == 2
            rows = await answering.rows("entry = 'settle'")
            here = " ".join(each.name for each in (tmp_path / "other").iterdir())
            assert [row["boot_id"] in here for row in rows] == [True, True]
