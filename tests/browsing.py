"""What tests of pages in a browser share: how Chromium is started, and what is asked of a page."""

import shutil

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CONTRAST = """() => {
  const bright = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const paper = bright(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll(
      "p, dt, dd, th, td, li, small, sup, figcaption, a, summary, h5, .light")].map((item) => {
    const ink = bright(getComputedStyle(item).color);
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  }).reduce((least, ratio) => Math.min(least, ratio), 21);
}"""
"""The least contrast of text on the page."""

OUTSIDE = """() => [...document.querySelectorAll(".small-multiples .plot")].filter((plot) => plot.clientWidth)
  .flatMap((plot) => [...plot.querySelectorAll("text")].filter((text) => {
    const [inner, outer] = [text, plot].map((item) => item.getBoundingClientRect());
    return inner.right > outer.right + 1 || inner.left < outer.left - 1;
  }).map((text) => text.textContent))"""
"""Words of drawings that reach beyond them."""


def launch(driver):
    """A browser."""
    return driver.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)


def watched(context, address):
    """The page at an address; whatever it says or asks for from elsewhere is kept as its `troubles`."""
    page = context.new_page()
    page.troubles = []
    page.on("console", lambda message: page.troubles.append(message.text))
    page.on("pageerror", lambda error: page.troubles.append(str(error)))

    def asked(request):
        if request.url != address and not request.url.startswith("data:image/png"):
            page.troubles.append(request.url)

    page.on("request", asked)
    page.goto(address)
    return page
