"""Stories: rerank and moderations pass to a target that the caller names, booked by what the provider bills."""

import json
from pathlib import Path
from typing import Any, Final

import aiohttp
import httpx
import openai
import pytest

from gateway.configuration.environment import Environment
from gateway.configuration.settings import load
from testing.scripted.metered import PICTURE, PIECE
from tests.fleet import Place, callers, pool, pooled_model
from tests.odd_engine import odd_engines
from tests.running_gateway import Running, model, running_gateway
from tests.scenarios.conftest import Upstream

SEARCH_NANOUSD: Final = 2_000_000
TEXTS: Final = ["a bridge of stone", "weighs every truck", "nothing"]


def client(gateway: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0)


def house(upstream: Upstream) -> list[dict[str, Any]]:
    """A reranker of our own, one at Cohere's, a moderator that is free, and a model that chats."""
    cohere = {**upstream.deployment("ok"), "base_url": upstream.url.replace("/v1", "/v2")}
    return [
        model(
            "ranker",
            [upstream.deployment("ok", kind="vllm")],
            capabilities=["rerank"],
            prices={"input": "0.1", "output": "0", "version": "test"},
        ),
        model("cohere", [cohere], capabilities=["rerank"], prices={"units": {"search": "0.002"}, "version": "test"}),
        model("moderator", [upstream.deployment("ok")], capabilities=["moderation"], prices={"input": 0, "output": 0}),
        model(
            "painter",
            [upstream.deployment("ok+no-usage")],
            capabilities=["images"],
            prices={"units": {"image": "0.04", "image/hd": "0.08", "image/hd/1024x1792": "0.12"}, "version": "test"},
        ),
        model("gpt-image", [upstream.deployment("ok")], capabilities=["images"], max_output_tokens=5_000),
        model(
            "speaker",
            [upstream.deployment("tokens-40")],
            capabilities=["speech"],
            prices={"units": {"character": "0.000015"}, "version": "test"},
        ),
        model(
            "writer",
            [upstream.deployment("ok")],
            capabilities=["transcription"],
            prices={"units": {"second": "0.0001"}, "version": "test"},
        ),
        model("gpt-4o-transcribe", [upstream.deployment("ok")], capabilities=["transcription"]),
        model("broken", [upstream.deployment("tokens-40+cut-20")], capabilities=["speech"]),
        model("chatty", [upstream.deployment("ok")]),
    ]


async def post(gateway: Running, path: str, **body: Any) -> tuple[int, dict[str, Any], Any]:
    headers = {"authorization": f"Bearer {gateway.key}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{gateway.url}{path}", json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.json(), answer.headers


async def usage(gateway: Running, group_by: str) -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {gateway.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{gateway.url}/v1/usage?group_by={group_by}") as answer,
    ):
        rows: list[dict[str, Any]] = (await answer.json())["data"]
        return rows


async def test_documents_are_ranked_and_booked(tmp_path: Path, upstream: Upstream) -> None:
    """In vLLM's shape by tokens, in Cohere's by searches, under each of the paths that clients know."""
    async with running_gateway(tmp_path, house(upstream)) as gateway:
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            status, told, headers = await post(
                gateway, path, model="ranker", query="weighs a truck", documents=TEXTS, top_n=1
            )
            assert (status, [each["index"] for each in told["results"]]) == (200, [1])
            assert (told["model_used"], headers["x-weighbridge-target"]) == ("ranker", "ranker")
        status, told, headers = await post(
            gateway, "/v2/rerank", model="cohere", query="truck", documents=[{"text": "truck"}] * 101
        )
        assert (status, told["meta"]["billed_units"]) == (200, {"search_units": 2})
        assert headers["x-weighbridge-cost-usd"] == "0.004000000"
        *ranked, cohere = await gateway.rows("entry = 'settle'")
        assert [(row["input_tokens"], row["unit"], row["cost_nanousd"]) for row in ranked] == [(12, "", 1_200)] * 3
        booked = (cohere["unit"], cohere["quantity_milli"], cohere["cost_nanousd"], cohere["usage_source"])
        assert booked == ("search", 2_000, 2 * SEARCH_NANOUSD, "upstream")
        assert (cohere["request_nanousd"], cohere["price_version"], cohere["flags"]) == (
            2 * SEARCH_NANOUSD,
            "test",
            "[]",
        )
        by_unit, by_model = await usage(gateway, "model,unit"), await usage(gateway, "model")
        assert [(row["unit"], row["quantity"], row["cost_usd"]) for row in by_unit] == [
            ("search", 2, 0.004),
            ("", 0, 3.6e-06),
        ]
        # Seconds and images do not add up.
        assert {row["quantity"] for row in by_model} == {None}


_REFUSED: Final[list[tuple[str, dict[str, Any], int, str]]] = [
    ("/v1/rerank", {"model": "auto", "query": "x", "documents": ["x"]}, 400, "never chooses one here"),
    ("/v1/rerank", {"model": "chatty", "query": "x", "documents": ["x"]}, 400, "`rerank` in its `capabilities`"),
    ("/v1/rerank", {"model": "nobody", "query": "x", "documents": ["x"]}, 404, "does not exist"),
    ("/v1/rerank", {"model": "ranker", "query": "", "documents": ["x"]}, 400, "`query` is empty"),
    ("/v1/rerank", {"model": "ranker", "query": "x", "documents": []}, 400, "1 to 10000"),
    ("/v1/moderations", {"model": "moderator"}, 400, "input"),
    ("/v1/moderations", {"model": "auto", "input": "x"}, 400, "must name a model"),
    ("/v1/chat/completions", {"model": "ranker", "messages": [{"role": "user", "content": "x"}]}, 400, "makes rerank"),
]


async def test_texts_are_moderated(tmp_path: Path, upstream: Upstream) -> None:
    """By OpenAI's own client; what is free by its price costs nothing, and is booked all the same. What cannot be served is told with what to do
    instead.
    """
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        found = await caller.moderations.create(model="moderator", input=["an attack", "a truck"])
        assert [each.flagged for each in found.results] == [True, False]
        (row,) = await gateway.rows("entry = 'settle'")
        assert (row["target_id"], row["cost_nanousd"], row["usage_source"]) == ("moderator", 0, "estimated")
        assert 0 < row["input_tokens"] < 10
        for path, body, status, said in _REFUSED:
            refused, told, _ = await post(gateway, path, **body)
            assert (refused, said in told["error"]["message"]) == (status, True), told


async def test_a_model_need_not_be_named_where_openai_asks_for_none(tmp_path: Path, upstream: Upstream) -> None:
    """The first that the key may use and that serves the route answers; without one its caller is told so."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        await caller.moderations.create(input="a truck")
        await caller.images.generate(prompt="a truck")
        rows = await gateway.rows("entry = 'settle'")
        assert [row["target_id"] for row in rows] == ["moderator", "painter"]
    without = [each for each in house(upstream) if "moderation" not in each["capabilities"]]
    (tmp_path / "without").mkdir()
    async with running_gateway(tmp_path / "without", without) as gateway:
        status, told, _ = await post(gateway, "/v1/moderations", input="a truck")
        assert (status, told["error"]["param"]) == (400, "model")


async def test_pictures_are_drawn_and_words_spoken(tmp_path: Path, upstream: Upstream) -> None:
    """By OpenAI's own client. Pictures are booked by quality and size, or by tokens where the answer tells those; speech
    comes in pieces and is booked by its characters. What breaks off is cut off.
    """
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        drawn = await caller.images.generate(model="painter", prompt="a truck", n=2, quality="hd", size="1024x1792")
        assert [each.b64_json for each in drawn.data or ()] == [PICTURE, PICTURE]
        await caller.images.generate(model="painter", prompt="a truck", quality="hd")
        await caller.images.generate(model="gpt-image", prompt="a truck", n=2)
        spoken = caller.audio.speech.with_streaming_response
        async with spoken.create(model="speaker", voice="alloy", input="Wörter") as answer:
            assert b"".join([piece async for piece in answer.iter_bytes()]) == PIECE * 40
            assert answer.headers["content-type"] == "audio/mpeg"
            assert answer.headers["x-weighbridge-cost-usd"] == "0.000090000"
        with pytest.raises((openai.APIConnectionError, httpx.TransportError)):
            async with spoken.create(model="broken", voice="alloy", input="Wörter") as answer:
                await answer.read()
        rows = await gateway.rows("entry = 'settle'")
        booked = [(row["unit"], row["quantity_milli"], row["cost_nanousd"], row["usage_source"]) for row in rows]
        assert booked == [
            ("image/hd/1024x1792", 2_000, 240_000_000, "counted"),
            ("image/hd", 1_000, 80_000_000, "counted"),
            ("", 0, 12 * 2_500 + 200 * 10_000, "upstream"),
            ("character", 6_000, 90_000, "counted"),
            ("character", 6_000, None, "counted"),
        ]
        assert rows[-1]["flags"] == '["stream_cut"]'


async def test_pictures_are_edited_and_varied(tmp_path: Path, upstream: Upstream) -> None:
    """By OpenAI's own client: one picture or several with a mask, whole and in their order, booked as drawn ones are; one that fails
    at a deployment goes to another whole, and what is wrong with the form is told.
    """
    ailing = [upstream.deployment("error-500", "a", weight=1_000), upstream.deployment("ok", "b", weight=0.001)]
    models = [*house(upstream), model("ailing", ailing, capabilities=["images"])]
    one, two = ("a.png", bytes(70_000), "image/png"), ("b.png", b"b", "image/png")
    async with running_gateway(tmp_path, models) as gateway, client(gateway) as caller:
        images, fine = caller.images, dict[str, Any](quality="hd")
        edited = await images.edit(
            model="painter", image=[one, two], mask=("m.png", b"mm"), prompt="a truck", n=2, **fine
        )
        assert [each.revised_prompt for each in edited.data or ()] == [
            "image[]=a.png:70000 image[]=b.png:1 mask=m.png:2"
        ] * 2
        varied = await images.create_variation(model="gpt-image", image=one)
        assert [each.revised_prompt for each in varied.data or ()] == ["image=a.png:70000"]
        again = await images.edit(model="ailing", image=one, prompt="a truck")
        assert [each.revised_prompt for each in again.data or ()] == ["image=a.png:70000"]
        await images.edit(image=two, prompt="a truck")
        for wrong, said in (
            (images.edit(model="painter", image=one, prompt=""), "`prompt` is empty"),
            (images.edit(model="painter", image=[one] * 17, prompt="x"), "more than 16 parts"),
            (images.edit(model="chatty", image=one, prompt="x"), "`images` in its `capabilities`"),
            (images.create_variation(model="painter", image=one, n=0), "`n` must be"),
        ):
            with pytest.raises(openai.BadRequestError, match=said):
                await wrong
        status, told, _ = await post(gateway, "/v1/images/edits", model="painter", prompt="x")
        assert (status, "multipart/form-data" in told["error"]["message"]) == (400, True)
        rows = await gateway.rows("entry = 'settle'")
        booked = [(row["unit"], row["quantity_milli"], row["cost_nanousd"], row["target_id"]) for row in rows]
        assert booked == [
            ("image/hd", 2_000, 160_000_000, "painter"),
            ("", 0, 12 * 2_500 + 100 * 10_000, "gpt-image"),
            ("", 0, 12 * 2_500 + 100 * 10_000, "ailing"),
            ("image", 1_000, 40_000_000, "painter"),
        ]


async def test_recordings_are_written_down(tmp_path: Path, upstream: Upstream) -> None:
    """By OpenAI's own client: booked by the seconds that the answer tells, or by its tokens, also where words come one by
    one; what tells neither is estimated by its size. A file that fails at one deployment goes to another whole.
    """
    ailing = [upstream.deployment("error-500", "a", weight=1_000), upstream.deployment("ok", "b", weight=0.001)]
    models = [*house(upstream), model("ailing", ailing, capabilities=["transcription"])]
    recording = ("talk.wav", bytes(64_000), "audio/wav")
    async with running_gateway(tmp_path, models) as gateway, client(gateway) as caller:
        written = caller.audio.transcriptions
        heard = await written.create(
            model="writer", file=recording, response_format="verbose_json", timestamp_granularities=["word", "segment"]
        )
        assert heard.text == "heard 64000 bytes of talk.wav"
        plain: Any = await written.create(model="writer", file=recording, response_format="text")
        assert plain == "heard 64000 bytes of talk.wav\n"
        stream = await written.create(model="gpt-4o-transcribe", file=recording, stream=True)
        assert [each.type async for each in stream][-1] == "transcript.text.done"
        translated = await caller.audio.translations.create(model="ailing", file=recording)
        assert translated.text == heard.text
        with pytest.raises(openai.BadRequestError, match="never chooses one here"):
            await written.create(model="auto", file=recording)
        rows = await gateway.rows("entry = 'settle'")
        booked = [(row["unit"], row["quantity_milli"], row["cost_nanousd"], row["usage_source"]) for row in rows]
        assert booked[:3] == [
            ("second", 2_000, 200_000, "upstream"),
            ("second", 16_000, 1_600_000, "estimated"),
            ("", 0, 12 * 2_500 + 3 * 10_000, "upstream"),
        ]


async def test_a_pool_ranks_and_hears(tmp_path: Path) -> None:
    """Requests go to its replicas by the balancer, as chats do, and are booked to it."""
    async with odd_engines("a", "b") as engines:
        places = [Place(each.name, each.url) for each in engines]
        own = pool(places, targets=["ok"], balance={"policy": "round-robin"})
        served = pooled_model("ok", capabilities=["rerank", "transcription"])
        async with (
            running_gateway(tmp_path, [served], selfhosted={"pools": [own]}) as gateway,
            callers(gateway) as fleet,
            client(gateway) as caller,
        ):
            await fleet.until_states(a="ready", b="ready")
            ranked = [await post(gateway, "/rerank", model="ok", query="truck", documents=TEXTS) for _ in range(4)]
            assert {headers["x-weighbridge-deployment"] for _, _, headers in ranked} == {"ok/a", "ok/b"}
            heard = await caller.audio.transcriptions.create(model="ok", file=("a.wav", bytes(64_000)))
            assert heard.text == "heard 64000 bytes of a.wav"
            rows = await gateway.rows("entry = 'settle'")
            assert [(row["target_id"], row["unit"]) for row in rows] == [("ok", "")] * 4 + [("ok", "second")]
            # What a second costs nobody said: unknown, which is not nothing.
            assert (rows[-1]["quantity_milli"], rows[-1]["cost_nanousd"]) == (2_000, None)


def test_a_price_of_units_is_whole(tmp_path: Path) -> None:
    """A price without tokens must say units, and an unknown unit is refused with those there are."""
    for prices, said in (
        ({"input": "1"}, "output"),
        ({"units": {"furlong": "1"}}, "furlong"),
        ({"units": {"image": "2000"}}, "image"),
    ):
        file = tmp_path / "gateway.json"
        models = [model("ranker", [{"kind": "scripted", "upstream_model": "ok"}], prices=prices)]
        file.write_text(json.dumps({"providers": {"models": models}}))
        with pytest.raises(Exception, match=said):
            load(file, Environment(data_dir=tmp_path))
