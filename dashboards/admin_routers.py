"""Every resource of the admin API, in one list."""

from typing import Final

from fastapi import APIRouter

from dashboards.audit import admin as audit
from dashboards.budgets import admin as budgets
from dashboards.keys import admin as keys
from dashboards.limits import admin as limits
from dashboards.people import admin as people
from dashboards.people import members_admin as members
from dashboards.teams import admin as teams
from dashboards.web import openapi

ROUTERS: Final[tuple[APIRouter, ...]] = (
    audit.router,
    budgets.router,
    keys.router,
    limits.router,
    members.router,
    openapi.router,
    people.router,
    teams.router,
)
