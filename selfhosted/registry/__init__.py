"""The fleet's state that all processes share through the database: registrations, drain orders, leases and hours."""
