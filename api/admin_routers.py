"""List of the routers of the admin API."""

from typing import Final

from fastapi import APIRouter

from api.ask import admin as ask
from api.audit import admin as audit
from api.budgets import admin as budgets
from api.calendar import admin as calendar
from api.end_users import admin as end_users
from api.erasure import admin as erasure
from api.guard import admin as guard
from api.keys import admin as keys
from api.limits import admin as limits
from api.openapi import routes as api_docs
from api.people import admin as people
from api.people import members_admin as members
from api.teams import admin as teams

ROUTERS: Final[tuple[APIRouter, ...]] = (
    ask.router,
    audit.router,
    budgets.router,
    calendar.router,
    end_users.router,
    erasure.router,
    guard.router,
    keys.router,
    limits.router,
    members.router,
    api_docs.router,
    people.router,
    teams.router,
)
