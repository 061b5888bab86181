"""The peppers that keys are hashed with."""

import re

from accounts.keys import MIN_PEPPER_BYTES, Pepper
from accounts.pepper_file import pepper_id, read_or_make_pepper
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
    be lost with its machine, and every key with it.
    """
    if config is not None and config.accounts.peppers:
        return tuple(
            Pepper(id=each.id, secret=_pepper_bytes(resolve_secret(each.secret))) for each in config.accounts.peppers
        )
    if environment.pepper is not None:
        secret = _pepper_bytes(environment.pepper.get_secret_value())
        return (Pepper(id=pepper_id(secret), secret=secret),)
    if config is not None and "pepper_file" in config.accounts.model_fields_set:
        return (read_or_make_pepper(config.accounts.pepper_file),)
    # Without a file nobody has looked for what most gateways have there.
    where = (
        ""
        if config is not None
        else "; a configuration file that has one is named by --config FILE or WEIGHBRIDGE_CONFIG"
    )
    raise ConfigError([Problem("", 0, "", _NO_PEPPER + where)])


def _pepper_bytes(text: str) -> bytes:
    """Decode a pepper; hexadecimal digits are decoded as such, so that a pepper file's content means the same in a
    variable.
    """
    if _HEXADECIMAL.match(text):
        return bytes.fromhex(text)
    return text.encode()
