"""Base classes and error wording shared by the configuration's sections."""
