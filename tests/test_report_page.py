"""The page: well-formed, by itself, and everything on it that the records hold."""

import re
from html.parser import HTMLParser

import pytest

from splitpoint.bench.record import read_records
from splitpoint.report import curves
from splitpoint.report.grid import as_html
from splitpoint.report.page import page
from splitpoint.report.sections import sections

VOID = {"meta", "link", "input"}


class Reader(HTMLParser):
    """Checks that elements are closed in order, and collects ids, references and addresses."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.references, self.addresses, self.tags = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("aria-controls", "aria-labelledby"):
                self.references.append(value)
            if name in ("href", "src"):
                self.addresses.append(value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def document(results):
    records = read_records(results)
    return page(records, sections(records), curves.read(results))


@pytest.fixture(scope="module")
def read(document):
    reader = Reader()
    reader.feed(document)
    return reader


def test_elements_are_closed_and_references_lead_somewhere(read):
    assert read.open == []
    assert len(read.ids) == len(set(read.ids))
    assert set(read.references) <= set(read.ids)
    assert {address[1:] for address in read.addresses if address.startswith("#")} <= set(read.ids)


def test_nothing_comes_from_elsewhere(document, read):
    assert "http" not in document
    assert "//" not in document.replace("// ", "")
    assert "@import" not in document
    assert "url(" not in document
    assert all(address.startswith(("#", "data:")) for address in read.addresses)


def test_no_number_is_missing_in_a_drawing(document):
    assert not re.search(r'"[^"<>]*\b(nan|inf)\b[^"<>]*"', document)


def test_page_says_what_was_run(document):
    for said in (
        "torch 2.13.0",
        "UCI regression, Cubic regression, UCI ablations",
        "MC dropout",
        "124 (1 failed)",
        "epochs 40, 400",
    ):
        assert said in document


def test_failures_are_escaped_and_shown(document):
    assert "1 trial failed" in document
    assert "loss is &lt;not&gt; finite" in document
    assert "1 of 3 failed" in document


def test_every_figure_is_there(document):
    assert document.count("Average ranks:") >= 3
    assert "Coverage against relative width" in document
    assert "interval and truth above, epistemic score below" in document
    assert "Hollow and dashed: published." in document
    assert "2 values of train fraction" in document


def test_curves_without_records_are_shown_too(results, cell):
    records = cell("boston", "splitpoint", {"rmse": [1.0, 2.0]})
    shown = page(records, sections(records), curves.read(results))
    assert "Cubic regression, trimodal noise" in shown


def test_cells_say_place_and_verdict_in_words(cell):
    records = cell("boston", "mc_dropout", {"rmse": [3.9, 4.1]}) + cell("boston", "splitpoint", {"rmse": [5.0, 5.0]})
    (section,) = sections(records)
    table = as_html(section, section.tables[0])
    assert "<sup>1st</sup> <strong>4.00 ± 0.10</strong>" in table
    assert "<sup>2nd</sup> <em>5.00 ± 0.00</em>" in table
    assert 'title="reproduced; published 3.99 ± 0.17 in tab:UCI-results1"' in table
    assert '<span aria-hidden="true">▼</span><span class="hidden">worse, published </span> 3.69' in table
