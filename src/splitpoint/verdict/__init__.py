"""One page on one model: is its uncertainty to be trusted, how sure is that, and what should be used instead."""

from splitpoint.verdict.judge import verdict
from splitpoint.verdict.judging import Finding
from splitpoint.verdict.result import Verdict

__all__ = ["Finding", "Verdict", "verdict"]
