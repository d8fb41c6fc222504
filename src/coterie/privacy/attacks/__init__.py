"""Attacks: what an honest but curious party computes from its view, and what a deviating party gains."""
