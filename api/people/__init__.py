"""/v1/admin/people and /v1/admin/teams/{team_id}/members."""
