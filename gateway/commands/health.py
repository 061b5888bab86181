"""`weighbridge health`: whether the gateway of this machine answers, for what starts and watches containers."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gateway.commands.shared import FAILED, USAGE, ConfigOption, fail

if TYPE_CHECKING:
    import ssl

_ANY: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - nothing is bound here
_DEFAULT: Final = {"host": "127.0.0.1", "port": "8080"}
_LONGEST_BYTES: Final = 65_536
_READY: Final = 200


def health(
    config: ConfigOption = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Only whether it runs: `/healthz` in place of `/readyz`, which also asks its database."
        ),
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds that an answer may take.")] = 4.0,
) -> None:
    """Ask the gateway of this machine whether it is ready. Exit status 1: it is not, or does not answer."""
    import http.client

    server = _server(config)
    host, port = _listening(config) or _configured(server)
    where = "127.0.0.1" if host in _ANY else host
    tls = _own_certificate(server.get("tls"), config)
    connection = (
        http.client.HTTPConnection(where, port, timeout=timeout)
        if tls is None
        else http.client.HTTPSConnection(where, port, timeout=timeout, context=tls)
    )
    try:
        connection.request("GET", "/healthz" if live else "/readyz")
        reply = connection.getresponse()
        told = reply.read(_LONGEST_BYTES).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        fail(f"no answer from {where}:{port}: {error}", FAILED)
    finally:
        connection.close()
    if reply.status != _READY:
        fail(f"not ready ({reply.status}): {told}", FAILED)
    typer.echo("ok")


def _listening(config: Path | None) -> tuple[str, int] | None:
    """Return where the gateway that runs with this configuration listens, which the command line may have told it; None while none does."""
    import urllib.parse

    from gateway.process.announced import SERVING, running

    named = config or os.environ.get("WEIGHBRIDGE_CONFIG")
    if not named:
        return None
    # As `Places.kept` has it, whose imports take as long as all the rest.
    data = Path(named).absolute().parent / (os.environ.get("WEIGHBRIDGE_DATA_DIR") or SERVING.parent)
    found = [each.url for each in running(data / SERVING.name, Path(named))]
    if len(found) != 1 or not found[0]:
        return None
    url = urllib.parse.urlsplit(found[0])
    return url.hostname or "", url.port or 0


def _configured(server: dict[str, Any]) -> tuple[str, int]:
    """Return where it would listen."""
    if str(server["port"]) == "0" or not str(server["port"]).isdigit():
        fail(f"server.port is {server['port']}: the port that the gateway has cannot be told from that", USAGE)
    return str(server["host"]), int(server["port"])


def _server(config: Path | None) -> dict[str, Any]:
    """Return the section `server` as it is written, under the environment. Reading the whole configuration would take longer than
    all the rest, and this is run every few seconds.
    """
    from gateway.configuration.file import read_document

    named = config or os.environ.get("WEIGHBRIDGE_CONFIG")
    section = read_document(Path(named)).values.get("server") if named else None
    environment = {name: os.environ.get(f"WEIGHBRIDGE_{name.upper()}") for name in _DEFAULT}
    written = section if isinstance(section, dict) else {}
    return _DEFAULT | written | {name: value for name, value in environment.items() if value}


def _own_certificate(tls: Any, config: Path | None) -> "ssl.SSLContext | None":
    """Trust the certificate that the gateway was given, and no other; whose name it bears is another's question."""
    import ssl

    if not isinstance(tls, dict):
        return None
    beside = Path(config or os.environ.get("WEIGHBRIDGE_CONFIG", "")).absolute().parent
    context = ssl.create_default_context(cafile=beside / str(tls.get("certificate")))
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
