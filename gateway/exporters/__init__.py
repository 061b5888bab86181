"""Exporters that come with the gateway. They are plug-ins as others' are: they import `weighbridge.plugins` alone of us."""
