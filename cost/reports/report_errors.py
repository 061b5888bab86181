"""What a reader of the books refuses."""


class BadQuery(Exception):
    """The question cannot be answered as it is. `param` is the part that is wrong; the message says what of it."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param
