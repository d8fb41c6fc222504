"""A federation between machines: every party is a process over an engine."""
