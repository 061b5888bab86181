"""/v1/admin/guard and /v1/admin/teams/{team_id}/guard."""
