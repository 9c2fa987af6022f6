"""`Verdict`: yes or no, with the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a legality or support question; truthy if the answer is yes.

    rule: the short, stable name of the rule that refused (``"shared_memory"``); summaries count by
        it.
    reason: a sentence with the numbers that decided.
    """

    ok: bool
    rule: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return "yes" if self.ok else f"{self.rule}: {self.reason}"


YES = Verdict(True)


def no(rule: str, reason: str) -> Verdict:
    """A refusal by `rule`, for `reason`."""
    return Verdict(False, rule, reason)
