"""`weighbridge ask`: a question in words to a running gateway, over POST /v1/ask."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gateway.commands.shared import USAGE, JsonOption, fail, print_json

_PATH: Final = "/v1/ask"
_TIMEOUT_S: Final = 120.0


async def ask(
    question: Annotated[str, typer.Argument(help='Such as "Which key was dearest yesterday?".')],
    url: Annotated[str, typer.Option(metavar="URL", help="A running gateway.")] = "http://127.0.0.1:8080",
    key_file: Annotated[
        Path | None,
        typer.Option(help="Holds a key, which decides what may be read; `-` reads it from standard input."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask about spend and requests in words. Figures that were not looked up are marked."""
    from gateway.commands.asking import NotAnswered, exchanged, key_of

    if key_file is None:
        fail("--key-file is needed: a file with an API key of a team, or a finance key for the organisation", USAGE)
    key = key_of(key_file)
    try:
        told = await exchanged(url, _PATH, key, method="POST", body={"question": question}, timeout_s=_TIMEOUT_S)
    except NotAnswered as error:
        fail(str(error), USAGE if error.is_usage else 1)
    if as_json:
        print_json(told)
        return
    for line in shown(told, url.rstrip("/")):
        typer.echo(line)


def shown(told: Mapping[str, Any], url: str) -> Iterator[str]:
    """Yield the answer and, for each look-up, the page with its rows. Pure."""
    marks = {"unverified": " (not looked up)"}
    yield "".join(f"{part['text']}{marks.get(part['kind'], '')}" for part in told["parts"])
    yield ""
    for step in told["steps"]:
        if step["problem"] is None:
            yield f"{step['ref']}  {step['title']}: {len(step['rows'])} rows, {url}{step['href']}"
        else:
            yield f"-   {step['tool']}: {step['problem']}"
