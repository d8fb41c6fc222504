"""The names that ciphers import: see ``weight.py``."""

from coterie.protocol.weight import content, hollow, weighs

__all__ = ["content", "hollow", "weighs"]
