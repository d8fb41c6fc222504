"""Names of parties, and their form in subjects, file names and certificates."""

from __future__ import annotations

import re

from coterie.protocol.errors import UserError

MAX_NAME = 40
OPERATOR, ENGINE = "operator", "engine"
RESERVED = frozenset({OPERATOR, ENGINE, "authority", "nats"})
"""Names in certificates, and of services, that no party may have."""
_NAME = re.compile(r"[a-z][a-z0-9_]*(?:[-/][a-z0-9_]+)*")
_STEP = re.compile(r"([-/])([a-z0-9_]+)")
_SAFE_STEP = re.compile(r"(--?)([a-z0-9_]+)")
_NUMBER = re.compile(r"[0-9]+")


def check_name(name: object) -> str:
    """A party's name: small letters, digits and ``_``, with single ``-`` or ``/``; else raises UserError."""
    if not isinstance(name, str) or len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise UserError(
            f"{str(name)[:MAX_NAME]!r} is no name of a party: it begins with a small letter and has small letters, "
            f"digits and _, with single - or / between them, at most {MAX_NAME} characters, such as hospital-a"
        )
    if name in RESERVED:
        raise UserError(f"{name!r} is no name of a party, since it means something else here: choose another")
    return name


def safe(name: str) -> str:
    """A name as one token of ``[a-z0-9_-]``: ``client/3`` is ``client-3``, ``hospital-a`` stays. Injective.

    ``-`` stands for ``/`` before a number and for itself before a word; ``--`` is the other of the two.
    Raises UserError for an invalid name.
    """
    return _STEP.sub(lambda step: ("-" if step[1] == _usual(step[2]) else "--") + step[2], check_name(name))


def named(token: str) -> str:
    """The name of a safe form. Raises UserError for an invalid one."""
    name = _SAFE_STEP.sub(lambda step: _separator(*step.groups()) + step[2], token)
    if safe(name) != token:
        raise UserError(f"{token[:MAX_NAME]!r} is the safe form of no name")
    return name


def _usual(word: str) -> str:
    return "/" if _NUMBER.fullmatch(word) else "-"


def _separator(dashes: str, word: str) -> str:
    usual = _usual(word)
    return usual if dashes == "-" else ("-" if usual == "/" else "/")
