"""Attacks: what an honest but curious party computes from its view, and what one gets that deviates.

Each is a function of what that party holds (arrays in, a guess out), with a score beside it that takes the truth. The
score is a `Result`: the number, what chance gives, and how many clients were scored. An active attack also has what the
party does otherwise than the protocol says, to be wrapped around an honest one (`coterie.privacy.attacks.wrapping`).
"""
