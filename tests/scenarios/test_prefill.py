"""Prefill and decode on replicas of their own: a reader is asked before the replica that answers, and callers have one answer.

The engines are scripted, with what vLLM 0.32's server and NixlConnector take and tell, by their sources; no GPU has run this.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from tests.fleet import Callers, Place, callers, pool, pooled_model
from tests.odd_engine import OddEngine, served
from tests.processes import until
from tests.running_gateway import running_gateway

LONG: Final = [{"role": "user", "content": "Weigh this bridge, please. " * 20}]
SHORT: Final = [{"role": "user", "content": "hello"}]


def handed_by(name: str) -> dict[str, Any]:
    """What NixlPullConnectorScheduler.request_finished of vLLM 0.32 gives, with what its scheduler adds."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1, 2, 3]],
        "remote_engine_id": f"6b9d9d1e-{name}",
        "remote_request_id": "chatcmpl-req_1-9f3c2a11",
        "remote_host": "10.0.0.7",
        "remote_port": 5600,
        "tp_size": 2,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 140,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": 16,
    }


class Engine(OddEngine):
    """As vLLM with a NixlConnector: keeps what it read where it is told to, and refuses what vLLM refuses."""

    def __init__(self, name: str, doomed: list[str]) -> None:
        super().__init__(name)
        self.doomed = doomed
        """Questions to whoever answers that lose their connection; one for all engines."""
        self.hangs = False
        self.left = 0
        """Requests that were given up while it hung."""

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        params = body.get("kv_transfer_params") or {}
        if not params.get("do_remote_decode"):
            if not self.doomed:
                return await super()._chat(request)
            self.doomed.pop()
            self.asked.append(body)
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        self.asked.append(body)
        if self.hangs:
            await until(lambda: request.transport is None or request.transport.is_closing())
            self.left += 1
            return web.Response()
        if self.dies:
            return self._died(request)
        if self.status != 200 or body.get("min_tokens", 0) > body["max_tokens"] or body["stream"]:
            error = {"message": "no", "type": "BadRequestError"}
            return web.json_response({"error": error}, status=400 if self.status == 200 else self.status)
        choice = {"index": 0, "message": {"role": "assistant", "content": "A"}, "finish_reason": "length"}
        usage = {"prompt_tokens": 140, "completion_tokens": 1, "total_tokens": 141}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
        return web.json_response(
            {**head, "choices": [choice], "usage": usage, "kv_transfer_params": handed_by(self.name)}
        )


@contextlib.asynccontextmanager
async def house(tmp_path: Path) -> AsyncIterator[tuple[Callers, dict[str, Engine]]]:
    """Two that read, two that answer."""
    doomed: list[str] = []
    engines = {name: Engine(name, doomed) for name in ("read-1", "read-2", "write-1", "write-2")}
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines.values():
            engine.url = await served(stack, engine.app())
        own = pool(
            [Place(each.name, each.url) for each in engines.values()],
            prefill={"replicas": "read-*", "from_tokens": 50},
            watch={"silent_s": 0.4},
        )
        section = {"selfhosted": {"pools": [own]}, "classifier": {"enabled": False}}
        gateway = await stack.enter_async_context(running_gateway(tmp_path, [pooled_model()], **section))
        found = await stack.enter_async_context(callers(gateway))
        await found.until_states(**dict.fromkeys(engines, "ready"))
        yield found, engines


def asked(engines: dict[str, Engine], kind: str) -> list[dict[str, Any]]:
    """What the readers, or those that answer, were asked since this was looked at."""
    found = [body for name, engine in engines.items() if name.startswith(kind) for body in engine.asked]
    for name, engine in engines.items():
        if name.startswith(kind):
            engine.asked.clear()
    return found


async def test_one_reads_and_another_answers(tmp_path: Path) -> None:
    """The reader is asked for one token, whole; what it says goes to the other as it is. One attempt is booked, with what the
    answer says that it used. A short prompt, and whatever a reader cannot do, is read where it is answered.
    """
    async with house(tmp_path) as (fleet, engines):
        reply = await fleet.stream(LONG, max_tokens=7, min_tokens=3, temperature=0.5)
        assert (reply.done, reply.text[:6]) == (True, "write-")
        (read,), (written,) = asked(engines, "read"), asked(engines, "write")
        assert (read["max_tokens"], read["stream"], read["temperature"]) == (1, False, 0.5)
        assert read["messages"] == written["messages"] == LONG
        assert not {"min_tokens", "max_completion_tokens", "stream_options"} & read.keys()
        assert read["kv_transfer_params"] == {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            **dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")),
        }
        assert (written["max_tokens"], written["min_tokens"], written["stream"]) == (7, 3, True)
        assert written["kv_transfer_params"] in (handed_by("read-1"), handed_by("read-2"))
        (row,) = await fleet.gateway.rows("entry = 'settle'")
        assert (row["served"], row["input_tokens"], row["output_tokens"]) == (True, 20, 1)

        whole = await fleet.ask(
            [*LONG, {"role": "assistant", "content": "It is heavy."}, *LONG], max_completion_tokens=5
        )
        assert whole.status == 200
        assert len(asked(engines, "read")) == 1
        assert "kv_transfer_params" in asked(engines, "write")[0]
        for messages, fields in ((SHORT, {}), (LONG[:1] * 3, {"n": 2}), (LONG[:1] * 4, {"prompt_logprobs": 1})):
            await fleet.ask(messages, **fields)
            assert not asked(engines, "read")
            assert not any("kv_transfer_params" in body for body in asked(engines, "write"))
        async with fleet.session.get(f"{fleet.gateway.url}/metrics") as page:
            assert 'weighbridge_prompts_read_apart_total{pool="own",result="handed"} 2.0' in await page.text()

        # What nobody has room to read is demand for more that read.
        readers = fleet.gateway.live._fleet.pools["own"].readers
        assert readers is not None
        assert readers.unread_tokens == 0
        for name in ("read-1", "read-2"):
            await fleet.order("PUT", f"/fleet/pools/own/replicas/{name}/drain")
        await fleet.until_states(**{"read-1": "draining", "read-2": "draining"})
        fresh = [{"role": "user", "content": "Another bridge, please. " * 20}]
        assert (await fleet.ask(fresh, max_tokens=5)).status == 200
        assert not asked(engines, "read")
        assert readers.unread_tokens > 50
        assert (await fleet.pool())["prefill"] == {
            "desired": None,
            "desired_reason": "",
            "decided_at": None,
            "there": 2,
            "ready": 0,
            "waiting": 0,
        }


async def test_whichever_half_fails(tmp_path: Path) -> None:
    """A reader that dies or hangs is passed over for the other one, and where none reads, the prompt is read where it is answered.
    When the answering one dies the prompt is read anew for the next one. Each time there is one answer, and one served row.
    """
    async with house(tmp_path) as (fleet, engines):
        turn = 0

        async def ask() -> list[dict[str, Any]]:
            """A prompt that nobody has read before; what the ones that answer were asked."""
            nonlocal turn
            turn += 1
            messages = [{"role": "user", "content": f"{turn} " * 200}]
            reply = await fleet.stream(messages)
            assert (reply.status, reply.done) == (200, True), reply.error
            return asked(engines, "write")

        for name in ("read-1", "read-2"):
            engines[name].status = 500
        (local,) = await ask()
        assert "kv_transfer_params" not in local
        assert len(asked(engines, "read")) == 2
        for name in ("read-1", "read-2"):
            engines[name].status = 400
        await fleet.until_states(**{"read-1": "ready", "read-2": "ready"})
        (local,) = await ask()
        assert "kv_transfer_params" not in local
        assert len(asked(engines, "read")) == 1

        for name in ("read-1", "read-2"):
            engines[name].status = 200
        engines["read-1"].hangs = engines["read-2"].hangs = True
        (local,) = await ask()
        assert "kv_transfer_params" not in local
        await until(lambda: sum(engine.left for engine in engines.values()) == 2)
        engines["read-1"].hangs = engines["read-2"].hangs = False
        await fleet.until_states(**{"read-1": "ready", "read-2": "ready"})
        engines["read-2"].dies = True
        for _ in range(2):
            (handed,) = await ask()
            assert handed["kv_transfer_params"] == handed_by("read-1")
        asked(engines, "read")

        engines["write-1"].doomed.append("the next")
        first, second = await ask()
        assert first["kv_transfer_params"] == second["kv_transfer_params"] == handed_by("read-1")
        assert len(asked(engines, "read")) == 2
        rows = await fleet.gateway.rows("entry IN ('settle', 'void')")
        assert sum(row["served"] for row in rows) == turn


async def test_a_caller_that_leaves_while_its_prompt_is_read(tmp_path: Path) -> None:
    """The reader's call is ended, nobody is asked to answer, and the attempt is settled."""
    async with house(tmp_path) as (fleet, engines):
        engines["read-1"].hangs = engines["read-2"].hangs = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await fleet.ask(LONG)
        await until(lambda: sum(engine.left for engine in engines.values()) == 1)
        assert not asked(engines, "write")

        async def settled() -> bool:
            return bool(await fleet.gateway.rows("entry IN ('settle', 'void')"))

        await until(settled)
        (row,) = await fleet.gateway.rows("entry IN ('settle', 'void')")
        assert not row["served"]
