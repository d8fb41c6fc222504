"""Attacks: what an honest but curious party computes from its view, and what a deviating party gains.

An attack takes what that party holds. Its score also takes the truth and gives a `Result`.
"""
