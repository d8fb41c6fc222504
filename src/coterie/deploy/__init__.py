"""A federation between machines: every party a process of its own, over an engine that moves bytes."""
