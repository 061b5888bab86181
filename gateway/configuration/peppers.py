"""The peppers that keys are hashed with."""

import re
from collections.abc import Mapping
from pathlib import Path

from accounts.keys import MIN_PEPPER_BYTES, Pepper
from accounts.pepper_file import pepper_id, read_or_make_pepper, read_pepper
from accounts.unverified_keys import keys_made_under
from gateway.configuration.environment import Environment, resolve_secret
from gateway.configuration.file import ConfigError, Problem
from gateway.configuration.gateway_config import GatewayConfig

_NO_PEPPER = (
    f"no pepper: set WEIGHBRIDGE_PEPPER to a secret of at least {MIN_PEPPER_BYTES} characters, name one under "
    "`accounts.peppers`, or let `accounts.pepper_file` name a file that is made at the first start"
)


_HEXADECIMAL = re.compile(rf"(?:[0-9a-fA-F]{{2}}){{{MIN_PEPPER_BYTES},}}\Z")


def peppers(config: GatewayConfig | None, environment: Environment) -> tuple[Pepper, ...]:
    """Return the peppers that keys are hashed with, the current one first.

    They come from `accounts.peppers`, else from WEIGHBRIDGE_PEPPER, else from `accounts.pepper_file` when
    the file names one. Without any the gateway does not start: a pepper that nobody chose to keep would
    be lost with its machine, and every key with it. Raises ConfigError, and UnusablePepper.
    """
    if config is not None and config.accounts.peppers:
        return tuple(
            Pepper(id=each.id, secret=_pepper_bytes(resolve_secret(each.secret))) for each in config.accounts.peppers
        )
    if environment.pepper is not None:
        secret = _pepper_bytes(environment.pepper.get_secret_value())
        return (Pepper(id=pepper_id(secret), secret=secret),)
    if config is not None and config.accounts.pepper_file is not None:
        found = read_pepper(config.accounts.pepper_file)
        if found is not None:
            return (found,)
        raise ConfigError([Problem("", 0, "accounts.pepper_file", f"{config.accounts.pepper_file} is not there")])
    # Without a file nobody has looked for what most gateways have there.
    where = (
        ""
        if config is not None
        else "; a configuration file that has one is named by --config FILE or WEIGHBRIDGE_CONFIG"
    )
    raise ConfigError([Problem("", 0, "", _NO_PEPPER + where)])


def pepper_to_make(config: GatewayConfig | None, environment: Environment) -> Path | None:
    """Return the file in which a pepper would be made, as there is none and nothing else gives one."""
    if config is None or config.accounts.peppers or environment.pepper is not None:
        return None
    path = config.accounts.pepper_file
    return path if path is not None and not path.exists() else None


def first_peppers(
    config: GatewayConfig | None, environment: Environment, keys_by_pepper: Mapping[str, int]
) -> tuple[Pepper, ...]:
    """Return the peppers, as `peppers` does, after making one in its file where the database has no key yet.

    `keys_by_pepper` is how many keys the database has, by their pepper's id: a new pepper would make all of them invalid.
    Raises ConfigError.
    """
    path = pepper_to_make(config, environment)
    if path is None:
        return peppers(config, environment)
    if keys_by_pepper:
        raise ConfigError([Problem("", 0, "accounts.pepper_file", _lost(path, keys_by_pepper))])
    return (read_or_make_pepper(path),)


def _lost(path: Path, keys_by_pepper: Mapping[str, int]) -> str:
    return (
        f"{path} is not there, and the database has {keys_made_under(keys_by_pepper)}, which a new pepper would make invalid. Put the "
        "file back, from a backup or from the host that made the keys, or set WEIGHBRIDGE_PEPPER to what it held. If it is lost: "
        f"`openssl rand -hex {MIN_PEPPER_BYTES} > {path}` makes a new one, and new keys have to be made"
    )


def _pepper_bytes(text: str) -> bytes:
    """Decode a pepper; hexadecimal digits are decoded as such, so that a pepper file's content means the same in a
    variable.
    """
    if _HEXADECIMAL.match(text):
        return bytes.fromhex(text)
    return text.encode()
