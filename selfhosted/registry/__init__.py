"""What all processes share about the fleet through the database: who registered, who is drained, who leads, the hours."""
