"""Live traffic for the sample's gateway: `python -m gateway.demo.traffic URL KEYS_FILE`. It ends with its parent."""

import asyncio
import contextlib
import json
import random
import sys
from pathlib import Path
from typing import Final

import aiohttp

from gateway.demo import company
from gateway.demo.company import SampleTeam
from gateway.process.parent_pipe import exit_with_parent

_EVERY_S: Final = 15.0
"""As often as the history has it in a busy hour."""
_MOST_AT_ONCE: Final = 16
_TIMEOUT: Final = aiohttp.ClientTimeout(total=60)


def body_of(team: SampleTeam, rng: random.Random) -> dict[str, object]:
    """Draw the body of a request as this team sends it."""
    prompt = rng.choice(rng.choice(team.work).prompts())
    messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
    messages.append({"role": "user", "content": prompt.text})
    model = team.names if rng.random() < team.named_share else "auto"
    return {"model": model, "messages": messages, "stream": rng.random() < team.stream_share}


async def _send(session: aiohttp.ClientSession, url: str, key: str, body: dict[str, object]) -> None:
    # A refusal is traffic too.
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        headers = {"authorization": f"Bearer {key}"}
        async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as reply:
            await reply.read()


async def send_for_ever(url: str, keys: dict[str, str], rng: random.Random) -> None:
    """Send some requests a minute, distributed by the teams' shares, with few at once."""
    teams = [team for team in (*company.TEAMS, company.JUMP) if team.team_id in keys]
    running: set[asyncio.Task[None]] = set()
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        while True:
            team = rng.choices(teams, [each.share for each in teams])[0]
            if len(running) < _MOST_AT_ONCE:
                task = asyncio.create_task(_send(session, url, keys[team.team_id], body_of(team, rng)))
                running.add(task)
                task.add_done_callback(running.discard)
            await asyncio.sleep(rng.expovariate(1 / _EVERY_S))


def main(url: str, keys_file: str) -> None:
    keys: dict[str, str] = json.loads(Path(keys_file).read_text())
    asyncio.run(send_for_ever(url, keys, random.Random()))  # noqa: S311 - it makes up traffic


if __name__ == "__main__":
    exit_with_parent()
    main(*sys.argv[1:])
