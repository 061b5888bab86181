"""A dozen prompts as teams send them, from a look-up to a proof."""

import msgspec


class DemoPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the demo."""

    text: str
    system: str = ""
    stream: bool = False


_MINUTES = """Minutes of the weekly operations meeting.
Present: Ines, Marek, Dolores, Tom. Ines reported that the new sorting line in Leipzig reached 4,100 parcels an hour,
against 3,600 last month, and that two of the eight scanners still lose their connection when the doors of bay four are
open. Marek has ordered shielded cables, which arrive on the 14th. Dolores asked whether the late shift could be shortened
by thirty minutes; Tom pointed out that the last truck to Dresden leaves at 22:10 and that nothing may move before it has
left. The group agreed to ask the haulier for a departure at 21:45 from next month. Insurance for the forklift trucks has to
be renewed before the end of the quarter; the present insurer wants nine per cent more, and Dolores will obtain two further
quotations. The canteen will be closed for one week in July. Next meeting on Thursday at nine."""

PROMPTS = (
    DemoPrompt(text="What is the capital of Portugal?"),
    DemoPrompt(text="Translate to French: The invoice is due on Friday.", stream=True),
    DemoPrompt(
        text="My parcel says delivered but it is not here. Order 4471-B.",
        system="You sort support mails. Answer with one word: billing, shipping, returns or other.",
    ),
    DemoPrompt(text=f"Summarise these minutes in three bullet points.\n\n{_MINUTES}", stream=True),
    DemoPrompt(text="Rewrite politely: Send me the numbers now, you are late again."),
    DemoPrompt(text="Write a haiku about a weighbridge in the rain.", stream=True),
    DemoPrompt(
        text="Extract name, date and amount as JSON: Paid to Nora Lindqvist on 3 March 2026, EUR 1,240.50, for the audit."
    ),
    DemoPrompt(
        text="A tank fills through pipe A in 6 hours and through pipe B in 4 hours, and a leak empties it in 12. With both "
        "pipes open and the leak running, when is it full? Show each step.",
        stream=True,
    ),
    DemoPrompt(
        text="This deadlocks under load. Find the bug and fix it without giving up the ordering guarantee:\n\n"
        "async def transfer(a, b, amount):\n    async with a.lock:\n        async with b.lock:\n"
        "            if a.balance < amount:\n                raise Insufficient(a.id)\n"
        "            a.balance -= amount\n            b.balance += amount\n            await audit(a, b, amount)",
    ),
    DemoPrompt(
        text="Prove that every finite integral domain is a field, and say where the argument fails for the integers.",
        stream=True,
    ),
    DemoPrompt(
        text="Design a multi-region ledger that must keep accepting writes during a partition and never book an entry twice. "
        "Compare consensus per account with idempotent append-only logs, derive the reconciliation rule, and state what "
        "each costs in latency.",
    ),
    DemoPrompt(
        text="We hold 40 million USD of floating-rate debt and expect the yield curve to invert. Compare a pay-fixed swap, a "
        "collar and a swaption for hedging it: payoff, accounting treatment, and what goes wrong if we are mistaken.",
        stream=True,
    ),
)
