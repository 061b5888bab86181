"""/v1/usage: booked usage, grouped, as JSON or CSV."""
