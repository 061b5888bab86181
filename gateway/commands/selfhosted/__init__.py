"""`weighbridge selfhosted …`: our own engines, planned, rendered, run, watched and simulated."""

import typer

from gateway.commands.selfhosted.fleet import drain, status, undrain
from gateway.commands.selfhosted.plan import plan
from gateway.commands.selfhosted.prefixes import prefixes
from gateway.commands.selfhosted.render import render
from gateway.commands.selfhosted.run import run
from gateway.commands.selfhosted.share import share
from gateway.commands.selfhosted.simulate import simulate

selfhosted_app = typer.Typer(help="Our own engines.", no_args_is_help=True, rich_markup_mode=None)
selfhosted_app.command("prefixes")(prefixes)
selfhosted_app.command("status")(status)
selfhosted_app.command("drain")(drain)
selfhosted_app.command("undrain")(undrain)
selfhosted_app.command("plan")(plan)
selfhosted_app.command("share")(share)
selfhosted_app.command("render")(render)
selfhosted_app.command("run")(run)
selfhosted_app.command("simulate")(simulate)
