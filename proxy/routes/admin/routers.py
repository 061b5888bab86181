"""Every resource of the admin API, in one list."""

from typing import Final

from fastapi import APIRouter

from proxy.routes.admin import (
    audit,
    budgets,
    keys,
    limits,
    members,
    openapi,
    people,
    teams,
)

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
