"""To be written by its owner: this package's architecture in a docstring, and its face."""
