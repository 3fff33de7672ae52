"""Audits as JUnit's XML: a test suite for each decoder, a test case for the verdict and for each cause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from eqcheck.contract.escaping import printable
from eqcheck.report.checks import Check, checks
from eqcheck.report.schema import Report

# What XML 1.0 cannot hold, not even escaped.
_UNSPEAKABLE = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(reports: Sequence[Report], allow_declared: bool) -> str:
    """The XML of audits. A known violation is a skipped test, one that is inconclusive an error."""
    root = ElementTree.Element("testsuites", name="eqcheck")
    for report in reports:
        found = checks(report, allow_declared)
        suite = ElementTree.SubElement(root, "testsuite", name=_clean(report.decoder.name))
        suite.set("tests", str(len(found)))
        for attribute, status in (("failures", "failed"), ("errors", "inconclusive"), ("skipped", "known")):
            suite.set(attribute, str(sum(check.status == status for check in found)))
        suite.set("time", f"{report.elapsed_s:.1f}")
        for number, check in enumerate(found):
            _case(suite, check, report, report.elapsed_s if number == 0 else 0.0)
    ElementTree.indent(root)
    return f"{ElementTree.tostring(root, encoding='unicode', xml_declaration=True)}\n"


def _case(suite: ElementTree.Element, check: Check, report: Report, seconds: float) -> None:
    classname = f"eqcheck.{_clean(report.decoder.name)}"
    case = ElementTree.SubElement(suite, "testcase", classname=classname, name=_clean(check.name))
    case.set("time", f"{seconds:.1f}")
    tag = {"failed": "failure", "inconclusive": "error", "known": "skipped"}.get(check.status)
    if tag is None:
        ElementTree.SubElement(case, "system-out").text = _clean(check.message)
        return
    told = ElementTree.SubElement(case, tag, message=_clean(check.message))
    if tag != "skipped":
        told.set("type", _clean(check.name))
    told.text = _clean(check.text) or None


def _clean(text: str) -> str:
    return _UNSPEAKABLE.sub("?", printable(text))
