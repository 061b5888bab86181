"""Routes whose bodies and answers pass as they are, to a target that the caller names, booked by the provider's units."""
