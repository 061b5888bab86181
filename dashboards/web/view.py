"""An authorised page request, and its replies."""

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from accounts.access import Principal, Right, may
from accounts.audit.entry import Actor
from accounts.people.sessions import Session
from accounts.store import TeamRecord
from api.web.address import address_of
from api.web.gateway import Gateway, gateway_of
from cost.calendar import Calendar
from cost.calendars import calendar_of
from cost.currency import SecondCurrency, second_currency
from cost.times import wall_us
from dashboards.ui.navigation import menu
from dashboards.ui.options import Offers, matching
from dashboards.ui.rendering import render
from dashboards.ui.tables import Table, table_asked
from dashboards.web.forms import Form, read_form
from dashboards.web.headers import new_nonce, page_headers
from proxy.errors import BadRequest

TOLD_COOKIE: Final = "__Host-weighbridge-told"
_TOLD_S: Final = 60
_MAX_TOLD: Final = 600
_CSV: Final = "text/csv; charset=utf-8"
_JSON_HEADERS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_CSV_HEADERS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class Notice(msgspec.Struct, frozen=True):
    """A message from the previous page, shown once."""

    text: str
    tone: str


class PageRequest(NamedTuple):
    """An authorised page request: its session, and its team where the address names one."""

    request: Request
    gateway: Gateway
    principal: Principal
    session: Session
    team: TeamRecord | None
    team_names: Mapping[str, str]
    """Names of the viewer's teams by id."""
    sent: Form | None = None

    @property
    def actor(self) -> Actor:
        """The viewer as an audit actor."""
        return Actor.of_principal(self.principal, client_address(self.request))

    @property
    def query(self) -> QueryParams:
        """The address's parameters."""
        return self.request.query_params

    @property
    def now_us(self) -> int:
        """The wall clock, in microseconds."""
        return wall_us()

    @property
    def the_team(self) -> TeamRecord:
        """The team of the address, on routes that name one."""
        assert self.team is not None  # noqa: S101 - only routes without {team_id} have none
        return self.team

    async def calendar(self) -> Calendar:
        """Return the calendar of the organisation that the page is about; its days are the page's."""
        owner = self.team.organisation_id if self.team else self.principal.organisation_id
        return await calendar_of(self.gateway.database, owner)

    @property
    def is_part(self) -> bool:
        """True if the page's script requests only a part (htmx)."""
        return self.request.headers.get("hx-request") == "true"

    def may(self, right: Right) -> bool:
        """Return True if the viewer has a right, in the address's team where there is one."""
        return may(self.principal, right, team_id=self.team.team_id if self.team else None)

    async def form(self) -> Form:
        """Return the submitted form; its CSRF token is verified already."""
        return self.sent or await read_form(self.request)

    async def options_asked(self, **fields: Callable[[], Awaitable[Iterable[tuple[str, str]]]]) -> Response | None:
        """Return the matching choices of the field that the address asks for, as JSON, of those whose choices are told by
        themselves; otherwise None. A page calls it before it reads anything else. Others are answered by `page`.
        """
        read = fields.get(self.query.get("options", ""))
        return None if read is None else _as_options(matching(await read(), self.query.get("typed", "")))

    def page(self, template: str, *, title: str, status: int = 200, **context: Any) -> Response:
        """Return a whole page; or, where its address asks with `options` and `typed`, the matching choices of one of its
        fields, as JSON.
        """
        told = notice_of(self.request)
        offers = Offers()
        own = {
            "title": title,
            "view": self,
            "offers": offers,
            "currency": self.currency,
            "principal": self.principal,
            "csrf": self.session.csrf,
            "path": self.request.scope["path"],
            "told": told,
            "banner": self.gateway.config().sign_in.notice,
            "menu": menu(
                lambda right: may(self.principal, right),
                self.request.scope["path"],
                (self.team.team_id, self.team.name) if self.team else None,
                self.team_names,
            ),
        }
        # As arguments: a page that gives one of these names itself fails, rather than losing what it gave.
        page = shown(template, dict(**context, **own), status=status)
        found = offers.matching(self.query.get("options", ""), self.query.get("typed", ""))
        if found is not None:
            return _as_options(found)
        if told is not None:
            page.delete_cookie(TOLD_COOKIE, path="/", secure=True, httponly=True, samesite="lax")
        return page

    @property
    def currency(self) -> SecondCurrency | None:
        """The currency that amounts are shown in beside dollars."""
        return second_currency(self.gateway.config().cost.shown_currency)

    def part(self, template: str, **context: Any) -> HTMLResponse:
        """Return a fragment, which the page's script inserts."""
        return shown(
            template,
            {
                **context,
                "view": self,
                "offers": Offers(),
                "currency": self.currency,
                "csrf": self.session.csrf,
                "title": "",
                "principal": self.principal,
            },
        )

    def redirect(self, path: str, told: str = "", tone: str = "good") -> Response:
        """Return a redirect to another of our pages, which shows `told` once."""
        reply = RedirectResponse(path, status_code=303)
        if told:
            kept = base64.urlsafe_b64encode(msgspec.json.encode(Notice(told[:_MAX_TOLD], tone))).decode()
            reply.set_cookie(TOLD_COOKIE, kept, max_age=_TOLD_S, path="/", secure=True, httponly=True, samesite="lax")
        reply.headers["cache-control"] = "no-store"
        return reply

    def csv(self, filename: str, text: str) -> Response:
        """Return a CSV download."""
        return Response(text, media_type=_CSV, headers=_file_headers(filename))

    def csv_asked(self, filename: str, *tables: Table, problem: str = "") -> Response | None:
        """Return the CSV of one of these tables when the address asks for it, otherwise None. Raises BadRequest with what the page
        says of a time that it cannot show: a file has no place for it, and would pass for another time, or for nothing.
        """
        found = table_asked(self.query, {table.name: table for table in tables})
        if found is not None and problem:
            # What the page shows instead is not what a program asked for.
            raise BadRequest(f"{problem.partition('. ')[0].removesuffix('.')}.", param="from")
        return None if found is None else TableFile(found, _file_headers(f"{filename}.csv"), self.currency)


def _as_options(found: Sequence[tuple[str, str]]) -> Response:
    return Response(msgspec.json.encode(found), media_type="application/json", headers=_JSON_HEADERS)


class TableFile(Response):
    """A table as CSV, rendered in a thread, so that thousands of rows do not block the event loop."""

    media_type = _CSV

    def __init__(self, table: Table, headers: Mapping[str, str], currency: SecondCurrency | None = None) -> None:
        super().__init__(headers=headers)
        self._table = table
        self._currency = currency
        self._reply_headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Render and send the file."""
        text = await asyncio.to_thread(self._table.csv, self._currency)
        await Response(text, media_type=_CSV, headers=self._reply_headers)(scope, receive, send)


def _file_headers(filename: str) -> dict[str, str]:
    return {**_CSV_HEADERS, "content-disposition": f"attachment; filename*=UTF-8''{quote(filename)}"}


def shown(template: str, context: Mapping[str, Any], *, status: int = 200, form_targets: str = "") -> HTMLResponse:
    """Return a page with its security headers; no session needed."""
    nonce = new_nonce()
    text = render(template, {"nonce": nonce, **context})
    return HTMLResponse(text, status, page_headers(nonce, form_targets=form_targets))


def shown_to_anybody(
    template: str, *, title: str, status: int = 200, form_targets: str = "", **context: Any
) -> HTMLResponse:
    """Return a page without a menu, for viewers who are not signed in."""
    whole = {"csrf": "", "told": None, "banner": "", "menu": (), "path": "", **context, "title": title}
    return shown(template, whole, status=status, form_targets=form_targets)


def notice_of(request: Request) -> Notice | None:
    """Return the message that the previous reply left in a cookie, or None."""
    kept = request.cookies.get(TOLD_COOKIE, "")
    if not kept or len(kept) > 4 * _MAX_TOLD:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(kept), type=Notice)
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        return None


def client_address(request: Request) -> str:
    """Return the client's IP address; X-Forwarded-For is trusted from `sign_in.trusted_proxies` alone."""
    return address_of(request, gateway_of(request).config().sign_in.trusted_proxies)
