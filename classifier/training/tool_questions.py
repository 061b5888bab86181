"""Sixty requests for tool calls that a program can check, written for this project."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from classifier.measuring.questions import ExpectedCall, Question

Arguments = dict[str, list[Any]]


def _tool(name: str, description: str, required: Sequence[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": list(required)},
        },
    }


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


def _whole(description: str) -> dict[str, Any]:
    return {"type": "integer", "description": description}


def _number(description: str) -> dict[str, Any]:
    return {"type": "number", "description": description}


WEATHER: Final = _tool(
    "get_weather",
    "The weather forecast of a city.",
    ["city"],
    city=_text("Name of the city, without its country"),
    days=_whole("Days ahead, 0 for today"),
    unit=_text("Unit of temperatures", enum=["celsius", "fahrenheit"]),
)
TRANSFER: Final = _tool(
    "transfer_money",
    "Transfers money between two accounts of the customer.",
    ["from_account", "to_account", "amount", "currency"],
    from_account=_text("Number of the account that pays"),
    to_account=_text("Number of the account that receives"),
    amount=_number("Amount"),
    currency=_text("ISO 4217 code"),
)
BALANCE: Final = _tool("get_balance", "The balance of an account.", ["account"], account=_text("Number of the account"))
MEETING: Final = _tool(
    "create_meeting",
    "Puts a meeting into the calendar.",
    ["title", "date", "start", "minutes"],
    title=_text("Title"),
    date=_text("Date as YYYY-MM-DD"),
    start=_text("Start as HH:MM, 24 hours"),
    minutes=_whole("Length in minutes"),
    people={"type": "array", "items": {"type": "string"}, "description": "E-mail addresses of those invited"},
)
CANCEL: Final = _tool("cancel_meeting", "Cancels a meeting.", ["meeting_id"], meeting_id=_text("Id of the meeting"))
FLIGHTS: Final = _tool(
    "search_flights",
    "Searches for flights.",
    ["origin", "destination", "date"],
    origin=_text("IATA code of the airport"),
    destination=_text("IATA code of the airport"),
    date=_text("Date as YYYY-MM-DD"),
    passengers=_whole("Number of passengers, 1 when left out"),
    cabin=_text("Cabin", enum=["economy", "premium", "business", "first"]),
)
CONVERT: Final = _tool(
    "convert_unit",
    "Converts a quantity between units.",
    ["value", "from_unit", "to_unit"],
    value=_number("Quantity"),
    from_unit=_text("Symbol of the unit", enum=["m", "km", "mi", "ft", "kg", "lb", "l", "gal"]),
    to_unit=_text("Symbol of the unit", enum=["m", "km", "mi", "ft", "kg", "lb", "l", "gal"]),
)
ORDERS: Final = _tool(
    "find_orders",
    "Finds a customer's orders.",
    ["customer_id"],
    customer_id=_whole("Number of the customer"),
    status=_text("Only orders of this status", enum=["open", "shipped", "returned", "cancelled"]),
    limit=_whole("Most orders to return"),
)
REFUND: Final = _tool(
    "refund_order",
    "Refunds an order, wholly or in part.",
    ["order_id", "reason"],
    order_id=_text("Id of the order"),
    reason=_text("Reason", enum=["damaged", "late", "wrong_item", "other"]),
    amount=_number("Amount to refund; the whole order when left out"),
)
LIGHTS: Final = _tool(
    "set_light",
    "Switches a room's light.",
    ["room", "on"],
    room=_text("Room", enum=["kitchen", "bedroom", "hall", "office", "garage"]),
    on={"type": "boolean", "description": "On or off"},
    brightness=_whole("Brightness in percent"),
)
THERMOSTAT: Final = _tool(
    "set_thermostat",
    "Sets a room's temperature.",
    ["room", "celsius"],
    room=_text("Room", enum=["kitchen", "bedroom", "hall", "office", "garage"]),
    celsius=_number("Temperature in degrees Celsius"),
)
TICKET: Final = _tool(
    "open_ticket",
    "Opens a ticket with the help desk.",
    ["system", "severity"],
    system=_text("System", enum=["mail", "vpn", "payroll", "wiki", "printer"]),
    severity=_whole("1 (everything stands still) to 4 (a question)"),
    affected=_whole("Number of people affected"),
)

_Row = tuple[str, list[dict[str, Any]], list[tuple[str, Arguments, list[str]]]]


def _one(name: str, optional: Sequence[str] = (), **arguments: Any) -> tuple[str, Arguments, list[str]]:
    """Return a call; a list is several accepted values, a tuple one value that is a list."""
    accepted = {
        key: value if isinstance(value, list) else [list(value) if isinstance(value, tuple) else value]
        for key, value in arguments.items()
    }
    return name, accepted, list(optional)


_HOME: Final = [LIGHTS, THERMOSTAT]
_BANK: Final = [TRANSFER, BALANCE]
_SHOP: Final = [ORDERS, REFUND]
_CALENDAR: Final = [MEETING, CANCEL]
_TRAVEL: Final = [FLIGHTS, WEATHER]
_DESK: Final = [TICKET, CANCEL, ORDERS]
_EVERY: Final = [*_HOME, *_BANK, *_SHOP, *_CALENDAR, *_TRAVEL, CONVERT, TICKET]

# fmt: off
_ROWS: Final[list[_Row]] = [
    ("What will the weather be in Lisbon tomorrow?", [WEATHER],
        [_one("get_weather", ["unit"], city="Lisbon", days=1, unit=["celsius", "fahrenheit"])]),
    ("How warm is it in Oslo today, in Fahrenheit?", [WEATHER, CONVERT],
        [_one("get_weather", ["days"], city="Oslo", days=0, unit="fahrenheit")]),
    ("I leave for Nairobi in five days. Give me the forecast for then in Celsius.", _TRAVEL,
        [_one("get_weather", [], city="Nairobi", days=5, unit="celsius")]),
    ("Compare today's weather in Rome and in Athens.", _TRAVEL,
        [_one("get_weather", ["days", "unit"], city="Rome", days=0, unit=["celsius", "fahrenheit"]),
         _one("get_weather", ["days", "unit"], city="Athens", days=0, unit=["celsius", "fahrenheit"])]),
    ("Write a haiku about the rain in Lisbon.", _TRAVEL, []),
    ("Move 250 euros from account 1100 to account 2200.", _BANK,
        [_one("transfer_money", from_account="1100", to_account="2200", amount=250, currency="EUR")]),
    ("Please pay $1,299.50 into 8841 out of my account 3107.", _BANK,
        [_one("transfer_money", from_account="3107", to_account="8841", amount=1299.5, currency="USD")]),
    ("How much is left on account 5512?", _BANK, [_one("get_balance", account="5512")]),
    ("Tell me the balances of accounts 71 and 72.", _BANK,
        [_one("get_balance", account="71"), _one("get_balance", account="72")]),
    ("Account 900 got 40 pounds by mistake; send them back to 901 where they came from.", _BANK,
        [_one("transfer_money", from_account="900", to_account="901", amount=40, currency="GBP")]),
    ("Split 300 Swiss francs of account A-1 evenly between A-2, A-3 and A-4.", _BANK,
        [_one("transfer_money", from_account="A-1", to_account=to, amount=100, currency="CHF") for to in ("A-2", "A-3", "A-4")]),
    ("What is compound interest?", _BANK, []),
    ("Put a meeting called Budget into the calendar for 3 March 2027 at half past two in the afternoon, for 45 minutes.",
        _CALENDAR,
        [_one("create_meeting", ["people"], title="Budget", date="2027-03-03", start="14:30", minutes=45, people=())]),
    ("Book one hour with ana@example.com on 2027-01-19 from 9 in the morning. Title: Review.", _CALENDAR,
        [_one("create_meeting", title="Review", date="2027-01-19", start=["09:00", "9:00"], minutes=60, people=("ana@example.com",))]),
    ("Cancel meeting m-4711.", _CALENDAR, [_one("cancel_meeting", meeting_id="m-4711")]),
    ("Meeting m-12 is off. Instead, make one titled Retro on 14 February 2027, 16:00 to 17:30.", _CALENDAR,
        [_one("cancel_meeting", meeting_id="m-12"),
         _one("create_meeting", ["people"], title="Retro", date="2027-02-14", start="16:00", minutes=90, people=())]),
    ("How do I run a good retrospective?", _CALENDAR, []),
    ("Invite bo@example.com and cy@example.com to Planning on 2027-05-04, 11:15, a quarter of an hour.", _CALENDAR,
        [_one("create_meeting", title="Planning", date="2027-05-04", start="11:15", minutes=15,
              people=[["bo@example.com", "cy@example.com"], ["cy@example.com", "bo@example.com"]])]),
    ("Cancel both m-8 and m-9.", _CALENDAR,
        [_one("cancel_meeting", meeting_id="m-8"), _one("cancel_meeting", meeting_id="m-9")]),
    ("Flights from Frankfurt (FRA) to New York (JFK) on 1 June 2027, please.", _TRAVEL,
        [_one("search_flights", ["passengers", "cabin"], origin="FRA", destination="JFK", date="2027-06-01", passengers=1, cabin="economy")]),
    ("We are four and want to fly business from SFO to NRT on 2027-04-11.", _TRAVEL,
        [_one("search_flights", origin="SFO", destination="NRT", date="2027-04-11", passengers=4, cabin="business")]),
    ("Return trip LHR to MAD for two: out on 2027-07-03, back on 2027-07-10.", _TRAVEL,
        [_one("search_flights", ["cabin"], origin="LHR", destination="MAD", date="2027-07-03", passengers=2, cabin="economy"),
         _one("search_flights", ["cabin"], origin="MAD", destination="LHR", date="2027-07-10", passengers=2, cabin="economy")]),
    ("First class, CDG to DXB, New Year's Eve 2026, just me.", _TRAVEL,
        [_one("search_flights", ["passengers"], origin="CDG", destination="DXB", date="2026-12-31", passengers=1, cabin="first")]),
    ("Is a plane or a train better for the climate?", _TRAVEL, []),
    ("I fly from ZRH to OSL on 2027-02-02. Find flights, and today's weather in Oslo.", _TRAVEL,
        [_one("search_flights", ["passengers", "cabin"], origin="ZRH", destination="OSL", date="2027-02-02", passengers=1, cabin="economy"),
         _one("get_weather", ["days", "unit"], city="Oslo", days=0, unit=["celsius", "fahrenheit"])]),
    ("How many miles are 42.195 km?", [CONVERT], [_one("convert_unit", value=42.195, from_unit="km", to_unit="mi")]),
    ("Convert 180 pounds of body weight to kilograms.", [CONVERT, WEATHER],
        [_one("convert_unit", value=180, from_unit="lb", to_unit="kg")]),
    ("A tank holds twelve gallons. In litres?", [CONVERT],
        [_one("convert_unit", value=12, from_unit="gal", to_unit="l")]),
    ("Give me 6 feet in metres and 90 kg in pounds.", [CONVERT],
        [_one("convert_unit", value=6, from_unit="ft", to_unit="m"),
         _one("convert_unit", value=90, from_unit="kg", to_unit="lb")]),
    ("Who invented the metric system?", [CONVERT], []),
    ("Show me the orders of customer 77.", _SHOP, [_one("find_orders", ["status", "limit"], customer_id=77)]),
    ("Which orders of customer 1203 are still open?", _SHOP,
        [_one("find_orders", ["limit"], customer_id=1203, status="open")]),
    ("The last three returned orders of customer 5, please.", _SHOP,
        [_one("find_orders", customer_id=5, status="returned", limit=3)]),
    ("Order o-88 came broken; give the customer all the money back.", _SHOP,
        [_one("refund_order", ["amount"], order_id="o-88", reason="damaged")]),
    ("Refund 15.90 of order o-89: it arrived two weeks late.", _SHOP,
        [_one("refund_order", order_id="o-89", reason="late", amount=15.9)]),
    ("We sent the wrong shoes in o-501 and o-502. Refund both.", _SHOP,
        [_one("refund_order", order_id="o-501", reason="wrong_item"),
         _one("refund_order", order_id="o-502", reason="wrong_item")]),
    ("Look up what we shipped to customer 31, at most 10, and refund o-7 because it was damaged.", _SHOP,
        [_one("find_orders", customer_id=31, status="shipped", limit=10),
         _one("refund_order", order_id="o-7", reason="damaged")]),
    ("Draft a polite apology for a late parcel.", _SHOP, []),
    ("Turn on the light in the hall.", _HOME, [_one("set_light", ["brightness"], room="hall", on=True, brightness=100)]),
    ("Lights off in the garage.", _HOME, [_one("set_light", ["brightness"], room="garage", on=False, brightness=0)]),
    ("Dim the bedroom to 30 percent.", _HOME, [_one("set_light", room="bedroom", on=True, brightness=30)]),
    ("Make the office 21 and a half degrees.", _HOME, [_one("set_thermostat", room="office", celsius=21.5)]),
    ("I go to bed: kitchen and office lights off, bedroom to 18 degrees.", _HOME,
        [_one("set_light", ["brightness"], room="kitchen", on=False, brightness=0),
         _one("set_light", ["brightness"], room="office", on=False, brightness=0),
         _one("set_thermostat", room="bedroom", celsius=18)]),
    ("Set the kitchen to 68 degrees Fahrenheit.", _HOME, [_one("set_thermostat", room="kitchen", celsius=20)]),
    ("What colour temperature suits reading best?", _HOME, []),
    ("The VPN is down for all 240 of us, nobody can work: severity 1.", [TICKET],
        [_one("open_ticket", system="vpn", severity=1, affected=240)]),
    ("Open a ticket: I have a question about my payslip. Severity 4, only me.", _DESK,
        [_one("open_ticket", ["affected"], system="payroll", severity=4, affected=1)]),
    ("The printer on my floor jams; severity three, 12 people are affected.", _DESK,
        [_one("open_ticket", system="printer", severity=3, affected=12)]),
    ("Two tickets, both severity 2: mail and wiki are slow.", [TICKET],
        [_one("open_ticket", ["affected"], system="mail", severity=2),
         _one("open_ticket", ["affected"], system="wiki", severity=2)]),
    ("Why do printers jam?", _DESK, []),
    ("Cancel meeting m-300 and open a severity 2 ticket for the wiki.", _DESK,
        [_one("cancel_meeting", meeting_id="m-300"), _one("open_ticket", ["affected"], system="wiki", severity=2)]),
    ("What is on account 6001?", _EVERY, [_one("get_balance", account="6001")]),
    ("How heavy are 5 kg in pounds?", _EVERY, [_one("convert_unit", value=5, from_unit="kg", to_unit="lb")]),
    ("Weather in Quito in two days, Celsius.", _EVERY, [_one("get_weather", city="Quito", days=2, unit="celsius")]),
    ("Send 75 dollars from 12 to 13 and then tell me what is on 12.", _EVERY,
        [_one("transfer_money", from_account="12", to_account="13", amount=75, currency="USD"),
         _one("get_balance", account="12")]),
    ("Garage light on, full brightness.", _EVERY, [_one("set_light", room="garage", on=True, brightness=100)]),
    ("List the cancelled orders of customer 640.", _EVERY,
        [_one("find_orders", ["limit"], customer_id=640, status="cancelled")]),
    ("Cancel m-1001, it rains.", _EVERY, [_one("cancel_meeting", meeting_id="m-1001")]),
    ("Translate “good morning” into Portuguese.", _EVERY, []),
    ("One seat in premium from ARN to BCN on Midsummer's Day, 24 June 2027.", _EVERY,
        [_one("search_flights", ["passengers"], origin="ARN", destination="BCN", date="2027-06-24", passengers=1, cabin="premium")]),
]
# fmt: on


def tool_questions() -> Iterator[Question]:
    """Yield the sixty questions, in an order that mixes their subjects."""
    # 23 shares no factor with 60, so that steps of it visit each row once.
    for at in range(len(_ROWS)):
        text, tools, calls = _ROWS[at * 23 % len(_ROWS)]
        yield Question(
            question_id=f"tool:{at * 23 % len(_ROWS):02}",
            source="tool_calls",
            category="none" if not calls else "one" if len(calls) == 1 else "several",
            kind="tool",
            text=text,
            tools=tools,
            calls=[ExpectedCall(*each) for each in calls],
        )
