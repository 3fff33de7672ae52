"""Pages of reports and of decodes: one self-contained file each, made from the data of the report alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eqcheck.report.schema import Report


def to_html(*reports: Report) -> str:
    """The page of a report, or of several one after the other; it needs nothing but the reports' own data."""
    from eqcheck.report.html.report import to_html

    return to_html(reports)
