"""The key of Python's hash in the processes of a host, which tell each other of prompts by their hashes."""

import hmac
import secrets
from typing import Final

from gateway.configuration.environment import Environment, tells_other_hosts
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.peppers import peppers

_KEYS: Final = 2**32 - 1
"""The keys that Python takes; 0 would be none."""
_PURPOSE: Final = b"weighbridge hashes of prompts"


def hash_key(config: GatewayConfig, environment: Environment) -> int:
    """Return one for all processes of this host; where it tells other hosts, one for all hosts with its pepper."""
    if not tells_other_hosts(config, environment):
        return secrets.randbelow(_KEYS) + 1
    digest = hmac.digest(peppers(config, environment)[0].secret, _PURPOSE, "sha256")
    return int.from_bytes(digest[:8]) % _KEYS + 1
