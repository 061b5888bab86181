"""/v1/admin/teams/{team_id}/keys."""
