"""What authors of plug-ins import. Nothing here serves, and it imports the standard library alone."""
