"""Errors of the readers."""


class BadQuery(Exception):
    """The query is not valid. `param` names the wrong parameter; the message says what is wrong with it."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param
