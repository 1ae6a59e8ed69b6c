"""The page in a browser: quiet, no wider than the screen, sortable and filterable, in light and in dark."""

import pytest

from browsing import CHROMIUM, CONTRAST, OUTSIDE, launch, watched
from splitpoint.report import write

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium to drive"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = launch(driver)
        yield started
        started.close()


@pytest.fixture(scope="module")
def addresses(results, image_results, tmp_path_factory):
    """Where the pages of the regression and of the image experiments are."""
    found = {}
    for name, folder in (("regression", results), ("images", image_results)):
        out = tmp_path_factory.mktemp(name)
        write(folder, out)
        found[name] = (out / "index.html").as_uri()
    return found


@pytest.fixture
def opened(browser, addresses):
    contexts = []

    def visit(width=1280, scheme="light", experiment="regression", **settings):
        address = addresses[experiment]
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, **settings)
        contexts.append(context)
        return watched(context, address)

    yield visit
    for context in contexts:
        context.close()


def names_of(page, section="uci-authors-clean"):
    return page.locator(f"#{section} .panel:not([hidden]) tbody tr:visible th").all_inner_texts()


@pytest.mark.parametrize("experiment", ["regression", "images"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_page_is_quiet_readable_and_no_wider_than_the_screen(opened, width, scheme, experiment):
    page = opened(width, scheme, experiment)
    for tab in page.locator("[role=tab]").all():
        tab.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.troubles == []
    assert page.evaluate(CONTRAST) >= 4.5
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")


def test_columns_sort_both_ways_and_cells_without_a_number_stay_last(opened):
    page = opened()
    panel = page.locator("#uci-authors-clean .panel:not([hidden])")
    head = panel.locator("thead th").nth(3)
    assert head.inner_text().startswith("wine")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    rising = names_of(page)
    assert rising == ["Split-point (paper)", "Deep ensemble", "own method", "MC dropout"]  # MC dropout failed once
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert names_of(page) == ["own method", "Deep ensemble", "Split-point (paper)", "MC dropout"]
    panel.locator("thead button").first.click()
    assert head.get_attribute("aria-sort") == "none"
    assert names_of(page)[0] == "Deep ensemble"


def test_filters_hide_methods_and_data_sets(opened):
    page = opened()
    page.fill("[name=method]", "split, ensemble")
    assert names_of(page) == ["Deep ensemble", "Split-point (paper)"]
    page.fill("[name=dataset]", "wine")
    heads = page.locator("#uci-authors-clean .panel:not([hidden]) thead th:visible").all_inner_texts()
    assert [head.split()[0] for head in heads] == ["Method", "wine"]
    assert page.locator("output").inner_text() == "2 of 4 methods, 1 of 5 data sets"
    page.fill("[name=method]", "")
    page.fill("[name=dataset]", "")
    assert len(names_of(page)) == 4
    assert page.locator("output").inner_text() == ""


def test_tabs_show_one_measure_and_follow_the_arrow_keys(opened):
    page = opened()
    tabs = page.locator("#uci-authors-clean [role=tab]")
    panels = page.locator("#uci-authors-clean .panel:visible h3")
    assert panels.all_inner_texts() == ["RMSE"]
    tabs.nth(1).click()
    assert panels.all_inner_texts() == ["PICP"]
    page.keyboard.press("ArrowLeft")
    assert panels.all_inner_texts() == ["RMSE"]
    page.keyboard.press("End")
    assert panels.all_inner_texts() == ["Training, CPU seconds"]
    assert tabs.last.get_attribute("aria-selected") == "true"


def test_paper_and_readers_without_a_script_see_every_measure(opened):
    page = opened()
    page.emulate_media(media="print")
    shown = page.locator("#uci-authors-clean .panel:visible").count()
    assert shown == page.locator("#uci-authors-clean .panel").count() > 1
    assert not page.locator(".toolbar").is_visible()
    plain = opened(java_script_enabled=False)
    assert plain.locator("#uci-authors-clean .panel:visible").count() == shown
    assert not plain.locator(".toolbar").is_visible()


MAIN = "images-short-clean"


def test_tables_of_images_sort(opened):
    page = opened(experiment="images")
    page.locator(f"#{MAIN} [role=tab]", has_text="ECE").click()
    head = page.locator(f"#{MAIN} > .panel:not([hidden]) thead th").nth(1)
    assert head.inner_text().startswith("MNIST, LeNet")
    head.locator("button").click()
    assert names_of(page, MAIN)[0] == "Temperature scaling"
    head.locator("button").click()
    assert names_of(page, MAIN)[0] == "Softmax"


def test_figures_of_one_data_set_at_a_time(opened):
    page = opened(experiment="images")
    shown = page.locator(f"#{MAIN} .panel:visible h3")
    assert shown.all_inner_texts() == ["Accuracy", "Figures, MNIST, LeNet"]
    page.get_by_role("tab", name="Figures, CIFAR-10, ResNet-20").click()
    assert shown.all_inner_texts() == ["Accuracy", "Figures, CIFAR-10, ResNet-20"]
    plain = opened(experiment="images", java_script_enabled=False)
    assert plain.locator(f"#{MAIN} .panel:visible h4", has_text="Under attack").count() == 3


def test_thumbnails_are_loaded_and_scaled_up_as_pixels(opened):
    page = opened(390, experiment="images")
    found = page.evaluate(
        """() => [...document.querySelectorAll(".thumbnails img")].map((image) => [
          image.naturalWidth > 0, image.width, getComputedStyle(image).imageRendering])"""
    )
    assert len(found) == 3 * 48
    assert {tuple(image) for image in found} == {(True, 56, "pixelated")}


@pytest.mark.parametrize("experiment", ["regression", "images"])
def test_drawings_keep_their_words_inside(opened, experiment):
    page = opened(experiment=experiment)
    for tab in page.get_by_role("tab").all():
        tab.click()
        outside = page.evaluate(OUTSIDE)
        assert outside == []
