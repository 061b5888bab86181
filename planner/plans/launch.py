"""vLLM's arguments and environment, for the version that the extra `vllm` names."""

import json
import re
import shlex
from typing import Any, Final, Literal

import msgspec

from planner.plans.gpus import Gpu
from planner.plans.models import KvPrecision, Precision
from planner.plans.plan_errors import PlanRefused
from planner.plans.sizing import Limits

KvOffload = Literal["native", "lmcache"]
"""The mover of KV blocks to main memory: vLLM itself, or LMCache."""
VLLM_VERSION: Final = "0.32.0"
"""Version of vLLM, the same as in pyproject.toml's extra; a test keeps them together."""
PORT: Final = 8_000
SHUTDOWN_S: Final = 600
READ_AHEAD_TOKENS: Final = 192
"""Tokens in one piece of a batch prompt: a step that reads a piece is about a quarter longer than one that only
generates (70B on four H100: 20 ms instead of 16).
"""
SIDE_CHANNEL_PORT: Final = "VLLM_NIXL_SIDE_CHANNEL_PORT"
SIDE_CHANNEL_HOST: Final = "VLLM_NIXL_SIDE_CHANNEL_HOST"
"""Variables of NixlConnector: where others find an engine to hand over a KV cache."""
_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9/._][A-Za-z0-9._/:@-]{0,254}")
_SERVED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,127}")


_MOST_DEFAULTS: Final = (
    # Of vLLM 0.32's `EngineArgs.get_batch_defaults`, for its server: bytes of memory from which they hold.
    (160 * 2**30, Limits(sequences=1_024, batched_tokens=16_384)),
    (70 * 2**30, Limits(sequences=1_024, batched_tokens=8_192)),
)
_LEAST_DEFAULTS: Final = Limits(sequences=256, batched_tokens=2_048)


def defaults_of(gpu: Gpu) -> Limits:
    """Return vLLM's defaults for `--max-num-seqs` and `--max-num-batched-tokens` on this GPU."""
    if not gpu.name.startswith("a100"):
        for least_bytes, limits in _MOST_DEFAULTS:
            if gpu.memory_bytes >= least_bytes:
                return limits
    return _LEAST_DEFAULTS


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The launch of one engine process."""

    version: str
    repository: str
    served_name: str
    gpus: int
    """GPUs of one replica, over all its nodes."""
    ranks: int = 1
    """Data-parallel ranks behind its address."""
    arguments: tuple[str, ...]
    """Arguments after `vllm serve`."""
    environment: dict[str, str]
    port: int = PORT
    nodes: int = 1
    """Nodes that one replica takes. Each starts the same command with `--nnodes`, its own `--node-rank` and the first one's
    address as `--master-addr`; all but the first are `--headless`."""

    @property
    def command(self) -> str:
        """The command line, quoted for a shell."""
        words = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*words, shlex.join(("vllm", "serve", *self.arguments))])


def launch_of(
    *,
    repository: str,
    served_name: str,
    tp: int,
    pp: int = 1,
    dp: int = 1,
    nodes: int = 1,
    precision: Precision,
    kv_precision: KvPrecision,
    quantised: bool,
    max_context: int,
    limits: Limits,
    memory_utilisation: float,
    speculative: dict[str, Any] | None,
    adapters: int,
    adapter_rank: int,
    kv_events_port: int | None,
    kv_offload_gib: int = 0,
    kv_offload: KvOffload = "native",
) -> Launch:
    """Build the launch of a plan. vLLM's own defaults are written down as well, so that they stay as planned. Raises
    PlanRefused.
    """
    if _REPOSITORY.fullmatch(repository) is None:
        raise PlanRefused(
            "a repository is letters, digits and . _ - / : @, at most 255 of them, and begins with no dash"
        )
    if _SERVED.fullmatch(served_name) is None:
        raise PlanRefused("a model's name is letters, digits and . _ - / : @, at most 128 of them")
    words = [repository, "--served-model-name", served_name, "--host", "0.0.0.0", "--port", str(PORT)]  # noqa: S104 - in its own pod or container
    words += ["--tensor-parallel-size", str(tp)]
    if pp > 1:
        words += ["--pipeline-parallel-size", str(pp)]
    if dp > 1:
        words += ["--data-parallel-size", str(dp), "--enable-expert-parallel"]
    words += ["--max-model-len", str(max_context)]
    words += ["--max-num-seqs", str(limits.sequences)]
    words += ["--max-num-batched-tokens", str(limits.batched_tokens)]
    words += ["--gpu-memory-utilization", f"{memory_utilisation:g}"]
    if precision == "fp8" and not quantised:
        # Quantises while it loads; a checkpoint that is quantised already says so itself.
        words += ["--quantization", "fp8"]
    words += ["--dtype", "bfloat16", "--kv-cache-dtype", "fp8" if kv_precision == "fp8" else "auto"]
    words += ["--enable-chunked-prefill", "--enable-prefix-caching", "--enable-prompt-tokens-details"]
    words += ["--scheduling-policy", "priority"]
    words += ["--shutdown-timeout", str(SHUTDOWN_S)]
    environment: dict[str, str] = {}
    if speculative is not None:
        words += ["--speculative-config", json.dumps(speculative, separators=(",", ":"))]
    if adapters:
        words += ["--enable-lora", "--max-loras", str(adapters), "--max-lora-rank", str(_rank(adapter_rank))]
        words += ["--max-cpu-loras", str(4 * adapters)]
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if kv_offload_gib:
        words += ["--kv-offloading-size", str(kv_offload_gib), "--kv-offloading-backend", kv_offload]
    if kv_events_port is not None:
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{kv_events_port}",
            # Each data-parallel rank binds both ports plus its number.
            "replay_endpoint": f"tcp://*:{kv_events_port + dp}",
            "topic": "kv",
        }
        words += ["--kv-events-config", json.dumps(events, separators=(",", ":"))]
    return Launch(
        version=VLLM_VERSION,
        repository=repository,
        served_name=served_name,
        gpus=tp * pp * dp,
        ranks=dp,
        arguments=tuple(words),
        environment=environment,
        nodes=nodes,
    )


def on_loopback(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command for one's own machine: the server listens on the loopback, and KV events are off, since vLLM binds their
    sockets to every address or to none.
    """
    words = list(command)
    if "--host" in words[:-1]:
        words[words.index("--host") + 1] = "127.0.0.1"
    if "--kv-events-config" in words[:-1]:
        at = words.index("--kv-events-config")
        del words[at : at + 2]
    return tuple(words)


def _rank(rank: int) -> int:
    """Return the smallest adapter rank of at least `rank` that vLLM has kernels for. Raises PlanRefused above the largest."""
    for each in _RANKS:
        if each >= rank:
            return each
    raise PlanRefused(f"vLLM serves adapters up to rank {_RANKS[-1]}")
