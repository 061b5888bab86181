"""The schema's history. `gateway.database.migrate` runs it; see `env.py` for what Alembic is given."""
