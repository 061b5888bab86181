"""A sleep that ends when the test says so."""

import asyncio


class Turns:
    """To be given as `sleep`."""

    def __init__(self) -> None:
        self._go = asyncio.Semaphore(0)

    async def __call__(self, seconds: float) -> None:
        await self._go.acquire()

    def next(self) -> None:
        """One sleep is over."""
        self._go.release()
