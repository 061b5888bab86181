"""`weighbridge batch`: files of requests, submitted to a running gateway, followed and downloaded."""
# ruff: noqa: PLC0415 - imports stand in the commands, so that `--help` answers at once

import asyncio
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gateway.commands.shared import FAILED, USAGE, JsonOption, fail, print_json
from gateway.table import print_table

if TYPE_CHECKING:
    from rich.progress import Progress

batch_app = typer.Typer(
    help="Files of requests that are answered in the background.", no_args_is_help=True, rich_markup_mode=None
)

ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
_UPLOAD_S: Final = 3_600.0
_EVERY_S: Final = 1.0
_PARTIAL: Final = 206
_OK: Final = 200
_ALL_THERE: Final = 416
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

UrlOption = Annotated[str, typer.Option(metavar="URL", help="A running gateway.")]
KeyOption = Annotated[
    Path | None,
    typer.Option(help="Holds a key of the team; `-` reads it from standard input.", show_default=False),
]
IdArgument = Annotated[str, typer.Argument(metavar="BATCH", help="The batch's id.")]
_HERE: Final = "http://127.0.0.1:8080"


class _Site:
    """A gateway, and a key for it."""

    def __init__(self, url: str, key_file: Path | None) -> None:
        from gateway.commands.asking import key_of

        if key_file is None:
            fail("--key-file is needed: a file with a key of the team", USAGE)
        self.url = url
        self.key = key_of(key_file)

    async def ask(self, path: str, *, method: str = "GET", body: Any = None, timeout_s: float = 30.0) -> dict[str, Any]:
        """Return the gateway's answer; end the program with the reason when there is none."""
        from gateway.commands.asking import NotAnswered, exchanged

        try:
            return await exchanged(self.url, path, self.key, method=method, body=body, timeout_s=timeout_s)
        except NotAnswered as error:
            fail(str(error), USAGE if error.is_usage else FAILED)


@batch_app.command("submit")
async def submit(
    file: Annotated[Path, typer.Argument(help="One request per line, in OpenAI's batch format.")],
    *,
    url: UrlOption = _HERE,
    key_file: KeyOption = None,
    endpoint: Annotated[str, typer.Option(help="What the requests are for.")] = "/v1/chat/completions",
    window: Annotated[str, typer.Option(help="`24h`, `1h`, or `background` without a promise.")] = "24h",
    priority: Annotated[str, typer.Option(help="`low`, `normal` or `high`, among your team's batches.")] = "normal",
    callback_url: Annotated[
        str | None, typer.Option(help="An address that gets a signed webhook when the batch ends.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait until it ends; exit status 1 unless it is completed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Upload a file and make a batch of it."""
    if not file.is_file():
        fail(f"{file} is no file", USAGE)
    site = _Site(url, key_file)
    asked = {
        "endpoint": endpoint,
        "completion_window": window,
        "priority": priority,
        **({} if callback_url is None else {"callback_url": callback_url}),
    }
    batch = await _submitted(site, file, asked, follow=follow)
    _tell(batch, as_json=as_json)
    _fail_unless_completed(batch, follow=follow)


@batch_app.command("list")
async def list_batches(
    url: UrlOption = _HERE,
    key_file: KeyOption = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="The largest number to list, newest first.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the team's batches."""
    found = (await _Site(url, key_file).ask(f"/v1/batches?limit={limit}"))["data"]
    if as_json:
        print_json(found)
    elif not found:
        typer.echo("no batches yet: `weighbridge batch submit FILE`", err=True)
    else:
        rows = [
            [each["id"], each["status"], *_counts(each), _when(each["created_at"]), _when(each["expires_at"])]
            for each in found
        ]
        print_table(["batch", "status", "total", "completed", "failed", "made", "deadline"], rows, right=(2, 3, 4))


@batch_app.command("show")
async def show(
    batch: IdArgument,
    url: UrlOption = _HERE,
    key_file: KeyOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait until it ends; exit status 1 unless it is completed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how far a batch is, and what was wrong with its file."""
    site = _Site(url, key_file)
    found = await (_followed(site, _sound(batch)) if follow else site.ask(f"/v1/batches/{_sound(batch)}"))
    _tell(found, as_json=as_json)
    _fail_unless_completed(found, follow=follow)


@batch_app.command("cancel")
async def cancel(
    batch: IdArgument, url: UrlOption = _HERE, key_file: KeyOption = None, as_json: JsonOption = False
) -> None:
    """Begin no more of a batch's requests."""
    _tell(await _Site(url, key_file).ask(f"/v1/batches/{_sound(batch)}/cancel", method="POST"), as_json=as_json)


@batch_app.command("download")
async def download(
    batch: IdArgument,
    url: UrlOption = _HERE,
    key_file: KeyOption = None,
    to: Annotated[Path, typer.Option(help="The folder to write to.")] = Path(),
) -> None:
    """Write a batch's output and error files. A download that was broken off goes on where it stopped."""
    site = _Site(url, key_file)
    to.mkdir(parents=True, exist_ok=True)
    await _downloaded(site, _sound(batch), to)


async def _submitted(site: _Site, file: Path, asked: dict[str, Any], *, follow: bool) -> dict[str, Any]:
    import aiohttp

    with _bar() as bar, bar.open(file, "rb", description="upload") as content:
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", content, filename=file.name, content_type="application/jsonl")
        stored = await site.ask("/v1/files", method="POST", body=form, timeout_s=_UPLOAD_S)
    made = await site.ask("/v1/batches", method="POST", body={**asked, "input_file_id": stored["id"]})
    return await _followed(site, made["id"]) if follow else made


async def _followed(site: _Site, batch_id: str) -> dict[str, Any]:
    """Show a progress bar until the batch has ended; return it as it was then."""
    with _bar() as bar:
        task = bar.add_task("validating", total=None)
        while True:
            batch = await site.ask(f"/v1/batches/{batch_id}")
            counts = batch["request_counts"]
            done = counts["completed"] + counts["failed"]
            bar.update(task, description=batch["status"], completed=done, total=counts["total"] or None)
            if batch["status"] in ENDED:
                return batch
            await asyncio.sleep(_EVERY_S)


async def _downloaded(site: _Site, batch_id: str, folder: Path) -> None:
    batch = await site.ask(f"/v1/batches/{batch_id}")
    files = [(kind, batch[f"{kind}_file_id"]) for kind in ("output", "error") if batch[f"{kind}_file_id"]]
    if not files:
        fail(f"{batch_id} is {batch['status']} and has no files", FAILED)
    for kind, file_id in files:
        path = folder / f"{batch_id}_{kind}.jsonl"
        await _fetched(site, file_id, path)
        typer.echo(str(path))


async def _fetched(site: _Site, file_id: str, path: Path) -> None:
    """Write a file beside its final name first, and go on with what is there."""
    import aiohttp

    from gateway.commands.asking import NotAnswered, check_address

    part = path.with_name(f"{path.name}.part")
    start = part.stat().st_size if part.exists() else 0
    headers = {"authorization": f"Bearer {site.key}", **({"range": f"bytes={start}-"} if start else {})}
    try:
        check_address(site.url)
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_read=60)) as session,
            session.get(f"{site.url.rstrip('/')}/v1/files/{file_id}/content", headers=headers) as reply,
        ):
            if reply.status not in {_OK, _PARTIAL, _ALL_THERE}:
                fail(f"the gateway refused ({reply.status})", FAILED)
            if reply.status != _ALL_THERE:
                await _written(reply, part, anew=reply.status == _OK, start=start)
    except NotAnswered as error:
        fail(str(error), USAGE)
    except (aiohttp.ClientError, TimeoutError) as error:
        fail(f"the download was broken off ({type(error).__name__}); the same command goes on with it", FAILED)
    part.replace(path)


async def _written(reply: Any, part: Path, *, anew: bool, start: int) -> None:
    with _bar() as bar, part.open("wb" if anew else "ab") as file:
        so_far = 0 if anew else start
        task = bar.add_task("download", total=so_far + (reply.content_length or 0), completed=so_far)
        async for piece in reply.content.iter_chunked(262_144):
            file.write(piece)
            bar.advance(task, len(piece))


def _bar() -> "Progress":
    """Return a progress bar on standard error; none where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )


def _tell(batch: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(batch)
        return
    total, completed, failed = _counts(batch)
    typer.echo(f"{batch['id']}  {batch['status']}  {completed} completed, {failed} failed of {total}")
    typer.echo(f"made {_when(batch['created_at'])}, deadline {_when(batch['expires_at'])}")
    for each in (batch["errors"] or {"data": []})["data"]:
        where = "the file" if each["line"] is None else f"line {each['line']}"
        typer.echo(f"{where}: {each['message']} ({each['code']})")


def _fail_unless_completed(batch: dict[str, Any], *, follow: bool) -> None:
    """Exit with a status that says whether there are results."""
    if follow and batch["status"] != "completed":
        raise typer.Exit(FAILED)


def _counts(batch: dict[str, Any]) -> list[str]:
    counts = batch["request_counts"]
    return [f"{counts[name]:,}" for name in ("total", "completed", "failed")]


def _when(seconds: int | None) -> str:
    from datetime import UTC, datetime

    return "-" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%SZ}"


def _sound(batch: str) -> str:
    """Return an id that may stand in an address."""
    if _ID.fullmatch(batch) is None:
        fail("a batch's id has letters, digits, `_` and `-`", USAGE)
    return batch
