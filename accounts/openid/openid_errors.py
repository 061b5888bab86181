"""Errors of signing in through a provider."""


class SsoUnusable(Exception):
    """A provider is configured that cannot be used: Authlib is not installed, or its certificates cannot be read."""


class SignInStopped(Exception):
    """The sign-in fails. `reason` is for logs, `message` for the person; neither repeats what the provider sent."""

    def __init__(self, reason: str, message: str, *, status: int = 400) -> None:
        super().__init__(reason)
        self.reason = reason
        self.message = message
        self.status = status


class ProviderFailed(SignInStopped):
    """The provider does not answer, or not according to the protocol."""

    def __init__(self, reason: str, label: str, *, late: bool = False) -> None:
        told = "does not answer in time" if late else "does not answer as it should"
        super().__init__(
            reason,
            f"{label} {told}. Try again in a minute; if it goes on, tell your administrators.",
            status=504 if late else 502,
        )
        self.late = late


class TokenUnsound(SignInStopped):
    """An ID token or its claims cannot be trusted."""

    def __init__(self, reason: str, label: str) -> None:
        super().__init__(
            reason,
            f"What {label} answered could not be verified, so nobody was signed in. Start again; if it goes on, tell "
            f"your administrators: {reason}.",
            status=502,
        )
