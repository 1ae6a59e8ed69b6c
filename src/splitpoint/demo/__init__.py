"""The demonstration behind ``splitpoint demo``: a regression and a classification network, tables, figures, a page."""

from splitpoint.demo.page import run

__all__ = ["run"]
