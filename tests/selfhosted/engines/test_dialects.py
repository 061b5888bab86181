"""What is read of each kind of engine's page, and what is not believed."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.target import OWN_ENGINES, DeploymentKind
from selfhosted.engines.dialects import (
    GpuReading,
    Slots,
    StatsUnreadable,
    ranks_on,
    read_gpus,
    read_page,
    read_slots,
    read_stats,
    usual_metrics_path,
)
from selfhosted.replica import EngineStats
from tests.selfhosted.engines import pages


def test_vllm_as_it_is_now() -> None:
    """Every figure of a running engine's page, and the adapters of the newest line only."""
    reading = read_page("vllm", pages.VLLM.encode(), 7.0)
    assert reading.stats == EngineStats(
        at=7.0, running=0, waiting=0, kv_usage=0.0, kv_tokens=1_048_576, block_tokens=128, prefix_queries=4154.0,
        prefix_hits=2304.0, prompt_tokens=4154.0, output_tokens=5577.0, preemptions=0.0,
        ttft_sum_s=19.542776584625244, ttft_count=23.0, tpot_sum_s=13.665207838999095, tpot_count=5554.0,
        adapters=frozenset(), max_adapters=2,
    )  # fmt: skip
    assert not reading.asleep
    assert reading.started == 1795253164.3


def test_vllm_as_it_was() -> None:
    """Its `gpu_` names, counters without `_total`, and blocks instead of tokens."""
    assert read_stats("vllm", pages.VLLM_OLD.encode(), 1.0) == EngineStats(
        at=1.0, running=3, waiting=2, kv_usage=0.25, kv_tokens=16_000, block_tokens=16, prefix_queries=1000.0,
        prefix_hits=250.0, prompt_tokens=900.0, output_tokens=80.0, preemptions=4.0, tpot_sum_s=2.0, tpot_count=80.0,
    )  # fmt: skip


def test_vllm_with_several_engines() -> None:
    """Requests, caches and counters add up; the cache's use is the mean."""
    stats = read_stats("vllm", pages.VLLM_TWO_ENGINES.encode(), 1.0)
    assert (stats.running, stats.waiting, stats.kv_tokens, stats.block_tokens) == (8, 1, 24_000, 16)
    assert stats.kv_usage == pytest.approx(0.4)
    assert (stats.prefix_queries, stats.prefix_hits) == (400.0, 200.0)


def test_one_rank_of_a_page() -> None:
    """Its own series alone; a rank of which the page tells nothing is unknown, and not idle."""
    page = pages.VLLM_TWO_ENGINES.encode()
    both = read_stats("vllm", page, 1.0)
    first, second = (read_page("vllm", page, 1.0, rank=rank).stats for rank in (0, 1))
    assert (first.running + second.running, first.waiting + second.waiting) == (both.running, both.waiting)
    assert first.kv_usage != second.kv_usage
    assert (first.kv_tokens or 0) + (second.kv_tokens or 0) == both.kv_tokens
    with pytest.raises(StatsUnreadable, match="rank 2"):
        read_page("vllm", page, 1.0, rank=2)
    with pytest.raises(StatsUnreadable, match="rank 0"):
        read_page("llama.cpp", page, 1.0, rank=0)


def test_one_rank_of_sglang() -> None:
    """It calls the label otherwise, and beside those of ranks has series of the whole process."""
    page = b"""sglang:num_running_reqs{dp_rank="0",model_name="m"} 3.0
sglang:num_running_reqs{dp_rank="11",model_name="m"} 5.0
sglang:num_queue_reqs{dp_rank="0",model_name="m"} 0.0
sglang:num_queue_reqs{dp_rank="11",model_name="m"} 1.0
sglang:max_total_num_tokens{model_name="m"} 7000.0
"""
    found = read_page("sglang", page, 1.0, rank=11).stats
    assert (found.running, found.waiting, found.kv_tokens) == (5, 1, 7_000)


@pytest.mark.parametrize(
    ("kind", "page", "ranks"),
    [("vllm", pages.VLLM, 1), ("vllm", pages.VLLM_TWO_ENGINES, 2), ("vllm", "", 1), ("llama.cpp", pages.VLLM, 1)],
)
def test_how_many_ranks_tell_their_figures(kind: DeploymentKind, page: str, ranks: int) -> None:
    """By the label that tells them apart; one where nothing does."""
    assert ranks_on(kind, page.encode()) == ranks


def test_vllm_asleep() -> None:
    """One engine that sleeps is enough: requests may land on it."""
    page = pages.VLLM_TWO_ENGINES.replace(
        'engine="1",model_name="llama",sleep_state="awake"} 1.0',
        'engine="1",model_name="llama",sleep_state="awake"} 0.0',
    )
    assert read_page("vllm", page.encode(), 1.0).asleep
    assert not read_page("vllm", pages.VLLM_OLD.encode(), 1.0).asleep


def test_vllm_adapters() -> None:
    """Those that run and those that wait, by the newest line."""
    page = pages.VLLM_OLD + (
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql,law",waiting_lora_adapters="law,art"} 20.5\n'
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 10.5\n'
    )
    stats = read_stats("vllm", page.encode(), 1.0)
    assert stats.adapters == frozenset({"sql", "law", "art"})
    assert stats.max_adapters == 4


def test_sglang_as_it_is_now() -> None:
    """The total of all priorities, not the sum with it; cached tokens of every source."""
    assert read_stats("sglang", pages.SGLANG.encode(), 1.0) == EngineStats(
        at=1.0, running=14, waiting=3, kv_usage=0.28, kv_tokens=161_721, block_tokens=64, prefix_queries=8000.0,
        prefix_hits=3500.0, prompt_tokens=8000.0, output_tokens=700.0, preemptions=2.0, ttft_sum_s=12.5,
        ttft_count=50.0, tpot_sum_s=7.0, tpot_count=650.0,
    )  # fmt: skip


def test_sglang_as_it_was() -> None:
    """The page's size in a label, no cached tokens, and the older name of the time a token."""
    stats = read_stats("sglang", pages.SGLANG_OLD.encode(), 1.0)
    assert (stats.running, stats.waiting, stats.max_running, stats.block_tokens) == (161, 2826, 2527, 1)
    assert stats.kv_tokens == 161_721
    assert (stats.prefix_queries, stats.prefix_hits) == (None, None)
    assert (stats.tpot_sum_s, stats.tpot_count) == (866.0, 7400.0)


def test_sglang_ranks_tell_the_same_and_data_parallel_ones_add_up() -> None:
    """Tensor-parallel ranks work on the same requests, data-parallel ones on others."""
    page = "".join(
        f'sglang:{name}{{dp_rank="{dp}",tp_rank="{tp}"}} {value}\n'
        for name in ("num_running_reqs", "num_queue_reqs")
        for dp, value in ((0, 4), (1, 3))
        for tp in (dp * 2, dp * 2 + 1)
    )
    stats = read_stats("sglang", page.encode(), 1.0)
    assert (stats.running, stats.waiting) == (7, 7)


def test_tgi() -> None:
    """It tells of requests and tokens, and nothing of its cache."""
    assert read_stats("tgi", pages.TGI.encode(), 1.0) == EngineStats(
        at=1.0, running=4, waiting=7, prompt_tokens=4400.0, output_tokens=8123.0, tpot_sum_s=0.9, tpot_count=44.0
    )


def test_tgi_before_its_first_batch() -> None:
    """A queue without a batch is an idle engine; a page without either is unknown."""
    assert read_stats("tgi", b"tgi_queue_size 0\n", 1.0).running == 0
    with pytest.raises(StatsUnreadable):
        read_stats("tgi", b"# nothing yet\n", 1.0)
    with pytest.raises(StatsUnreadable):
        read_stats("tgi", b"tgi_queue_size 0\ntgi_batch_current_size NaN\n", 1.0)


def test_trtllm_serve() -> None:
    """Blocks times tokens a block, and cached tokens of the prompts' tokens."""
    assert read_stats("tensorrt-llm", pages.TRTLLM.encode(), 1.0) == EngineStats(
        at=1.0, running=6, waiting=2, kv_usage=0.5, kv_tokens=32_000, block_tokens=32, max_running=256,
        prefix_queries=500.0, prefix_hits=100.0, prompt_tokens=500.0, ttft_sum_s=3.0, ttft_count=6.0, tpot_sum_s=0.6,
        tpot_count=6.0,
    )  # fmt: skip


def test_triton() -> None:
    """Who waits is told by newer ones, and follows from `active` and `scheduled` in older ones."""
    stats = read_stats("tensorrt-llm", pages.TRITON.encode(), 1.0)
    assert stats == EngineStats(
        at=1.0, running=4, waiting=2, kv_usage=0.25, kv_tokens=399_360, block_tokens=64, max_running=512
    )
    newer = pages.TRITON + (
        'nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 9\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.75\n'
    )
    stats = read_stats("tensorrt-llm", newer.encode(), 1.0)
    assert (stats.waiting, stats.kv_usage) == (9, 0.75)


def test_trtllm_json() -> None:
    """The last iteration is the present."""
    assert read_stats("tensorrt-llm", pages.TRTLLM_JSON, 1.0) == EngineStats(
        at=1.0, running=5, waiting=3, kv_usage=0.25, kv_tokens=6_400, block_tokens=32, max_running=64
    )


@pytest.mark.parametrize(
    "page",
    [
        b"[]",
        b"[{}]",
        b'[{"numActiveRequests":-1,"numQueuedRequests":0}]',
        b'[{"numActiveRequests":1e400,"numQueuedRequests":0}]',
        b'[{"numActiveRequests":null,"numQueuedRequests":0}]',
        b"[" * 100_000,
    ],
)
def test_trtllm_json_that_tells_nothing(page: bytes) -> None:
    """No iteration since somebody last asked is unknown, not idle."""
    with pytest.raises(StatsUnreadable):
        read_stats("tensorrt-llm", page, 1.0)


def test_llama() -> None:
    """Its prompt tokens are those computed; cached ones come in addition."""
    assert read_stats("llama.cpp", pages.LLAMA.encode(), 1.0) == EngineStats(
        at=1.0, running=0, waiting=0, prefix_queries=75.0, prefix_hits=24.0, prompt_tokens=75.0, output_tokens=12.0,
        tpot_sum_s=0.4407, tpot_count=12.0,
    )  # fmt: skip


def test_llama_as_it_was() -> None:
    """A ratio of its cache, and nothing of what was cached."""
    page = (
        "llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\nllamacpp:kv_cache_usage_ratio 0.5\n"
        "llamacpp:prompt_tokens_total 10\n"
    )
    stats = read_stats("llama.cpp", page.encode(), 1.0)
    assert (stats.kv_usage, stats.prompt_tokens, stats.prefix_queries) == (0.5, 10.0, None)


def test_llama_slots() -> None:
    """From /props; a body that is not what it should be tells nothing."""
    assert read_slots(pages.LLAMA_PROPS) == Slots(max_running=4, kv_tokens=8_192)
    for body in (b"", b"[]", b'{"total_slots":"four"}', b'{"total_slots":-4}', b"{" * 100_000, b'{"\xff":1}'):
        assert read_slots(body) == Slots()


@pytest.mark.parametrize("kind", sorted(OWN_ENGINES))
@pytest.mark.parametrize(
    "page",
    [b"", b"\n", b"<html><body>502 Bad Gateway</body></html>\n", b'{"error":"no"}', b"\x1f\x8b\x08\x00\n", b"up 1\n"],
)
def test_another_page_is_no_statistics(kind: DeploymentKind, page: bytes) -> None:
    """Unknown, never idle."""
    with pytest.raises(StatsUnreadable):
        read_stats(kind, page, 1.0)


def test_every_engine_of_ours_is_read_and_no_other() -> None:
    """A provider's kind has no page."""
    with pytest.raises(StatsUnreadable):
        read_stats("openai", pages.VLLM.encode(), 1.0)
    assert {usual_metrics_path(kind) for kind in OWN_ENGINES} == {"/metrics", "/prometheus/metrics"}


@pytest.mark.parametrize("name", ["vllm:num_requests_running", "vllm:num_requests_waiting"])
@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "1e9", "x"])
def test_without_its_requests_a_page_is_not_believed(name: str, value: str) -> None:
    """How many run and wait is what everything hangs on."""
    page = "".join(
        f'{name}{{engine="0"}} {value}\n' if line.startswith(f"{name}{{") else f"{line}\n"
        for line in pages.VLLM.splitlines()
    )
    with pytest.raises(StatsUnreadable):
        read_stats("vllm", page.encode(), 1.0)


@pytest.mark.parametrize(
    ("changed", "to", "unknown"),
    [
        ("vllm:kv_cache_usage_perc{", "NaN", {"kv_usage"}),
        ("vllm:kv_cache_usage_perc{", "1.5", {"kv_usage"}),
        ("vllm:kv_cache_usage_perc{", "37", {"kv_usage"}),
        ("vllm:prefix_cache_hits_total{", "5000", {"prefix_queries", "prefix_hits"}),
        ("vllm:prefix_cache_hits_total{", "-1", {"prefix_queries", "prefix_hits"}),
        ("vllm:generation_tokens_total{", "1e20", {"output_tokens"}),
        ("vllm:time_to_first_token_seconds_sum{", "NaN", {"ttft_sum_s", "ttft_count"}),
        ("vllm:lora_requests_info{", "NaN", {"adapters", "max_adapters"}),
        ("vllm:cache_config_info{", "NaN", {"kv_tokens", "block_tokens"}),
    ],
)
def test_a_lie_is_unknown_and_spoils_nothing_else(changed: str, to: str, unknown: set[str]) -> None:
    """The rest of the page stays as it was."""
    page = "".join(
        f"{line.rsplit(' ', 1)[0]} {to}\n" if line.startswith(changed) else f"{line}\n"
        for line in pages.VLLM.splitlines()
    )
    honest = read_stats("vllm", pages.VLLM.encode(), 1.0)
    assert read_stats("vllm", page.encode(), 1.0) == msgspec.structs.replace(honest, **dict.fromkeys(unknown))


def test_a_lie_under_the_new_name_is_not_replaced_by_the_old_one() -> None:
    """Two figures of which one is nonsense are no better than none."""
    page = pages.VLLM_OLD + "vllm:kv_cache_usage_perc NaN\n"
    assert read_stats("vllm", page.encode(), 1.0).kv_usage is None


@pytest.mark.parametrize("label", ["None", "-1", "1e9", "0", "99999999999999", "²"])
def test_a_cache_of_no_size_is_unknown(label: str) -> None:
    """Before it has measured its cache, vLLM writes `None`."""
    page = pages.VLLM_OLD.replace('num_gpu_blocks="1000"', f'num_gpu_blocks="{label}"')
    assert read_stats("vllm", page.encode(), 1.0).kv_tokens is None


def test_gpus() -> None:
    """Of the replica's own pod where pods are named, of all GPUs otherwise; memory needs both figures."""
    own = read_gpus(pages.DCGM.encode(), "llama-0")
    assert own.memory == pytest.approx(0.75)
    assert own.utilisation == pytest.approx(0.9)
    everyone = read_gpus(pages.DCGM.encode(), "another")
    assert everyone.memory == pytest.approx(0.5)
    assert everyone.utilisation == pytest.approx(0.5)
    finer = pages.DCGM + 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",pod="llama-0"} 0.42\n'
    assert read_gpus(finer.encode(), "llama-0").utilisation == pytest.approx(0.42)
    for page in (
        b'DCGM_FI_DEV_FB_USED{gpu="0"} 5\n',
        b"DCGM_FI_DEV_FB_USED 0\nDCGM_FI_DEV_FB_FREE 0\n",
        b"DCGM_FI_DEV_FB_USED NaN\nDCGM_FI_DEV_FB_FREE 1\n",
        b"DCGM_FI_DEV_GPU_UTIL 250\n",
        b"<html>",
    ):
        assert read_gpus(page, "llama-0") == GpuReading()


@given(
    st.sampled_from(sorted(OWN_ENGINES)),
    st.lists(
        st.sampled_from(
            [
                line
                for page in (
                    pages.VLLM,
                    pages.VLLM_TWO_ENGINES,
                    pages.SGLANG,
                    pages.TGI,
                    pages.TRTLLM,
                    pages.TRITON,
                    pages.LLAMA,
                )
                for line in page.splitlines()
            ]
        ),
        max_size=12,
    ),
    st.sampled_from(["NaN", "-3", "1e300", "", "0", "7"]),
)
def test_no_mixture_breaks_it(kind: DeploymentKind, lines: list[str], value: str) -> None:
    """Any lines with any values give sound statistics or none."""
    page = "".join(f"{line}\n{line.rsplit(' ', 1)[0]} {value}\n" for line in lines)
    try:
        stats = read_stats(kind, page.encode(), 1.0)
    except StatsUnreadable:
        return
    assert stats.running >= 0
    assert stats.waiting >= 0
    assert stats.kv_usage is None or 0 <= stats.kv_usage <= 1
    assert stats.kv_tokens is None or stats.kv_tokens > 0
