"""What a sound configuration says that was probably meant otherwise, and no section can tell alone."""

from collections.abc import Iterator, Mapping

from gateway.configuration.environment import Environment
from gateway.configuration.gateway_config import GatewayConfig
from providers.known_providers import known_providers


def fallback_hints(config: GatewayConfig) -> Iterator[str]:
    """Yield a sentence for each model that is to stand in for itself."""
    for name, others in config.policy.fallbacks.items():
        if name in others:
            yield f"policy.fallbacks.{name} has `{name}` itself, which is not asked again; name another model, or leave it out"


def lacks_pepper(config: GatewayConfig, environment: Environment) -> bool:
    """Return True when nothing says what keys are hashed with, so that the gateway would not start."""
    return not config.accounts.peppers and environment.pepper is None and config.accounts.pepper_file is None


def other_variables(missing: list[str], set_here: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each missing variable of a provider's key that is there under another usual name."""
    for provider in known_providers():
        if provider.keys and provider.keys[0] in missing:
            found = next((each for each in provider.keys if set_here.get(each)), None)
            if found is not None:
                yield f"{provider.keys[0]} is not set, but {found} is: write `api_key: env:{found}`"
