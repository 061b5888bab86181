"""`weighbridge serve --sample`: the gateway with thirty days of a made-up company's traffic and live requests."""

import asyncio
import base64
import contextlib
import json
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from cost.times import DAY_US, day_of, wall_us
from gateway.demo import company
from gateway.demo.children import Child, ChildFailed, family
from gateway.demo.demo_report import say
from gateway.demo.run import DemoFailed, environ_without_others, interruptible
from gateway.demo.sample_config import Addresses, write_sample_config
from weighbridge._own import module

WEBHOOK_SECRET: Final = "SAMPLE_WEBHOOK_SECRET"  # noqa: S105  The name of a variable.
_WELCOME: Final = "/dashboard/welcome"
_SIGN_IN: Final = "/dashboard/sign-in"


def serve_sample(*, host: str | None, port: int | None, workers: int | None, requests: int | None) -> int:
    """Serve the sample until a signal, and remove everything that it made. Return the exit status."""
    from gateway.configuration.environment import read_environment  # noqa: PLC0415 - slow to load
    from gateway.configuration.settings import load  # noqa: PLC0415
    from gateway.demo.history import REQUESTS  # noqa: PLC0415
    from gateway.process.serve import serve  # noqa: PLC0415

    with _folder() as folder, interruptible(), family() as children:
        environ = {
            **environ_without_others(folder),
            WEBHOOK_SECRET: f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}",
        }
        for name in set(os.environ) - set(environ):
            del os.environ[name]
        os.environ.update(environ)
        addresses = _start_stand_ins(folder, environ, children)
        end_us = wall_us()
        path = write_sample_config(folder, addresses, day_of(end_us - 30 * DAY_US))
        given = {"host": host, "port": port, "workers": workers, "config": path}
        environment = read_environment().model_copy(
            update={name: value for name, value in given.items() if value is not None}
        )
        config = load(None, environment)
        password = "-".join(secrets.token_hex(2) for _ in range(4))
        # Its entries in the audit log are of a month that never was: nobody has to keep them elsewhere.
        logging.getLogger("weighbridge.audit").addHandler(logging.NullHandler())
        say("writing thirty days of a company's traffic (about half a minute) …")
        links, keys = asyncio.run(_write(folder, path, end_us, password, requests or REQUESTS))
        keys_file = folder / "keys.json"
        keys_file.touch(mode=0o600)
        keys_file.write_text(json.dumps(keys))

        def listening(url: str) -> None:
            command = [*module("gateway.demo.traffic"), url, str(keys_file)]
            children.append(Child("the traffic", command, log=folder / "traffic.log", environ=environ))
            say(_how_to_look(url, password, links))

        return serve(config, environment, path, listening=listening)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="weighbridge-sample-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start_stand_ins(folder: Path, environ: dict[str, str], children: list[Child]) -> Addresses:
    child = Child("the stand-ins", module("gateway.demo.stand_ins"), log=folder / "stand-ins.log", environ=environ)
    children.append(child)
    try:
        return msgspec.convert(child.read_announcement(), Addresses)
    except ChildFailed as failed:
        raise DemoFailed(str(failed)) from failed


async def _write(
    folder: Path, config_path: Path, end_us: int, password: str, requests: int
) -> tuple[dict[str, str], dict[str, str]]:
    from accounts.pepper_file import read_or_make_pepper  # noqa: PLC0415 - loading the database layer is slow
    from gateway.configuration.environment import read_environment  # noqa: PLC0415
    from gateway.configuration.settings import load  # noqa: PLC0415
    from gateway.database import make_engine, migrate  # noqa: PLC0415
    from gateway.demo.history import write_history  # noqa: PLC0415

    engine = make_engine(f"sqlite+aiosqlite:///{folder}/weighbridge.sqlite")
    try:
        await migrate(engine)
        told = await write_history(
            engine,
            load(config_path, read_environment()),
            read_or_make_pepper(folder / "pepper"),
            end_us=end_us,
            password=password,
            requests=requests,
        )
    finally:
        await engine.dispose()
    return told.links, told.keys


def _how_to_look(url: str, password: str, links: dict[str, str]) -> str:
    roles = {each.email: each.role or ("team " + each.teams[0][1] if each.teams else "") for each in company.SHOWN}
    people = "\n".join(f"  {email:<24} {roles[email]:<13} {url}{_WELCOME}/{link}" for email, link in links.items())
    return f"""
The gateway listens. Ctrl-C stops it and removes everything it made.

  {url}{_SIGN_IN}

Everybody signs in with the password  {password}  or chooses one with a link that works once:

{people}

Everything is made up: the company, its requests and its figures. What they went through is the gateway's own code.
"""
