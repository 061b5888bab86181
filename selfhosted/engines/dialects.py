"""Parsers of each engine's statistics, old metric names and new, into one vocabulary (`EngineStats`).

The names were taken from the engines' sources and pages: vLLM up to 0.32 (its `gpu_` names of V0 and early V1, and
counters with and without `_total`, too), SGLang up to 0.5, TGI up to 3, TensorRT-LLM behind `trtllm-serve` and behind
Triton, and llama.cpp's server.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from providers.target import DeploymentKind
from selfhosted.engines.prometheus_text import MAX_SAMPLES, PageReader, PageUnreadable, Sample, Series
from selfhosted.replica import EngineStats
from settings.decoding import DECODE_ERRORS

Names = tuple[str, ...]
"""The names of one metric, newest first; the first that the page has is used."""

MAX_REQUESTS: Final = 1_000_000
MAX_KV_TOKENS: Final = 10_000_000_000
MAX_BLOCK_TOKENS: Final = 65_536
MAX_ADAPTERS: Final = 1_000
MAX_NAME_CHARS: Final = 256
# Rounding takes a full cache a hair above 1. More than this is no part of anything.
_FULL: Final = 1.01
# Labels of ranks that work on the same requests: each reports the same value, so they must not be summed.
_RANKS: Final = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "attn_tp_rank", "pid"})
# SGLang counts each priority apart, and all together under the empty one.
_PRIORITY: Final = "priority"
_STARTED: Final = "process_start_time_seconds"


class StatsUnreadable(Exception):
    """The whole page is rejected. The message gives the reason, for people, without quoting what the engine sent."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed content of one metrics page."""

    stats: EngineStats
    asleep: bool = False
    """True when vLLM was put to sleep: it answers probes, but serves no requests."""
    started: float | None = None
    """Start time of the engine's process in seconds, by its own clock; a different value means a different process."""


class _Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Metric names of the counters, which are summed over an engine's series."""

    prefix_queries: Names = ()
    prefix_hits: Names = ()
    prompt_tokens: Names = ()
    output_tokens: Names = ()
    preemptions: Names = ()
    ttft: Names = ()
    """Histogram names, without `_sum` and `_count`."""
    tpot: Names = ()

    def names(self) -> Iterable[str]:
        yield from self.prefix_queries
        yield from self.prefix_hits
        yield from self.prompt_tokens
        yield from self.output_tokens
        yield from self.preemptions
        for histogram in (*self.ttft, *self.tpot):
            yield f"{histogram}_sum"
            yield f"{histogram}_count"


def read_stats(kind: DeploymentKind, page: bytes, at: float) -> EngineStats:
    """Return the statistics of a metrics page. Raises StatsUnreadable."""
    return read_page(kind, page, at).stats


def read_page(kind: DeploymentKind, page: bytes, at: float, *, rank: int | None = None) -> Reading:
    """Return the parsed metrics page of an engine of this kind, or of one of its data-parallel ranks alone. Raises StatsUnreadable."""
    dialect = _DIALECTS.get(kind)
    if dialect is None:
        raise StatsUnreadable(f"nothing is known of how {kind} tells its statistics")
    try:
        return dialect(page if rank is None else _of_rank(kind, page, rank), at)
    except PageUnreadable as error:
        raise StatsUnreadable(str(error)) from None


def ranks_on(kind: DeploymentKind, page: bytes) -> int:
    """Return how many data-parallel ranks tell their statistics on a page; 1 where nothing tells them apart."""
    label = _RANK_LABELS.get(kind)
    if label is None:
        return 1
    return max(1, len({found.group(1) for found in islice(label.finditer(page), MAX_SAMPLES)}))


def _of_rank(kind: DeploymentKind, page: bytes, rank: int) -> bytes:
    """Return the page without the series of other ranks. What has no rank is the process's, and stays."""
    label = _RANK_LABELS.get(kind)
    lines, own = page.splitlines(keepends=True), str(rank).encode()
    found = [None if label is None else label.search(line) for line in lines]
    if not any(each is not None and each.group(1) == own for each in found):
        raise StatsUnreadable(f"it tells nothing of its data-parallel rank {rank}")
    return b"".join(line for line, each in zip(lines, found, strict=True) if each is None or each.group(1) == own)


_RANK_LABELS: Final[Mapping[DeploymentKind, "re.Pattern[bytes]"]] = {
    "vllm": re.compile(rb'[{,]engine="([0-9]{1,4})"'),
    "sglang": re.compile(rb'[{,]dp_rank="([0-9]{1,4})"'),
}


def usual_metrics_path(kind: DeploymentKind) -> str:
    """Return the default path of the Prometheus page: TensorRT-LLM's server has JSON at the usual `/metrics`."""
    return "/prometheus/metrics" if kind == "tensorrt-llm" else "/metrics"


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU exporter's reading of a replica's GPUs; a field is None when unknown."""

    memory: float | None = None
    """Fraction of the memory in use, 0 to 1: (used + reserved) / (used + reserved + free)."""
    utilisation: float | None = None
    """Fraction of the time in which a kernel ran, 0 to 1, as a mean over the GPUs."""


def read_gpus(page: bytes, replica: str) -> GpuReading:
    """Parse a DCGM exporter's page. Counts the replica's pod only, where the page labels pods."""
    try:
        series = _DCGM.read(page)
    except PageUnreadable:
        return GpuReading()
    used, free, reserved = (_of_pod(series.get(name), replica) for name in (_FB_USED, _FB_FREE, _FB_RESERVED))
    active, busy = (_of_pod(series.get(name), replica) for name in (_ENGINE_ACTIVE, _GPU_UTIL))
    memory = None
    if used and free is not None and sum(used) + sum(free) > 0:
        taken = sum(used) + sum(reserved or ())
        memory = taken / (taken + sum(free))
    # The profiling figure is the finer one, where the exporter is set up to have it; the other is in per cent.
    utilisation = _average(active) if active else _average([value / 100 for value in busy or ()])
    return GpuReading(memory=memory, utilisation=_fraction(utilisation))


_FB_USED, _FB_FREE, _FB_RESERVED = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED"
_GPU_UTIL, _ENGINE_ACTIVE = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
_DCGM: Final = PageReader((_FB_USED, _FB_FREE, _FB_RESERVED, _GPU_UTIL, _ENGINE_ACTIVE))


def _of_pod(samples: tuple[Sample, ...] | None, replica: str) -> list[float] | None:
    if not samples:
        return None
    labelled = [(sample.labels(), sample.value) for sample in samples]
    own = [value for labels, value in labelled if replica in (labels.get("pod"), labels.get("exported_pod"))]
    return own or [value for _, value in labelled]


def _average(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


# --- helpers of all dialects -----------------------------------------------------------------------------------------


def _first(series: Series, names: Names) -> tuple[Sample, ...] | None:
    """Return the samples of the first name that the page has. An invalid metric is not replaced by its older name."""
    for name in names:
        if name in series:
            return series[name]
    return None


def _total(series: Series, names: Names) -> float | None:
    samples = _first(series, names)
    return None if samples is None else sum(sample.value for sample in samples)


def _mean(series: Series, names: Names) -> float | None:
    samples = _first(series, names)
    return None if not samples else sum(sample.value for sample in samples) / len(samples)


def _counters(series: Series, names: _Counters, total: Callable[[Series, Names], float | None]) -> dict[str, Any]:
    ttft_sum, ttft_count = _histogram(series, names.ttft, total)
    tpot_sum, tpot_count = _histogram(series, names.tpot, total)
    queries, hits = total(series, names.prefix_queries), total(series, names.prefix_hits)
    # With more hits than look-ups, or one without the other, there is no hit rate.
    if queries is None or hits is None or hits > queries:
        queries = hits = None
    return {
        "prefix_queries": queries,
        "prefix_hits": hits,
        "prompt_tokens": total(series, names.prompt_tokens),
        "output_tokens": total(series, names.output_tokens),
        "preemptions": total(series, names.preemptions),
        "ttft_sum_s": ttft_sum,
        "ttft_count": ttft_count,
        "tpot_sum_s": tpot_sum,
        "tpot_count": tpot_count,
    }


def _histogram(
    series: Series, names: Names, total: Callable[[Series, Names], float | None]
) -> tuple[float | None, float | None]:
    for name in names:
        if f"{name}_sum" in series or f"{name}_count" in series:
            seconds, count = total(series, (f"{name}_sum",)), total(series, (f"{name}_count",))
            return (None, None) if seconds is None or count is None else (seconds, count)
    return None, None


def _requests(value: float | None, what: str) -> int:
    if value is None:
        raise StatsUnreadable(f"it does not say, or says nonsense of, how many requests {what}")
    if value > MAX_REQUESTS:
        raise StatsUnreadable(f"it says that more than {MAX_REQUESTS} requests {what}")
    return round(value)


def _fraction(value: float | None) -> float | None:
    if value is None or value > _FULL:
        return None
    return min(value, 1.0)


def _count(value: float | None, most: int) -> int | None:
    """Return the value as an integer; None unless it is between 1 and `most`."""
    if value is None or not 1 <= value <= most:
        return None
    return round(value)


def _number(text: str | None, most: int) -> int | None:
    """Return the same for a label's text. Engines in Python write `None` there when they do not know."""
    if text is None or not text.isdecimal() or len(text) > len(str(most)):
        return None
    return _count(int(text), most)


def _product(blocks: int | None, block_tokens: int | None) -> int | None:
    if blocks is None or block_tokens is None:
        return None
    return _count(blocks * block_tokens, MAX_KV_TOKENS)


def _started(series: Series) -> float | None:
    samples = series.get(_STARTED)
    return samples[0].value if samples is not None and len(samples) == 1 else None


# --- vLLM -------------------------------------------------------------------------------------------------------------

_VLLM_RUNNING: Final = ("vllm:num_requests_running",)
_VLLM_WAITING: Final = ("vllm:num_requests_waiting",)
_VLLM_KV: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_VLLM_CACHE: Final = "vllm:cache_config_info"
_VLLM_LORA: Final = "vllm:lora_requests_info"
_VLLM_SLEEP: Final = "vllm:engine_sleep_state"
_VLLM: Final = _Counters(
    prefix_queries=(
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_queries",
        "vllm:gpu_prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries",
    ),
    prefix_hits=(
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_hits",
        "vllm:gpu_prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits",
    ),
    prompt_tokens=("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
    output_tokens=("vllm:generation_tokens_total", "vllm:generation_tokens"),
    preemptions=("vllm:num_preemptions_total", "vllm:num_preemptions"),
    ttft=("vllm:time_to_first_token_seconds",),
    tpot=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
)
_VLLM_READER: Final = PageReader(
    (*_VLLM_RUNNING, *_VLLM_WAITING, *_VLLM_KV, _VLLM_CACHE, _VLLM_LORA, _VLLM_SLEEP, _STARTED, *_VLLM.names())
)


def _vllm(page: bytes, at: float) -> Reading:
    """Parse vLLM's page. Data-parallel engines in one process have a series each: requests and caches add up, usage is
    averaged.
    """
    series = _VLLM_READER.read(page)
    kv_tokens, block_tokens = _vllm_cache(series.get(_VLLM_CACHE))
    adapters, max_adapters = _vllm_adapters(series.get(_VLLM_LORA))
    stats = EngineStats(
        at=at,
        running=_requests(_total(series, _VLLM_RUNNING), "run"),
        waiting=_requests(_total(series, _VLLM_WAITING), "wait"),
        kv_usage=_fraction(_mean(series, _VLLM_KV)),
        kv_tokens=kv_tokens,
        block_tokens=block_tokens,
        adapters=adapters,
        max_adapters=max_adapters,
        **_counters(series, _VLLM, _total),
    )
    return Reading(stats=stats, asleep=_asleep(series.get(_VLLM_SLEEP)), started=_started(series))


def _vllm_cache(samples: tuple[Sample, ...] | None) -> tuple[int | None, int | None]:
    """Return the capacity of all caches in tokens, and tokens in a block. Newer versions report the tokens, which
    differ for hybrid models.
    """
    if not samples:
        return None, None
    tokens, block_tokens = 0, set()
    for sample in samples:
        labels = sample.labels()
        block = _number(labels.get("block_size"), MAX_BLOCK_TOKENS)
        held = _number(labels.get("kv_cache_size_tokens"), MAX_KV_TOKENS)
        held = held or _product(_number(labels.get("num_gpu_blocks"), MAX_KV_TOKENS), block)
        if held is None:
            return None, block
        tokens += held
        block_tokens.add(block)
    return _count(tokens, MAX_KV_TOKENS), block_tokens.pop() if len(block_tokens) == 1 else None


def _vllm_adapters(samples: tuple[Sample, ...] | None) -> tuple[frozenset[str] | None, int | None]:
    """Return the adapters with requests, and the most that are loaded at once. The sample's value is the time of its
    writing, and old series stay on the page: only the newest counts.
    """
    if not samples:
        return None, None
    labels = max(samples, key=lambda sample: sample.value).labels()
    running = labels.get("running_lora_adapters", "").split(",")
    waiting = labels.get("waiting_lora_adapters", "").split(",")
    names = frozenset(name for name in (*running, *waiting) if name and len(name) <= MAX_NAME_CHARS)
    return (names if len(names) <= MAX_ADAPTERS else None), _number(labels.get("max_lora"), MAX_ADAPTERS)


def _asleep(samples: tuple[Sample, ...] | None) -> bool:
    """Return whether any engine of the process sleeps. Versions before 0.12 or so do not report it, and are taken to be
    awake.
    """
    return any(
        'sleep_state="awake"' in sample.raw_labels.decode(errors="replace") and sample.value == 0
        for sample in samples or ()
    )


# --- SGLang -----------------------------------------------------------------------------------------------------------

_SGLANG_RUNNING: Final = ("sglang:num_running_reqs",)
_SGLANG_WAITING: Final = ("sglang:num_queue_reqs",)
_SGLANG_KV: Final = ("sglang:token_usage",)
_SGLANG_KV_TOKENS: Final = ("sglang:max_total_num_tokens",)
_SGLANG_PAGE: Final = ("sglang:page_size",)
_SGLANG_MAX: Final = ("sglang:max_running_requests",)
_SGLANG_CACHE: Final = "sglang:cache_config_info"
_SGLANG: Final = _Counters(
    prefix_queries=("sglang:prompt_tokens_total",),
    prefix_hits=("sglang:cached_tokens_total",),
    prompt_tokens=("sglang:prompt_tokens_total",),
    output_tokens=("sglang:generation_tokens_total",),
    preemptions=("sglang:num_retracted_reqs_total",),
    ttft=("sglang:time_to_first_token_seconds",),
    tpot=("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
)
_SGLANG_READER: Final = PageReader(
    (
        *_SGLANG_RUNNING,
        *_SGLANG_WAITING,
        *_SGLANG_KV,
        *_SGLANG_KV_TOKENS,
        *_SGLANG_PAGE,
        *_SGLANG_MAX,
        _SGLANG_CACHE,
        _STARTED,
        *_SGLANG.names(),
    )
)


def _sglang(page: bytes, at: float) -> Reading:
    series = _SGLANG_READER.read(page)
    cache = series.get(_SGLANG_CACHE)
    labels = cache[0].labels() if cache else {}
    usage = _by_engine(series, _SGLANG_KV)
    block_tokens = _largest(series, _SGLANG_PAGE, MAX_BLOCK_TOKENS) or _number(
        labels.get("page_size"), MAX_BLOCK_TOKENS
    )
    kv_tokens = _count(_engines_total(series, _SGLANG_KV_TOKENS), MAX_KV_TOKENS)
    if kv_tokens is None:
        kv_tokens = _product(_number(labels.get("num_pages"), MAX_KV_TOKENS), block_tokens)
    stats = EngineStats(
        at=at,
        running=_requests(_engines_total(series, _SGLANG_RUNNING), "run"),
        waiting=_requests(_engines_total(series, _SGLANG_WAITING), "wait"),
        kv_usage=_fraction(sum(usage) / len(usage)) if usage else None,
        kv_tokens=kv_tokens,
        block_tokens=block_tokens,
        max_running=_count(_engines_total(series, _SGLANG_MAX), MAX_REQUESTS),
        **_counters(series, _SGLANG, _ranks_total),
    )
    return Reading(stats=stats, started=_started(series))


def _grouped(samples: tuple[Sample, ...], *, all_priorities: bool) -> list[float]:
    """Return one value for each set of labels without the ranks: the ranks of one engine report the same, and the
    highest is taken.
    """
    groups: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        labels = sample.labels()
        if not all_priorities and labels.get(_PRIORITY):
            continue
        key = tuple(sorted((name, value) for name, value in labels.items() if name not in _RANKS))
        groups[key] = max(groups.get(key, 0.0), sample.value)
    return list(groups.values())


def _by_engine(series: Series, names: Names) -> list[float] | None:
    samples = _first(series, names)
    return None if samples is None else _grouped(samples, all_priorities=False)


def _engines_total(series: Series, names: Names) -> float | None:
    figures = _by_engine(series, names)
    return sum(figures) if figures else None


def _ranks_total(series: Series, names: Names) -> float | None:
    """Sum over a counter's series, where no series is the sum of others."""
    samples = _first(series, names)
    return None if samples is None else sum(_grouped(samples, all_priorities=True))


def _largest(series: Series, names: Names, most: int) -> int | None:
    samples = _first(series, names)
    return _count(max(sample.value for sample in samples), most) if samples else None


# --- TGI --------------------------------------------------------------------------------------------------------------

_TGI_RUNNING: Final = ("tgi_batch_current_size",)
_TGI_WAITING: Final = ("tgi_queue_size",)
_TGI: Final = _Counters(
    prompt_tokens=("tgi_request_input_length_sum",),
    output_tokens=("tgi_request_generated_tokens_sum",),
    tpot=("tgi_request_mean_time_per_token_duration",),
)
_TGI_READER: Final = PageReader((*_TGI_RUNNING, *_TGI_WAITING, _STARTED, *_TGI.names()))


def _tgi(page: bytes, at: float) -> Reading:
    """Parse TGI's page, which has neither cache usage nor hits, and before the first request no metrics at all."""
    series = _TGI_READER.read(page)
    waiting = _requests(_total(series, _TGI_WAITING), "wait")
    # The batch size is first exported with the first batch; until then there is none.
    running = _requests(_total(series, _TGI_RUNNING), "run") if _TGI_RUNNING[0] in series else 0
    stats = EngineStats(at=at, running=running, waiting=waiting, **_counters(series, _TGI, _total))
    return Reading(stats=stats, started=_started(series))


# --- TensorRT-LLM -----------------------------------------------------------------------------------------------------

_TRTLLM_RUNNING: Final = ("trtllm_num_requests_running", "trtllm_num_active_requests")
_TRTLLM_WAITING: Final = ("trtllm_num_requests_waiting", "trtllm_server_queue_length")
_TRTLLM_KV: Final = ("trtllm_kv_cache_utilization",)
_TRTLLM_BLOCKS: Final = ("trtllm_kv_cache_max_blocks",)
_TRTLLM_BLOCK_TOKENS: Final = ("trtllm_kv_cache_tokens_per_block",)
_TRTLLM_MAX: Final = ("trtllm_max_num_active_requests",)
_TRTLLM: Final = _Counters(
    prefix_queries=("trtllm_prompt_tokens_total",),
    prefix_hits=("trtllm_prompt_cached_tokens_total",),
    prompt_tokens=("trtllm_prompt_tokens_total",),
    output_tokens=("trtllm_generation_tokens_total",),
    ttft=("trtllm_time_to_first_token_seconds",),
    tpot=("trtllm_time_per_output_token_seconds",),
)
_TRITON_REQUESTS: Final = "nv_trt_llm_request_metrics"
_TRITON_BLOCKS: Final = "nv_trt_llm_kv_cache_block_metrics"
_TRT_READER: Final = PageReader(
    (
        *_TRTLLM_RUNNING,
        *_TRTLLM_WAITING,
        *_TRTLLM_KV,
        *_TRTLLM_BLOCKS,
        *_TRTLLM_BLOCK_TOKENS,
        *_TRTLLM_MAX,
        _TRITON_REQUESTS,
        _TRITON_BLOCKS,
        _STARTED,
        *_TRTLLM.names(),
    )
)


def _trt(page: bytes, at: float) -> Reading:
    """Parse any of TensorRT-LLM's three pages: `trtllm-serve`'s, the JSON of its earlier versions, and Triton's."""
    if page.startswith(b"["):
        return Reading(stats=_trt_json(page, at))
    series = _TRT_READER.read(page)
    stats = _triton(series, at) if _TRITON_REQUESTS in series else _trtllm_serve(series, at)
    return Reading(stats=stats, started=_started(series))


def _trtllm_serve(series: Series, at: float) -> EngineStats:
    block_tokens = _count(_mean(series, _TRTLLM_BLOCK_TOKENS), MAX_BLOCK_TOKENS)
    return EngineStats(
        at=at,
        running=_requests(_total(series, _TRTLLM_RUNNING), "run"),
        waiting=_requests(_total(series, _TRTLLM_WAITING), "wait"),
        kv_usage=_fraction(_mean(series, _TRTLLM_KV)),
        kv_tokens=_product(_count(_total(series, _TRTLLM_BLOCKS), MAX_KV_TOKENS), block_tokens),
        block_tokens=block_tokens,
        max_running=_count(_total(series, _TRTLLM_MAX), MAX_REQUESTS),
        **_counters(series, _TRTLLM, _total),
    )


def _triton(series: Series, at: float) -> EngineStats:
    """Parse Triton's metrics. `active` counts all requests that the engine holds, `scheduled` those that it works on;
    older versions do not report `waiting`, which is their difference.
    """
    requests = _by_label(series.get(_TRITON_REQUESTS), "request_type")
    blocks = _by_label(series.get(_TRITON_BLOCKS), "kv_cache_block_type")
    running, active = requests.get("scheduled"), requests.get("active")
    waiting = requests.get("waiting")
    if waiting is None and running is not None and active is not None:
        waiting = max(0.0, active - running)
    most, used = blocks.get("max"), blocks.get("used")
    usage = blocks.get("fraction")
    if usage is None and most and used is not None:
        usage = used / most
    block_tokens = _count(blocks.get("tokens_per"), MAX_BLOCK_TOKENS)
    return EngineStats(
        at=at,
        running=_requests(running, "run"),
        waiting=_requests(waiting, "wait"),
        kv_usage=_fraction(usage),
        kv_tokens=_product(_count(most, MAX_KV_TOKENS), block_tokens),
        block_tokens=block_tokens,
        max_running=_count(requests.get("max"), MAX_REQUESTS),
    )


def _by_label(samples: tuple[Sample, ...] | None, label: str) -> Mapping[str, float]:
    """Sum over the models that Triton runs, by the label's value."""
    sums: dict[str, float] = {}
    for sample in samples or ():
        kind = sample.labels().get(label, "")
        sums[kind] = sums.get(kind, 0.0) + sample.value
    return sums


class _KvCacheJson(msgspec.Struct, frozen=True, rename="camel"):
    max_num_blocks: float = 0
    used_num_blocks: float = 0
    tokens_per_block: float = 0


class _IterationJson(msgspec.Struct, frozen=True, rename="camel"):
    num_active_requests: float
    num_queued_requests: float
    max_num_active_requests: float = 0
    kv_cache_stats: _KvCacheJson | None = None


_ITERATIONS: Final = msgspec.json.Decoder(list[_IterationJson])


def _trt_json(page: bytes, at: float) -> EngineStats:
    """Parse the JSON list of iterations since the last request for it: only the last entry is current, and an empty
    list means unknown.
    """
    try:
        iterations = _ITERATIONS.decode(page)
    except DECODE_ERRORS:
        raise StatsUnreadable("its JSON has not the shape of TensorRT-LLM's iterations") from None
    if not iterations:
        raise StatsUnreadable("it tells of no iteration since it was asked last")
    last = iterations[-1]
    cache = last.kv_cache_stats or _KvCacheJson()
    block_tokens = _count(cache.tokens_per_block, MAX_BLOCK_TOKENS)
    return EngineStats(
        at=at,
        running=_requests(_not_negative(last.num_active_requests), "run"),
        waiting=_requests(_not_negative(last.num_queued_requests), "wait"),
        kv_usage=_fraction(_not_negative(cache.used_num_blocks / cache.max_num_blocks))
        if cache.max_num_blocks
        else None,
        kv_tokens=_product(_count(cache.max_num_blocks, MAX_KV_TOKENS), block_tokens),
        block_tokens=block_tokens,
        max_running=_count(last.max_num_active_requests, MAX_REQUESTS),
    )


def _not_negative(value: float) -> float | None:
    return value if value >= 0 else None


# --- llama.cpp --------------------------------------------------------------------------------------------------------

_LLAMA_RUNNING: Final = ("llamacpp:requests_processing",)
_LLAMA_WAITING: Final = ("llamacpp:requests_deferred",)
_LLAMA_KV: Final = ("llamacpp:kv_cache_usage_ratio",)
_LLAMA_PROMPT: Final = ("llamacpp:prompt_tokens_total",)
_LLAMA_CACHED: Final = ("llamacpp:prompt_tokens_cached_total",)
_LLAMA_OUTPUT: Final = ("llamacpp:tokens_predicted_total",)
_LLAMA_OUTPUT_S: Final = ("llamacpp:tokens_predicted_seconds_total",)
_LLAMA_READER: Final = PageReader(
    (
        *_LLAMA_RUNNING,
        *_LLAMA_WAITING,
        *_LLAMA_KV,
        *_LLAMA_PROMPT,
        *_LLAMA_CACHED,
        *_LLAMA_OUTPUT,
        *_LLAMA_OUTPUT_S,
        _STARTED,
    )
)


def _llama(page: bytes, at: float) -> Reading:
    """Parse llama.cpp's page. Its prompt tokens leave out cached ones, and it has no histograms: decoding time is a
    sum.
    """
    series = _LLAMA_READER.read(page)
    computed, cached = _total(series, _LLAMA_PROMPT), _total(series, _LLAMA_CACHED)
    both = None if computed is None or cached is None else computed + cached
    output, output_s = _total(series, _LLAMA_OUTPUT), _total(series, _LLAMA_OUTPUT_S)
    timed = output is not None and output_s is not None
    stats = EngineStats(
        at=at,
        running=_requests(_total(series, _LLAMA_RUNNING), "run"),
        waiting=_requests(_total(series, _LLAMA_WAITING), "wait"),
        kv_usage=_fraction(_total(series, _LLAMA_KV)),
        prefix_queries=both,
        prefix_hits=cached if both is not None else None,
        prompt_tokens=both if both is not None else computed,
        output_tokens=output,
        tpot_sum_s=output_s if timed else None,
        tpot_count=output if timed else None,
    )
    return Reading(stats=stats, started=_started(series))


class _Generation(msgspec.Struct, frozen=True):
    n_ctx: int = 0


class _Props(msgspec.Struct, frozen=True):
    total_slots: int = 0
    default_generation_settings: _Generation = _Generation()


_PROPS: Final = msgspec.json.Decoder(_Props)


class Slots(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of llama.cpp that only /props reports; they change only with the process."""

    max_running: int | None = None
    kv_tokens: int | None = None


def read_slots(body: bytes) -> Slots:
    """Parse the body of /props; fields are None where it is invalid."""
    try:
        props = _PROPS.decode(body)
    except DECODE_ERRORS:
        return Slots()
    slots = _count(props.total_slots, MAX_REQUESTS)
    context = _count(props.default_generation_settings.n_ctx, MAX_KV_TOKENS)
    return Slots(max_running=slots, kv_tokens=_product(slots, context))


_DIALECTS: Final[Mapping[str, Callable[[bytes, float], Reading]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "tgi": _tgi,
    "tensorrt-llm": _trt,
    "llama.cpp": _llama,
}
