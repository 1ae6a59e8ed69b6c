"""Reports behind ``splitpoint report``: tables, figures and a page, a pure function of the records of a benchmark."""

from splitpoint.report.write import write

__all__ = ["write"]
