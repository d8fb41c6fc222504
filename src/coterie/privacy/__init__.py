"""Attacks on a party's view, and audits that run them on a run folder."""
