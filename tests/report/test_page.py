"""The page: well-formed, by itself, and everything on it that the records hold."""

import re
from html.parser import HTMLParser

import pytest

from splitpoint.bench.record import read_records
from splitpoint.report import gallery
from splitpoint.report.markup import results as results_table
from splitpoint.report.page import page
from splitpoint.report.sections import sections

VOID = {"meta", "link", "input", "img"}


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


def document_of(folder):
    records = read_records(folder)
    return page(records, sections(records), gallery.read(folder))


@pytest.fixture(scope="module")
def document(results):
    return document_of(results)


@pytest.fixture(scope="module")
def image_document(image_results):
    return document_of(image_results)


@pytest.fixture(params=["document", "image_document"])
def either(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def read(either):
    reader = Reader()
    reader.feed(either)
    return reader


def test_elements_are_closed_and_references_lead_somewhere(read):
    assert read.open == []
    assert len(read.ids) == len(set(read.ids))
    assert set(read.references) <= set(read.ids)
    assert {address[1:] for address in read.addresses if address.startswith("#")} <= set(read.ids)


def test_nothing_comes_from_elsewhere(either, read):
    text = re.sub("data:image/png;base64,[A-Za-z0-9+/=]+", "", either)
    assert "http" not in text
    assert "//" not in text.replace("// ", "")
    assert "@import" not in text
    assert "url(" not in text
    assert all(address.startswith(("#", "data:")) for address in read.addresses)


def test_no_number_is_missing_in_a_drawing(either):
    assert not re.search(r'"[^"<>]*\b(nan|inf)\b[^"<>]*"', either)


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


def test_figures_of_images_stand_once_in_the_section_of_their_data_set(image_document):
    first, _, rest = image_document.partition('<section id="images-ablation')
    assert first.count("<h4>Under attack</h4>") == 3
    assert "Under attack" not in rest
    assert "Against the entropy of the softmax" in first
    assert "2 data sets" in rest
    assert "Hollow and dashed: published." in rest


def test_drawings_without_records_are_shown_too(image_results, cell):
    records = cell("boston", "splitpoint_paper", {"rmse": [1.0, 2.0]})
    shown = page(records, sections(records), gallery.read(image_results))
    assert "<h2>Image classification, short schedule</h2>" in shown
    assert shown.count("<h4>Under attack</h4>") == 3


@pytest.mark.parametrize(("shown", "wanted"), [("document", "boston yacht"), ("image_document", "mnist cifar10")])
def test_the_filter_suggests_data_sets_of_the_page(request, shown, wanted):
    text = request.getfixturevalue(shown)
    assert f'name="dataset" placeholder="{wanted}"' in text
    heads = re.findall(r'<th scope="col" aria-sort="none" data-name="([^"]*)"', text)
    assert all(any(word in head for head in heads) for word in wanted.split())


def test_words_of_one_data_set_are_suggested_once(cell):
    records = cell("cubic", "splitpoint_paper", {"rmse": [1.0, 2.0]}, suite="cubic")
    assert 'placeholder="cubic"' in page(records, sections(records))


def test_training_time_is_told_for_networks_of_every_kind(image_document):
    (said,) = set(re.findall(r"Of one trial: [^<]*", image_document))
    assert "Networks that come trained cost nothing here." in said
    assert "stack" not in said


def test_curves_without_records_are_shown_too(results, cell):
    records = cell("boston", "splitpoint_paper", {"rmse": [1.0, 2.0]})
    shown = page(records, sections(records), gallery.read(results))
    assert "<h2>Cubic regression, paper&#x27;s protocol, trimodal noise</h2>" in shown
    assert "interval and truth above" in shown


def test_cells_say_place_and_verdict_in_words(cell):
    records = cell("boston", "mc_dropout", {"rmse": [3.9, 4.1]})
    records += cell("boston", "splitpoint_paper", {"rmse": [5.0, 5.0]})
    (section,) = sections(records)
    table = results_table(section, section.tables[0])
    assert "<sup>1st</sup> <strong>4.00 ± 0.10</strong>" in table
    assert "<sup>2nd</sup> <em>5.00 ± 0.00</em>" in table
    assert 'title="reproduced; published 3.99 ± 0.17 in tab:UCI-results1"' in table
    assert '<span aria-hidden="true">▼</span><span class="hidden">worse, published </span> 3.69' in table
