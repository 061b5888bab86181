"""The schema's history. `proxy.db.migrate` runs it; see `env.py` for what Alembic is given."""
