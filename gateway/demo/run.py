"""The demo from end to end, and the same gateway left running."""

import asyncio
import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from cost.prices import NANO_PER_USD
from cost.times import wall_us
from gateway.demo.children import Child, ChildFailed, family
from gateway.demo.demo_report import Closing, Row, Totals, agrees, cut, print_report, say, totals
from gateway.demo.engine import weights_path
from gateway.demo.prompts import PROMPTS, DemoPrompt
from gateway.demo.stage import MAX_OUTPUT_TOKENS, TEAM, Stage, choose_stage, write_config
from weighbridge._own import module

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from gateway.configuration.environment import Environment
    from gateway.configuration.gateway_config import GatewayConfig

_READY_TIMEOUT_S = 180.0
_REQUEST_TIMEOUT_S = 120.0
_TRIES = 3
_OURS_FROM = 500
"""The first status that is not the request's fault."""
ADMINISTRATOR = "admin@demo.example"
_OTHERS_VARIABLES = ("DATABASE_URL", "OTEL_EXPORTER_OTLP_ENDPOINT")


class DemoFailed(Exception):
    """The error of a demo that cannot go on; the message says why."""


class _Stage(msgspec.Struct, frozen=True):
    """A prepared demo: engines running and the configuration written."""

    stage: Stage
    folder: Path
    config: Path
    children: list[Child]
    environ: dict[str, str]


def run_demo(json_file: Path | None) -> int:
    """Send the prompts and print the bill. Return exit status 0 when replies and ledger agree."""
    with _set_stage() as scene:
        key = asyncio.run(_create_key(scene))
        base_url = _start_gateway(scene)
        before = datetime.now(UTC).date()
        rows = _send_all(base_url, key)
        booked = _booked(base_url, key, before, datetime.now(UTC).date())
        closing = asyncio.run(_closing(scene, base_url, key))
        say("")
        print_report(rows, booked, closing, scene.stage)
        if json_file is not None:
            _write_json(json_file, rows, booked, closing, scene.stage)
    return 0 if agrees(totals(rows), booked, closing.unserved) and not closing.differences else 1


def serve_demo(*, host: str | None, port: int | None, workers: int | None) -> int:
    """Serve the demo's gateway until a signal; return the exit status."""
    from gateway.configuration.environment import read_environment  # noqa: PLC0415
    from gateway.configuration.settings import load  # noqa: PLC0415
    from gateway.process.serve import serve  # noqa: PLC0415 - the server's modules are not needed by the demo's own process

    with _set_stage() as scene:
        for name in set(os.environ) - set(scene.environ):
            del os.environ[name]
        os.environ.update(scene.environ)
        given = {"host": host, "port": port, "workers": workers, "config": scene.config}
        update = {name: value for name, value in given.items() if value is not None}
        environment = read_environment().model_copy(update=update)
        config = load(None, environment)
        key = asyncio.run(_create_key(scene))
        link = asyncio.run(_let_in(scene, config, environment))
        return serve(
            config, environment, scene.config, listening=lambda url: say(_how_to_call(url, key, link, scene.stage))
        )


@contextlib.contextmanager
def _set_stage() -> Iterator[_Stage]:
    """Start the engines and write the configuration in a temporary folder; on exit everything is removed."""
    weights_path()
    stage, dear = choose_stage(os.environ)
    folder = Path(tempfile.mkdtemp(prefix="weighbridge-demo-"))
    try:
        with interruptible(), family() as children:
            environ = environ_without_others(folder)
            say(f"starting {len(stage.engines)} small engine{'s' if len(stage.engines) > 1 else ''} …")
            for alias in stage.engines:
                command = [*module("gateway.demo.engine"), alias]
                children.append(Child(f"the engine for {alias}", command, log=folder / f"{alias}.log", environ=environ))
            started = zip(stage.engines, tuple(children), strict=True)
            addresses = {alias: child.read_announcement()["base_url"] for alias, child in started}
            yield _Stage(stage, folder, write_config(folder, dear, addresses), children, environ)
    except ChildFailed as failed:
        raise DemoFailed(str(failed)) from failed
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM as on Ctrl-C, so that both clean up; a shell's background job ignores Ctrl-C
    otherwise.
    """

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {signum: signal.signal(signum, interrupt) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def environ_without_others(folder: Path) -> dict[str, str]:
    """Return the environment without settings of another gateway, so that the demo never writes into a real database."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith("WEIGHBRIDGE_") and name not in _OTHERS_VARIABLES
    }
    return {**kept, "WEIGHBRIDGE_DATA_DIR": str(folder)}


def _start_gateway(scene: _Stage) -> str:
    """Start the gateway as a child on an already bound socket, so that no other process can take the port."""
    say("starting the gateway …")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [*module("gateway.process.serve"), "--fd", str(listener.fileno()), "--config", str(scene.config)]
        gateway = Child(
            "the gateway", command, log=scene.folder / "gateway.log", environ=scene.environ, fds=(listener.fileno(),)
        )
        scene.children.append(gateway)
        base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not _is_ready(base_url):
        if gateway.ended():
            raise gateway.failure("ended instead of starting")
        if time.monotonic() > deadline:
            raise gateway.failure("did not get ready in time")
        time.sleep(0.1)
    return f"{base_url}/v1"


def _is_ready(base_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{base_url}/readyz", timeout=2.0) as reply:  # noqa: S310 - our own child
            return bool(reply.status == 200)  # noqa: PLR2004 - OK
    except OSError:
        return False


def _database_url(folder: Path) -> str:
    return f"sqlite+aiosqlite:///{folder}/weighbridge.sqlite"


async def _create_key(scene: _Stage) -> str:
    from accounts.pepper_file import read_or_make_pepper  # noqa: PLC0415 - loading the database layer is slow
    from accounts.store import AccountStore  # noqa: PLC0415
    from gateway.database import make_engine, migrate  # noqa: PLC0415

    database = make_engine(_database_url(scene.folder))
    try:
        await migrate(database)
        store = AccountStore(database)
        await store.create_team(TEAM, "Demo")
        return (await store.create_key(TEAM, "demo", read_or_make_pepper(scene.folder / "pepper"))).plaintext
    finally:
        await database.dispose()


async def _let_in(scene: _Stage, config: "GatewayConfig", environment: "Environment") -> str:
    """Return the token of a link with which an administrator of the demo chooses a password."""
    from accounts.people.links import OneTimeLinks  # noqa: PLC0415 - loading the database layer is slow
    from accounts.people.passwords import Passwords  # noqa: PLC0415
    from accounts.people.people import PeopleStore  # noqa: PLC0415
    from gateway.configuration.peppers import peppers  # noqa: PLC0415
    from gateway.database import make_engine  # noqa: PLC0415

    database = make_engine(_database_url(scene.folder))
    try:
        owner = config.accounts.operator
        person = await PeopleStore(database).create(owner, ADMINISTRATOR, "Demo", role="admin")
        passwords = Passwords(min_chars=config.sign_in.password_min_chars)
        links = OneTimeLinks(database, config.sign_in, peppers(config, environment), passwords, now_us=wall_us)
        return await links.make(person.person_id)
    finally:
        await database.dispose()


def _send_all(base_url: str, key: str) -> list[Row]:
    import openai  # noqa: PLC0415 - a second that only the demo pays

    say(f"sending {len(PROMPTS)} prompts with model=auto …\n")
    rows = []
    # The client would try again by itself and tell nobody.
    with openai.OpenAI(base_url=base_url, api_key=key, timeout=_REQUEST_TIMEOUT_S, max_retries=0) as client:
        for number, prompt in enumerate(PROMPTS, 1):
            send = _stream if prompt.stream else _send_whole
            row = persistently(functools.partial(send, client, prompt), f"prompt {number} ({cut(prompt.text)})")
            how = "streamed" if prompt.stream else "whole"
            say(f"{number:>3}/{len(PROMPTS)}  {row.complexity:.2f}  {row.target:<18} {how:<9} {cut(prompt.text)}")
            rows.append(row)
    return rows


def persistently(send: Callable[[], Row], what: str) -> Row:
    """Send, and send again what was late or broke off, and say so. Raises DemoFailed for the third time, and for whatever
    would fail again.
    """
    import openai  # noqa: PLC0415 - a second that only the demo pays

    for left in reversed(range(_TRIES)):
        try:
            return send()
        except openai.APIError as error:
            refused = isinstance(error, openai.APIStatusError) and error.status_code < _OURS_FROM
            if refused or not left:
                raise DemoFailed(f"{what} failed: {error}") from error
            say(f"         {what}: {error} Sending it again.")
    raise AssertionError("unreachable")


def _messages(prompt: DemoPrompt) -> list[Any]:
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return [*system, {"role": "user", "content": prompt.text}]


def _send_whole(client: Any, prompt: DemoPrompt) -> Row:
    raw = client.chat.completions.with_raw_response.create(
        model="auto", messages=_messages(prompt), max_tokens=MAX_OUTPUT_TOKENS
    )
    money = {name: raw.headers.get(f"x-weighbridge-{name.replace('_', '-')}") for name in ("cost_usd", "baseline_usd")}
    return _row(prompt, raw.headers, raw.parse().usage, money)


def _stream(client: Any, prompt: DemoPrompt) -> Row:
    raw = client.chat.completions.with_raw_response.create(
        model="auto",
        messages=_messages(prompt),
        max_tokens=MAX_OUTPUT_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
    )
    last = None
    for chunk in raw.parse():
        last = chunk if chunk.usage is not None else last
    if last is None:
        raise DemoFailed(f"the stream for {cut(prompt.text)!r} ended without its usage")
    return _row(prompt, raw.headers, last.usage, (last.model_extra or {}).get("weighbridge", {}))


def _row(prompt: DemoPrompt, headers: Any, usage: Any, money: dict[str, str | None]) -> Row:
    cost_usd, baseline_usd = money.get("cost_usd"), money.get("baseline_usd")
    if cost_usd is None or baseline_usd is None:
        raise DemoFailed(f"the reply to {cut(prompt.text)!r} does not say what it cost")
    return Row(
        prompt=prompt.text,
        stream=prompt.stream,
        complexity=float(headers["x-weighbridge-complexity"]),
        target=headers["x-weighbridge-target"],
        reason=headers["x-weighbridge-reason"],
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cost_usd=Decimal(cost_usd),
        baseline_usd=Decimal(baseline_usd),
    )


def _booked(base_url: str, key: str, first: date, last: date) -> Totals:
    """Return the usage that the API reports; a demo over midnight (UTC) spans two days."""
    days = [_usage(base_url, key, day) for day in sorted({first, last})]
    return Totals(
        requests=sum(day["requests"] for day in days),
        input_tokens=sum(day["input_tokens"] for day in days),
        output_tokens=sum(day["output_tokens"] for day in days),
        cost_usd=sum((Decimal(day["cost_usd"]) for day in days), Decimal(0)),
        baseline_usd=sum((Decimal(day["baseline_usd"]) for day in days), Decimal(0)),
    )


def _usage(base_url: str, key: str, day: date) -> dict[str, Any]:
    return _read(base_url, key, f"/usage?team_id={TEAM}&date={day.isoformat()}")


def _read(base_url: str, key: str, path: str) -> dict[str, Any]:
    request = urllib.request.Request(f"{base_url}{path}", headers={"authorization": f"Bearer {key}"})  # noqa: S310 - our own child
    try:
        with urllib.request.urlopen(request, timeout=10.0) as reply:  # noqa: S310 - our own child
            answer: dict[str, Any] = json.loads(reply.read(), parse_float=Decimal)
    except urllib.error.HTTPError as error:
        raise DemoFailed(f"GET /v1{path.partition('?')[0]} answered {error.code}") from error
    return answer


async def _closing(scene: _Stage, base_url: str, key: str) -> Closing:
    from cost.ledger.verify import check  # noqa: PLC0415 - loading the database layer is slow
    from gateway.database import make_engine  # noqa: PLC0415

    claim = _read(base_url, key, "/savings")
    database = make_engine(_database_url(scene.folder))
    try:
        now_us = wall_us()
        verified = await check(database, 0, now_us, now_us=now_us)
        unserved = await _unserved(database)
    finally:
        await database.dispose()
    return Closing(
        target_share=claim["target_share"],
        verdict=claim["verdict"],
        reasons=tuple(claim["comparisons"][0]["reasons"]),
        entries=verified.rows,
        differences=verified.differences,
        unserved=unserved,
    )


async def _unserved(database: "AsyncEngine") -> Totals:
    """Sum the attempts whose answer nobody was given, such as one that was late and sent again."""
    from sqlalchemy import select  # noqa: PLC0415 - loading the database layer is slow
    from sqlmodel import col  # noqa: PLC0415

    from cost.ledger.entries import TERMINAL  # noqa: PLC0415
    from cost.tables import LedgerEntry  # noqa: PLC0415

    async with database.connect() as connection:
        found = await connection.execute(select(LedgerEntry).where(col(LedgerEntry.entry).in_(sorted(TERMINAL))))
        ends = found.all()
    lost = [each for each in ends if not each.served]
    answered = {each.request_id for each in ends if each.served}
    return Totals(
        requests=len({each.request_id for each in lost} - answered),
        input_tokens=sum(each.input_tokens for each in lost),
        output_tokens=sum(each.output_tokens for each in lost),
        cost_usd=Decimal(sum(each.cost_nanousd or 0 for each in lost)) / NANO_PER_USD,
        baseline_usd=Decimal(0),
    )


def _write_json(path: Path, rows: list[Row], booked: Totals, closing: Closing, stage: Stage) -> None:
    summed = totals(rows)
    report = {
        "rows": rows,
        "totals": {
            **msgspec.structs.asdict(summed),
            "savings_usd": summed.savings_usd,
            "savings_percent": summed.savings_percent,
        },
        "usage_api": booked,
        "unserved": closing.unserved,
        "agrees": agrees(summed, booked, closing.unserved),
        "compared_with": stage.dear,
        "caveat": stage.caveat,
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def _how_to_call(url: str, key: str, link: str, stage: Stage) -> str:
    from accounts.people.links import link_url  # noqa: PLC0415 - loading the database layer is slow

    base_url = f"{url}/v1"
    body = '{"model": "auto", "messages": [{"role": "user", "content": "What is the capital of Portugal?"}]}'
    return f"""
{textwrap.fill(stage.caveat, 116)}

The gateway listens. Ctrl-C stops it and removes everything it made.

  URL        {base_url}
  key        {key}
  dashboard  {link_url(url, link)}
             This link works once and lets {ADMINISTRATOR} choose a password; afterwards: {url}/dashboard

curl {base_url}/chat/completions -i -H "authorization: Bearer {key}" -H "content-type: application/json" \\
  -d '{body}'

from openai import OpenAI
client = OpenAI(base_url="{base_url}", api_key="{key}")
reply = client.chat.completions.create(model="auto", messages=[{{"role": "user", "content": "Hello!"}}])
print(reply.choices[0].message.content, reply.model)
"""


if __name__ == "__main__":
    sys.exit(run_demo(None))
