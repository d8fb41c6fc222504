"""Attacks: what an honest but curious party computes from its view, and what one gets that deviates.

Each takes what that party holds. A score beside it takes the truth, too, and gives a `Result`. A party that deviates is
an honest one, wrapped (`coterie.privacy.attacks.wrapping`).
"""
