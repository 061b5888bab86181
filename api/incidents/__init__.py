"""The history of incidents: what was wrong, from when to when, and whom it hurt."""
