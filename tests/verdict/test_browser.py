"""The page of a verdict in a browser: quiet, no wider than the screen, readable in light, in dark and on paper."""

import pytest

from browsing import CHROMIUM, CONTRAST, OUTSIDE, launch, watched

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium to drive"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def opened(numbers_verdict, images_verdict, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    addresses = {}
    for name, verdict in (("numbers", numbers_verdict), ("images", images_verdict)):
        verdict.save(folder / f"{name}.html")
        addresses[name] = (folder / f"{name}.html").as_uri()
    with playwright.sync_playwright() as driver:
        browser = launch(driver)

        def visit(which, width=1280, scheme="light", **settings):
            context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, **settings)
            return watched(context, addresses[which])

        yield visit
        browser.close()


@pytest.mark.parametrize("which", ["numbers", "images"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_page_is_quiet_readable_and_no_wider_than_the_screen(opened, width, scheme, which):
    page = opened(which, width, scheme)
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.troubles == []
    assert page.evaluate(CONTRAST) >= 4.5
    assert page.evaluate(OUTSIDE) == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")


def test_thumbnails_are_loaded(opened):
    page = opened("images", 390)
    found = page.evaluate("() => [...document.querySelectorAll('.worst img')].map((image) => image.naturalWidth)")
    assert found == [8] * 12


def test_paper_shows_every_statement(opened, numbers_verdict):
    page = opened("numbers", scheme="dark")
    page.emulate_media(media="print")
    shown = page.locator(".findings li:visible").count()
    assert shown == len(numbers_verdict.findings)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
