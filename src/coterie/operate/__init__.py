"""For operators and owners of homes."""
