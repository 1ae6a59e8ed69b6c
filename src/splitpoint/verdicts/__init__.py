"""One page on one model: is its uncertainty to be trusted, how sure is that, and what should be used instead."""

from splitpoint.verdicts.judge import verdict
from splitpoint.verdicts.judging import Finding
from splitpoint.verdicts.result import Verdict

__all__ = ["Finding", "Verdict", "verdict"]
