"""What engines tell of themselves, fetched and read."""
