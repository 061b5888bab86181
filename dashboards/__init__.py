"""Pages of the control plane with their templates beside them, alerts, and the boards of monitoring systems.

A page asks for a right and gets the viewer's session, team and form:

    @router.get("/dashboard/teams/{team_id}")
    async def team(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
        return view.page("teams/overview.html", title=view.the_team.name)
"""
