"""The bill of a trace under fleets of different sizes and scalers, in steps of seconds."""
