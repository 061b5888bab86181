"""Worked numbers of the requirements that no other file here has: batching, paging, and shared prefixes."""

import math

from planner.plans.gpus import gpu_named
from planner.plans.models import model_named
from planner.plans.roofline import step_times
from planner.plans.sizing import Limits, Targets, Work, memory_of, most_rate
from planner.simulate.kv import KvCache

MODEL, GPU = model_named("llama-3-70b"), gpu_named("h100")
TIMES = step_times(MODEL, GPU, tp=4)
CACHE = memory_of(MODEL, GPU, tp=4).kv_tokens
CHAT = Work(input_tokens=300, output_tokens=200, variation=1.0)
BLOCK = 16
"""Tokens of a block, as vLLM has it."""
RESERVED = 2_048
"""Tokens that an engine without paging sets aside for each request."""


def static_rate(work: Work, places: int) -> float:
    """Requests per second of batches that begin together and end with their longest answer."""
    sigma2 = math.log(1 + work.variation**2)
    # Of so many log-normal lengths the longest is about this quantile.
    longest = work.output_tokens * math.exp(math.sqrt(sigma2) * math.sqrt(2 * math.log(places)) - sigma2 / 2)
    prefill_s = places * TIMES.prefill_s(work.input_tokens)
    return places / (prefill_s + longest * TIMES.decode_step_s(places, places * work.resident))


def test_continuous_batching_is_3_to_10_times_static() -> None:
    """With the places that each has: whole contexts set aside for the one, what is used for the other."""
    places = CACHE // RESERVED
    static = static_rate(CHAT, places)
    continuous = most_rate(TIMES, CHAT, Limits(sequences=1_024, batched_tokens=8_192), CACHE, Targets())
    assert 3 <= continuous / static <= 10


def test_paging_holds_4_to_6_times_as_many() -> None:
    """2,048 tokens set aside for each request, or the 400 that it has on average."""
    assert 4 <= (CACHE / CHAT.resident) / (CACHE / RESERVED) <= 6


def test_four_thousand_tokens_of_ungrouped_heads_are_ten_gigabytes() -> None:
    """2.5 MB a token and 10.24 GB at 4,096: 64 KV heads; Llama 3 70B keeps an eighth."""
    ungrouped = MODEL.kv_bytes_per_token("bf16") * MODEL.heads // MODEL.kv_heads
    assert round(ungrouped / 2**20, 1) == 2.5
    assert round(4_096 * ungrouped / 2**20 / 1_000, 2) == 10.24
    assert ungrouped == 8 * MODEL.kv_bytes_per_token("bf16")


def test_shared_prefixes_take_40_to_60_percent_of_the_memory_away() -> None:
    """A hundred chats at once whose first 192 of 400 tokens are the same instructions, in a cache as vLLM keeps it."""
    cache = KvCache(CACHE // BLOCK, shared_size=1)
    instructions, sequence = range(192 // BLOCK), int(CHAT.resident) // BLOCK
    for _ in range(100):
        found = instructions[: cache.matched(instructions)]
        cache.reference(found)
        cache.take(sequence - len(found))
        for block in instructions[len(found) :]:
            cache.publish(block)
    assert 0.4 <= 1 - cache.used / (100 * sequence) <= 0.6
