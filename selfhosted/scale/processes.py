"""Actuator for one machine: starts, watches, drains and ends engine processes, as many as the pool should have.

Each engine has a keeper beside it (keeper.py), which ends it when this process is gone. A file for each engine names
both processes, so that the next run here ends what even the keeper could not.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from selfhosted.config import LaunchConfig, PoolConfig, PoolPart
from selfhosted.engines.dialects import StatsUnreadable, read_stats, usual_metrics_path
from selfhosted.engines.fetching import FetchFailed
from selfhosted.engines.scrape import HttpFetch
from selfhosted.replica import EngineStats
from selfhosted.scale import keeper
from selfhosted.scale.children import Child, Orders, Phase, orders, wait_s
from selfhosted.scale.engine_sleep import put_to_sleep, wake
from selfhosted.scale.gateway_client import GatewayAway, GatewayClient, GatewayRefused
from selfhosted.scale.start_turns import StartTurns

_log: Final = logging.getLogger(__name__)
_PORTS: Final = 10_000
_LAST_PORT: Final = 65_535
_OK: Final = 200
# An engine that worked for so long did not crash at its start: its crashes are counted anew.
_PROVEN_S: Final = 60.0
_PID_WAIT_S: Final = 5.0
_MOST_UNWARMED: Final = 3
"""Engines that may end before they sleep until no other is tried."""
_LOW_LOAD: Final = 0.2


class NoPort(Exception):
    """No port is free for another engine."""


class _Engine:
    """A running engine with its keeper."""

    def __init__(self, process: Process, group: int | None, port: int, origin: str, pid_file: Path) -> None:
        self.process = process
        self.group = group
        self.group_began = 0 if group is None else _start_ticks(group)
        self.closing = False
        self.port = port
        self.origin = origin
        self.pid_file = pid_file
        self.instance = secrets.token_hex(8)
        self.again_at = float("-inf")
        self.stats: EngineStats | None = None


class Actuator:
    """The engine processes of one pool on this machine."""

    def __init__(
        self,
        pool: PoolConfig,
        launch: LaunchConfig,
        *,
        door: GatewayClient,
        fetch: HttpFetch,
        folder: Path,
        environment: Mapping[str, str],
        prefix: str,
        fixed: int | None = None,
        part: PoolPart | None = None,
        turns: StartTurns | None = None,
        level: int = 1,
        settle_s: float = 3.0,
        every_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `fixed` is the number to run, whatever the gateway says. `environment` is the part of this process's
        environment that engines see. `part` is what these engines do in a pool with prefill. `turns` is given where pools share the GPUs here, whose
        engines sleep at `level`.
        """
        self._pool = pool
        self._launch = launch
        self._door = door
        self._fetch = fetch
        self._folder = folder
        self._environment = dict(environment) | launch.environment
        self._prefix = prefix
        self._fixed = fixed
        self._turns = turns
        self._unwarmed = 0
        """Engines in a row that ended before they slept, of those that nobody wanted yet."""
        self._warm_at = float("-inf")
        self._part = pool.parts[0] if part is None else part
        self._reads = self._part.does == "reads"
        self._level = level
        self._settle_s = settle_s
        self._every_s = every_s
        self._clock = clock
        self._children: dict[str, Child] = {}
        self._engines: dict[str, _Engine] = {}
        self._desired: int | None = None
        self._ending = False
        self._logged: dict[str, str] = {}
        """The last message logged about each replica, and under the empty name about the pool: each is logged once."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._moving: set[str] = set()
        """Replicas that are being put to sleep or woken."""

    @property
    def children(self) -> tuple[Child, ...]:
        return tuple(self._children.values())

    def address(self, name: str) -> str | None:
        """Return the URL of a replica; None when it does not run."""
        engine = self._engines.get(name)
        return None if engine is None else engine.origin

    def drain_all(self) -> None:
        """Begins to drain all engines; `run` returns when they have ended."""
        self._ending = True

    async def run(self) -> None:
        """Step until `drain_all` was called and everything has ended. Ends all engines on the way out, even when
        cancelled.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        end_leftovers(self._folder)
        try:
            while not (self._ending and not self._children):
                try:
                    await self.step()
                except Exception:  # noqa: BLE001 - engines that run must outlive whatever goes wrong here
                    _log.exception("looking after %s failed; the next look follows", self._pool.name)
                await asyncio.sleep(self._every_s)
        finally:
            await asyncio.shield(self._end_all())

    async def step(self) -> None:
        """Poll, decide and act once."""
        await self._fetch_desired()
        for name in list(self._engines):
            self._reap(name)
        await asyncio.gather(*(self._poll(name) for name in self._engines))
        if self._turns is not None:
            self._turns.know(self._pool.name, self._fetch, [engine.origin for engine in self._engines.values()])
        await self._apply(
            orders(
                self.children,
                self._desired,
                self._clock(),
                ready_s=self._launch.ready_s,
                drain_s=self._launch.drain_s,
                settle_s=self._settle_s,
                keep_asleep=0 if self._ending else self._launch.keep_asleep,
                warm=0 if self._ending or not self._may_warm() else self._launch.warm,
            )
        )
        await asyncio.gather(*(self._renew(name) for name in list(self._engines)))

    # Polling.

    async def _fetch_desired(self) -> None:
        if self._ending:
            self._desired = 0
            return
        if self._fixed is not None:
            self._desired = self._fixed
            return
        try:
            desired = await self._door.desired(reads=self._reads)
        except (GatewayAway, GatewayRefused) as error:
            self._log_once("", f"how many replicas there should be is not known, so it stays as it is: {error}")
            return
        self._log_once("", "" if desired is not None else "nobody has decided yet how many replicas there should be")
        if desired is not None:
            # Those with fixed addresses are not ours to start, and count.
            fixed = [each for each in self._pool.replicas if self._pool.is_in(self._part, each.name)]
            self._desired = max(0, desired - len(fixed))

    def _reap(self, name: str) -> None:
        """Handle an engine that ended by itself: schedule its restart, unless it was draining."""
        engine, child = self._engines[name], self._children[name]
        if engine.process.returncode is None:
            return
        self._forget_engine(name)
        if child.phase in ("draining", "asleep"):
            del self._children[name]
            return
        if child.phase == "warming":
            self._warming_failed(name, engine)
            return
        at = self._clock()
        proven = child.phase == "ready" and at - child.since >= _PROVEN_S
        crashes = 1 if proven else child.crashes + 1
        again_at = at + wait_s(crashes)
        _log.warning(
            "%s ended with status %s; it is started again in %.0f s; its output is in %s",
            name,
            engine.process.returncode,
            again_at - at,
            self._log_path(name),
        )
        self._children[name] = Child(name=name, phase="waiting", since=at, again_at=again_at, crashes=crashes)
        if self._turns is not None:
            self._turns.ended(self._pool.name, started=False)
        self._leave_soon(name, engine)

    def _warming_failed(self, name: str, engine: _Engine) -> None:
        """Handle the end of an engine that nobody wants yet: another one is tried later, and not for ever."""
        del self._children[name]
        self._unwarmed += 1
        self._warm_at = self._clock() + wait_s(self._unwarmed)
        told = "and no other is tried" if self._unwarmed >= _MOST_UNWARMED else "and another is tried soon"
        _log.warning(
            "%s ended with status %s before it slept, %s; its output is in %s",
            name, engine.process.returncode, told, self._log_path(name),
        )  # fmt: skip

    def _may_warm(self) -> bool:
        return self._unwarmed < _MOST_UNWARMED and self._clock() >= self._warm_at

    async def _poll(self, name: str) -> None:
        watch, engine = self._pool.watch, self._engines[name]
        if self._children[name].phase == "asleep":
            # It answers as healthy, and serves nobody.
            return
        fine = False
        with contextlib.suppress(FetchFailed):
            answer = await self._fetch(
                engine.origin + watch.health_path, timeout_s=watch.timeout_s, max_bytes=watch.max_bytes
            )
            fine = answer.status == _OK
        engine.stats = await self._stats(engine) if fine else None
        # It may have ended or gone to sleep meanwhile.
        child = self._children.get(name)
        if child is None or child.phase == "asleep":
            return
        busy = None if engine.stats is None else engine.stats.running + engine.stats.waiting
        idle_looks = child.idle_looks + 1 if busy == 0 else 0
        child = msgspec.structs.replace(child, busy=busy, idle_looks=idle_looks, answered=child.answered or fine)
        if fine and child.phase == "starting" and self._turns is not None and not await self._slept(name, engine):
            return
        if fine and child.phase == "starting":
            _log.info("%s is ready at %s after %.0f s", name, engine.origin, self._clock() - child.since)
            child = msgspec.structs.replace(child, phase="ready", since=self._clock())
        self._children[name] = child

    async def _slept(self, name: str, engine: _Engine) -> bool:
        """Put an engine that has just started to sleep, as others want its GPUs. The gateway wakes it."""
        try:
            await put_to_sleep(self._fetch, engine.origin, self._level)
        except FetchFailed as error:
            self._log_once(name, f"{name} has started, and does not sleep: {error}")
            return False
        others = [child for child in self.children if child.name != name]
        if self._turns is not None and all(child.answered for child in others):
            self._turns.ended(self._pool.name, started=True)
        return True

    async def _stats(self, engine: _Engine) -> EngineStats | None:
        watch = self._pool.watch
        origin = engine.origin
        if watch.metrics_port is not None:
            origin = f"{origin.rpartition(':')[0]}:{watch.metrics_port}"
        path = watch.metrics_path or usual_metrics_path(self._pool.engine)
        try:
            page = await self._fetch(origin + path, timeout_s=watch.timeout_s, max_bytes=watch.max_bytes)
            return read_stats(self._pool.engine, page.body, self._clock()) if page.status == _OK else None
        except (FetchFailed, StatsUnreadable):
            return None

    # Acting.

    async def _apply(self, todo: Orders) -> None:
        self._change_phases(todo)
        for name in todo.failed:
            if not self._engines[name].closing:
                _log.warning("%s was not ready within %.0f s, and is ended", name, self._launch.ready_s)
                # `_reap` handles its end like any other's.
                self._close_pipe(self._engines[name])
        await asyncio.gather(*(self._end(name) for name in todo.end if name not in self._moving))
        await self._start_all(todo)

    def _change_phases(self, todo: Orders) -> None:
        for name in todo.sleep:
            self._move(name, self._put_to_sleep)
        for name in todo.wake:
            self._move(name, self._wake)
        for name in (*todo.keep, *todo.hurry):
            if name in self._moving:
                continue
            self._set_phase(name, "ready" if self._children[name].answered else "starting")
            _log.info("%s is wanted %s", name, "again" if name in todo.keep else "now")
        for name in todo.drain:
            self._set_phase(name, "draining")
            _log.info("%s takes nothing new from now on", name)

    async def _start_all(self, todo: Orders) -> None:
        starting: list[str | None] = [*todo.again, *(None for _ in range(todo.start))]
        if starting and self._turns is not None and not await self._turns.take(self._pool.name):
            return
        for wanted in starting:
            await self._start(wanted or self._free_name())
        for _ in range(todo.warm):
            await self._start(self._free_name(), phase="warming")

    def _move(self, name: str, how: Callable[[str, _Engine], Awaitable[None]]) -> None:
        """Begin to put a replica to sleep or to wake it, unless that is under way: it takes seconds, in which the
        others are looked after.
        """
        engine = self._engines.get(name)
        if engine is None or name in self._moving:
            return

        async def move() -> None:
            try:
                await how(name, engine)
            except FetchFailed as error:
                _log.warning("%s neither sleeps nor wakes, and is ended: %s", name, error)
                self._close_pipe(engine)
            finally:
                self._moving.discard(name)

        self._moving.add(name)
        task = asyncio.get_running_loop().create_task(move())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _put_to_sleep(self, name: str, engine: _Engine) -> None:
        with contextlib.suppress(GatewayAway, GatewayRefused):
            await self._door.leave(name, engine.instance)
        await put_to_sleep(self._fetch, engine.origin)
        if name in self._children:
            self._set_phase(name, "asleep")
            self._unwarmed = 0
            _log.info("%s sleeps", name)

    async def _wake(self, name: str, engine: _Engine) -> None:
        began = self._clock()
        await wake(self._fetch, engine.origin)
        if name in self._children:
            # For the gateway it is another process: what was cached is gone.
            engine.instance = secrets.token_hex(8)
            self._children[name] = msgspec.structs.replace(self._children[name], answered=False)
            self._set_phase(name, "starting")
            _log.info("%s is awake after %.1f s", name, self._clock() - began)

    def _set_phase(self, name: str, phase: Phase) -> None:
        child = msgspec.structs.replace(self._children[name], phase=phase, since=self._clock(), idle_looks=0)
        self._children[name] = child
        if name in self._engines:
            self._engines[name].again_at = float("-inf")

    def _free_name(self) -> str:
        number = 1
        while f"{self._prefix}-{number}" in self._children:
            number += 1
        return f"{self._prefix}-{number}"

    async def _start(self, name: str, phase: Phase = "starting") -> None:
        before = self._children.get(name)
        crashes = 0 if before is None else before.crashes
        try:
            engine = await self._launch_engine(name)
        except (NoPort, OSError) as error:
            wait = wait_s(crashes + 1)
            _log.warning("%s cannot be started (%s); the next try is in %.0f s", name, error, wait)
            at = self._clock()
            self._children[name] = Child(name=name, phase="waiting", since=at, again_at=at + wait, crashes=crashes + 1)
            return
        self._engines[name] = engine
        self._children[name] = Child(name=name, phase=phase, since=self._clock(), crashes=crashes)
        _log.info("%s is started at %s", name, engine.origin)

    async def _launch_engine(self, name: str) -> _Engine:
        port = self._free_port()
        address = self._launch.address or self._launch.host
        origin = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            keeper.__file__,
            str(self._log_path(name)),
            str(self._launch.log_bytes),
            str(self._launch.grace_s),
            *self._command(name, port),
            stdin=PIPE,
            stdout=PIPE,
            env=self._environment,
            # A Ctrl-C in the terminal is for this process, which then drains.
            start_new_session=True,
        )
        engine = _Engine(process, await _group_of(process), port, origin, self._folder / f"{name}.pid")
        _write_pid_file(engine.pid_file, process.pid, engine)
        return engine

    def _command(self, name: str, port: int) -> list[str]:
        launch = self._launch
        parts = launch.command + (launch.low_load_arguments if self._is_low_load() else ())
        for key, value in (("{port}", str(port)), ("{host}", launch.host), ("{name}", name)):
            parts = tuple(part.replace(key, value) for part in parts)
        return list(parts)

    def _is_low_load(self) -> bool:
        """Return whether the mean KV usage of this machine's ready engines is below `memory_low` and nothing waits. Unknown
        is not low.
        """
        stats = [self._engines[child.name].stats for child in self.children if child.phase == "ready"]
        uses = [each.kv_usage for each in stats if each is not None and each.kv_usage is not None]
        if not uses or len(uses) < len(stats) or any(each is not None and each.waiting for each in stats):
            return False
        low = _LOW_LOAD if self._pool.scale is None else self._pool.scale.memory_low
        return sum(uses) / len(uses) < low

    def _free_port(self) -> int:
        taken = {engine.port for engine in self._engines.values()}
        first = self._launch.first_port
        for port in range(first, min(first + _PORTS, _LAST_PORT + 1)):
            if port not in taken and _is_free(self._launch.host, port):
                return port
        raise NoPort(f"from {first} on no port is free on {self._launch.host}")

    async def _end(self, name: str) -> None:
        engine = self._engines.get(name)
        if engine is not None:
            _log.info("%s is ended", name)
            with contextlib.suppress(GatewayAway, GatewayRefused):
                await self._door.leave(name, engine.instance)
            await self._stop_engine(engine)
            self._forget_engine(name)
        del self._children[name]

    async def _stop_engine(self, engine: _Engine) -> None:
        self._close_pipe(engine)
        try:
            async with asyncio.timeout(2 * self._launch.grace_s + _PID_WAIT_S):
                await engine.process.wait()
        except TimeoutError:
            engine.process.kill()
            await engine.process.wait()

    @staticmethod
    def _close_pipe(engine: _Engine) -> None:
        """Close the keeper's pipe, at whose end the keeper ends its engine."""
        engine.closing = True
        if engine.process.stdin is not None:
            engine.process.stdin.close()

    def _forget_engine(self, name: str) -> None:
        engine = self._engines.pop(name)
        self._logged.pop(name, None)
        self._close_pipe(engine)
        # A keeper that ended in good order left nothing behind; one that was killed could not see to it.
        _kill_group(engine.group, engine.group_began)
        engine.pid_file.unlink(missing_ok=True)

    async def _end_all(self) -> None:
        await asyncio.gather(*(self._end(name) for name in list(self._children)), return_exceptions=True)

    # Registering and logging.

    async def _renew(self, name: str) -> None:
        engine, child = self._engines.get(name), self._children.get(name)
        if self._turns is not None and not self._turns.may_register:
            return
        unseen = name in self._moving or (child is not None and child.phase in ("asleep", "warming"))
        if engine is None or child is None or unseen or self._clock() < engine.again_at:
            return
        try:
            again_s = await self._door.register(
                name,
                engine.origin,
                engine.instance,
                draining=child.phase == "draining",
                version=self._launch.version or "",
            )
        except (GatewayAway, GatewayRefused) as error:
            engine.again_at = self._clock() + self._every_s
            self._log_once(name, f"{name} could not be registered: {error}")
            return
        self._log_once(name, "")
        engine.again_at = self._clock() + again_s

    def _leave_soon(self, name: str, engine: _Engine) -> None:
        """Delete the registration in the background, so that the restarted process can take the name."""

        async def leave() -> None:
            with contextlib.suppress(GatewayAway, GatewayRefused):
                await self._door.leave(name, engine.instance)

        task = asyncio.get_running_loop().create_task(leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _log_once(self, of: str, what: str) -> None:
        """Log a message about `of`, once until it changes."""
        if what and what != self._logged.get(of):
            _log.warning("%s", what)
        self._logged[of] = what

    def _log_path(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def end_leftovers(folder: Path) -> int:
    """End engines that a killed run left here and whose keepers were killed too. Returns how many."""
    ended = 0
    for file in folder.glob("*.pid"):
        try:
            keeper_pid, keeper_began, group, group_began = map(int, file.read_text().split())
        except (OSError, ValueError):
            continue
        if _start_ticks(keeper_pid) == keeper_began:
            # It is alive, knows that its starter is gone, and ends its engine in good order.
            continue
        ended += _kill_group(group, group_began)
        file.unlink(missing_ok=True)
    return ended


def _kill_group(group: int | None, began: int) -> bool:
    """Kill the process group if it is still the same one, by its start time. Returns whether it was signalled."""
    if not group or not began or _start_ticks(group) != began:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
        return True
    return False


def _write_pid_file(file: Path, keeper_pid: int, engine: _Engine) -> None:
    with contextlib.suppress(OSError):
        file.write_text(f"{keeper_pid} {_start_ticks(keeper_pid)} {engine.group or 0} {engine.group_began}\n")


def _start_ticks(pid: int) -> int:
    """Start time of a process in the kernel's ticks, which tells it from a later process with the same pid. 0: gone."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # The second field is the program's name, in parentheses, and may hold anything.
    return int(told.rpartition(")")[2].split()[19])


async def _group_of(process: Process) -> int | None:
    """Return the engine's process group, as its keeper prints it; None when the engine could not be started."""
    if process.stdout is None:
        return None
    with contextlib.suppress(TimeoutError, ValueError):
        async with asyncio.timeout(_PID_WAIT_S):
            return int(await process.stdout.readline())
    return None


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
