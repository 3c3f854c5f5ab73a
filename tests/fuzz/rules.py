"""Differences that are documented: each is told by a rule, and has its reason."""

from .laws import Case, Failure


def reason(case: Case, failure: Failure) -> str | None:
    """Why a law need not hold here, or None."""
    return next((rule.__doc__ for rule in RULES if rule(case, failure)), None)


RULES: tuple = ()
