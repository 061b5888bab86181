"""List of the routers of the admin API."""

from typing import Final

from fastapi import APIRouter

from dashboards.api_docs import api as api_docs
from dashboards.audit import admin as audit
from dashboards.budgets import admin as budgets
from dashboards.keys import admin as keys
from dashboards.limits import admin as limits
from dashboards.people import admin as people
from dashboards.people import members_admin as members
from dashboards.teams import admin as teams

ROUTERS: Final[tuple[APIRouter, ...]] = (
    audit.router,
    budgets.router,
    keys.router,
    limits.router,
    members.router,
    api_docs.router,
    people.router,
    teams.router,
)
