"""The gateway as one ASGI application: its routes, its error replies, and the process behind them."""

from pathlib import Path

from fastapi import FastAPI

from dashboards.admin_routers import ROUTERS as ADMIN
from dashboards.api_docs.document import Described
from dashboards.api_routers import ROUTERS as API
from dashboards.page_routers import ROUTERS as PAGES
from dashboards.web.error_replies import add_error_replies
from gateway.configuration.settings import (
    Environment,
    GatewayConfig,
)
from gateway.running import Running


def create_app(config: GatewayConfig, environment: Environment, config_path: Path | None = None) -> FastAPI:
    """The gateway as an ASGI application. `config_path` is the file that SIGHUP reads again."""
    running = Running(config, environment, config_path)
    app = Described(
        title="Weighbridge",
        lifespan=running.lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # It would send people to whatever host they say that this is.
        redirect_slashes=False,
    )
    for router in (*API, *ADMIN, *PAGES):
        app.include_router(router)
    add_error_replies(app)
    app.state.begin_drain, app.state.cut_off, app.state.reload = running.begin_drain, running.cut_off, running.reload
    app.state.hot_routes, app.state.elsewhere = running.hot_routes, running.elsewhere
    app.state.watch_backlog, app.state.adopt_server = running.watch_backlog, running.adopt_server
    return app
