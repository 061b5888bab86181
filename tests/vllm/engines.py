"""Real vLLM replicas as child processes, and what they say of themselves."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

MODEL: Final = "tiny"
BLOCK_TOKENS: Final = 32
BLOCKS: Final = 256
SEATS: Final = 4
"""Requests that one replica runs at once; the next one waits."""
CONTEXT_TOKENS: Final = 4_096
KV_PORT_ABOVE: Final = 1_000
"""Engines that share a host publish at ports of their own."""

_STANDSTILL_S: Final = 60.0
"""An engine that has computed next to nothing for so long will not get on any more."""
_LEAST_BUSY_S: Final = 1.0
"""What that is: seconds of a processor. One that waits for work takes less."""
_ANSWER_S: Final = 600.0
_STOP_S: Final = 60.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_POLL_S: Final = 0.05
_SERVE: Final = Path(__file__).with_name("serve.py")
# A Prometheus line: name, labels, value.
_SAMPLE: Final = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{[^}]*\})? (\S+)", re.MULTILINE)


class EngineFailed(Exception):
    """An engine did not start; the message ends with its log."""


class VllmReplica:
    """One engine. It can be killed and started again, at the same address."""

    def __init__(
        self,
        name: str,
        *,
        python: str,
        made: Path,
        folder: Path,
        blocks: int = BLOCKS,
        seats: int = SEATS,
        more: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self._more = tuple(more)
        self._environment = environment
        self._blocks = blocks
        self._seats = seats
        self.adapter = made / "adapter"
        self._model = made / "model"
        self._python = python
        self._log = folder / f"{name}.log"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def kv_port(self) -> int:
        """Where it publishes what it caches."""
        return self.port + KV_PORT_ABOVE

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Returns once it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._python, str(_SERVE), *self._arguments()],
                env={**_environ(), **self._environment},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        patience = Patience(self)
        while not self._answers():
            if not self.running or patience.is_over():
                self.kill()
                tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-25:])
                raise EngineFailed(f"{self.name} did not start:\n{tail}")
            time.sleep(0.25)

    def warm(self) -> None:
        """Its first answers of each kind take seconds, in which it answers nobody else either."""
        messages = [{"role": "user", "content": "def warm(self): return 1"}]
        for stream in (False, True):
            body = {"model": MODEL, "messages": messages, "max_tokens": 32, "stream": stream}
            self._call("/v1/chat/completions", json.dumps(body).encode())

    def kill(self) -> None:
        """Kill -9 of the server and of the engine's processes, which are its group."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_STOP_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None

    def samples(self) -> Mapping[str, float]:
        """What its metrics page says now; samples of one name are added up."""
        found: dict[str, float] = {}
        for name, value in _SAMPLE.findall(self.get("/metrics").decode()):
            found[name] = found.get(name, 0.0) + float(value)
        return found

    def models(self) -> set[str]:
        """The model and the adapters that are loaded."""
        return {entry["id"] for entry in json.loads(self.get("/v1/models"))["data"]}

    def empty_cache(self) -> None:
        """Forgets all prefixes. Nothing may run."""
        self._call("/reset_prefix_cache", b"")

    def open_answers(self) -> int:
        """Requests that its server has not ended yet."""
        return int(json.loads(self.get("/load"))["server_load"])

    @contextlib.contextmanager
    def held_still(self) -> Iterator[None]:
        """It makes no token meanwhile; its server answers, takes requests and sees callers leave."""
        assert self._process is not None
        steppers = [pid for pid in _children(self._process.pid) if _command(pid).startswith("VLLM::Engine")]
        assert steppers
        for pid in steppers:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in steppers:
                os.kill(pid, signal.SIGCONT)

    def get(self, path: str) -> bytes:
        return self._call(path, None)

    def busy_s(self) -> float:
        """Seconds of a processor that it took, of all its processes that are there."""
        return 0.0 if self._process is None else sum(map(_busy_ticks, _group(self._process.pid))) / _TICKS

    def _call(self, path: str, body: bytes | None) -> bytes:
        request = urllib.request.Request(f"{self.url}{path}", body, {"content-type": "application/json"})  # noqa: S310 - our own child
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as reply:  # noqa: S310 - our own child
            page: bytes = reply.read()
            return page

    def _answers(self) -> bool:
        try:
            self.get("/health")
        except (OSError, urllib.error.URLError):
            return False
        return True

    def _arguments(self) -> list[str]:
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            # With a host in place of the star it would connect instead of listening.
            "endpoint": f"tcp://*:{self.kv_port}",
            "topic": "kv",
        }
        # fmt: off
        return [
            "--model", str(self._model), "--served-model-name", MODEL,
            "--host", "127.0.0.1", "--port", str(self.port),
            "--max-model-len", str(CONTEXT_TOKENS), "--enforce-eager",
            "--enable-prefix-caching", "--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(self._blocks),
            "--max-num-seqs", str(self._seats), "--scheduling-policy", "priority",
            "--enable-prompt-tokens-details", "--enable-server-load-tracking",
            "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
            "--enable-lora", "--max-lora-rank", "8", "--max-loras", "2",
            "--kv-events-config", json.dumps(events), *self._more,
        ]
        # fmt: on


class Patience:
    """Waiting that goes on as long as engines compute: on a busy machine all takes longer, and no number of seconds is right."""

    def __init__(self, *engines: VllmReplica) -> None:
        self._engines = engines
        self._since, self._busy_s = time.monotonic(), self._sum()

    def is_over(self) -> bool:
        if time.monotonic() - self._since < _STANDSTILL_S:
            return False
        before, self._busy_s, self._since = self._busy_s, self._sum(), time.monotonic()
        # A process that ended takes its time with it.
        return abs(self._busy_s - before) < _LEAST_BUSY_S

    def _sum(self) -> float:
        return sum(each.busy_s() for each in self._engines)


async def until(condition: Callable[[], bool | Awaitable[bool]], *engines: VllmReplica) -> None:
    """Returns once it is so; fails when it is not and the engines stand still."""
    patience = Patience(*engines)
    while True:
        met = condition()
        if met if isinstance(met, bool) else await met:
            return
        if patience.is_over():
            raise TimeoutError(f"{', '.join(each.name for each in engines)}: nothing happens any more")
        await asyncio.sleep(_POLL_S)


def moved(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    """What a counter grew by."""
    return after.get(name, 0.0) - before.get(name, 0.0)


def _group(leader: int) -> list[int]:
    """Processes of this group."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if int(_stat(int(folder.name))[2]) == leader:
                    found.append(int(folder.name))
    return found


def _busy_ticks(pid: int) -> int:
    try:
        user, system = _stat(pid)[11:13]
    except OSError:
        return 0
    return int(user) + int(system)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the name, which may have spaces: the state first."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _children(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text()


def _environ() -> dict[str, str]:
    """No hub, no telemetry, and one thread each that spins nowhere.

    By default an engine hands each step to a worker process; both poll without a pause while there is work, and the workers
    of all engines are bound to the same core. Two engines on two cores then stop each other, and the gateway, for seconds.
    """
    ours = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        # Its caches can be emptied.
        "VLLM_SERVER_DEV_MODE": "1",
        # The engine's process makes the steps itself, on whichever core is free.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    foreign = ("PYTHONPATH", "VIRTUAL_ENV", "WEIGHBRIDGE_", "VLLM_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return kept | ours


def free_port() -> int:
    """One that is free, and whose companion is."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = int(listener.getsockname()[1])
        with contextlib.suppress(OSError, OverflowError), socket.create_server(("127.0.0.1", port + KV_PORT_ABOVE)):
            return port
