"""What a reload changes: every key that is marked so, and no other."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pydantic import BaseModel

from cost.meters import METERS
from gateway.configuration.environment import Environment
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.reference import keys
from gateway.configuration.settings import load
from tests.object_graph import differences
from tests.processes import until
from tests.running_gateway import Running, running_gateway

_BOTH: Final = Path(__file__).with_name("reloaded.yaml")


def _side(number: int) -> dict[str, Any]:
    """The configuration before (1) or after (2) the reload."""
    # Prices of meters that follow from their table stand beside those of reasoning.
    later = [f"{each.name}: <4.{place}1 | 4.{place}2>" for place, each in enumerate(METERS) if each.later]
    both = re.sub(
        r"(?m)^( +)reasoning: .*$",
        lambda found: "\n".join((found[0], *(found[1] + line for line in later))),
        _BOTH.read_text(),
    )
    text = re.sub(r"<([^<>|]+) \| ([^<>]+)>", lambda found: str(found.group(number)), both)
    read: dict[str, Any] = yaml.safe_load(text)
    return read


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE_KEY", "one")
    monkeypatch.setenv("OTHER_KEY", "other")


@contextlib.asynccontextmanager
async def _gateway(folder: Path, document: dict[str, Any]) -> AsyncIterator[tuple[Running, dict[str, Any]]]:
    """A running gateway, and the roots of all that it holds: its parts, and its tasks in the order they were started."""
    providers = dict(document["providers"])
    models = providers.pop("models")
    started: list[asyncio.Task[Any]] = []
    loop = asyncio.get_running_loop()

    def start(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        started.append(asyncio.Task(work, loop=loop, **options))
        return started[-1]

    loop.set_task_factory(start)
    cost = {**document["cost"], "report": {**document["cost"]["report"], "folder": str(folder / "reports")}}
    async with running_gateway(folder, models, **{**document, "providers": providers, "cost": cost}) as running:
        loop.set_task_factory(None)
        tasks: dict[str, list[asyncio.Task[Any]]] = {}
        for each in started:
            if not each.done():
                tasks.setdefault(getattr(each.get_coro(), "__qualname__", ""), []).append(each)
        yield running, {"running": running, "tasks": tasks}


async def test_after_a_reload_everything_is_as_if_it_had_started_so(tmp_path: Path) -> None:
    """Nowhere in both planes is a value left that only a process of the old configuration has."""
    async with (
        _gateway(_made(tmp_path / "older"), _side(2)) as (_, older),
        _gateway(_made(tmp_path / "reloaded"), _side(1)) as (running, reloaded),
        # Started later than the one that is reloaded, so what merely passes with time is in the two not the same.
        _gateway(_made(tmp_path / "younger"), _side(2)) as (_, younger),
    ):
        _leave_out_passing_tasks(older["tasks"], reloaded["tasks"], younger["tasks"])
        before = differences(reloaded, older)
        document = yaml.safe_load(running.config_path.read_text())
        wanted = yaml.safe_load((tmp_path / "older" / "gateway.yaml").read_text())
        wanted["cost"]["journal_dir"] = document["cost"]["journal_dir"]
        running.config_path.write_text(yaml.safe_dump(wanted))
        running.reload()
        left: dict[str, object] = {}

        async def all_is_new() -> bool:
            nonlocal left
            by_chance = differences(younger, older)
            left = {
                path: values
                for path, values in differences(reloaded, older).items()
                if path not in by_chance and repr(before.get(path)) == repr(values)
            }
            return not left

        with contextlib.suppress(TimeoutError):
            await until(all_is_new)
        assert left == {}
        assert len(before) > len(list(keys())) / 2


def _leave_out_passing_tasks(*gateways: dict[str, list[asyncio.Task[Any]]]) -> None:
    """Leaves the tasks that every gateway has: what one of them happened to be asked for while it started is nobody's setting."""
    for name in {name for tasks in gateways for name in tasks}:
        if len({len(tasks.get(name, ())) for tasks in gateways}) > 1:
            for tasks in gateways:
                tasks.pop(name, None)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _values(of: object, path: list[str]) -> Iterator[object]:
    """Yields the values at a path of the reference, such as `providers.models[].deployments[].kind`."""
    if isinstance(of, tuple | list):
        for each in of:
            yield from _values(each, path)
    elif isinstance(of, dict) and path and path[0] == "<name>":
        for each in of.values():
            yield from _values(each, path[1:])
    elif not path:
        yield of
    elif isinstance(of, BaseModel) and hasattr(of, path[0]):
        yield from _values(getattr(of, path[0]), path[1:])


def _at(config: GatewayConfig, path: str) -> list[object]:
    return list(_values(config, path.replace("[]", "").split(".")))


def test_all_keys_that_a_reload_changes_are_tried(tmp_path: Path) -> None:
    """The configurations before and after the reload of the test above differ in every marked key."""
    before, after = (_loaded(tmp_path, _side(number)) for number in (1, 2))
    same = [key.path for key in keys() if key.reloadable and _at(before, key.path) == _at(after, key.path)]
    assert same == []


def _loaded(folder: Path, document: dict[str, Any]) -> GatewayConfig:
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(document))
    return load(path, Environment())
