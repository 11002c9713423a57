"""A browser without a window: what a page looks like in it, where its parts are, and what it complains of."""

import dataclasses
import html
import json
import os
import re
import shutil
import subprocess

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
WIDTH, MOST_HEIGHT = 1240, 8000

# Says where plots are and which colours the theme has, behind everything else on the page.
MEASURE = """<script>addEventListener("load", () => setTimeout(() => {
  const boxes = {}, colours = {}, style = getComputedStyle(document.documentElement);
  for (const figure of document.querySelectorAll("figure")) {
    const box = figure.querySelector(".plot").getBoundingClientRect();
    boxes[figure.id] = [box.left + scrollX, box.top + scrollY, box.right + scrollX, box.bottom + scrollY];
  }
  for (const name of ["back", "text", "compute", "wait", "gather", "reduce", ...Array(9).keys()]) {
    const key = typeof name === "number" ? "series-" + name : name;
    colours[key] = style.getPropertyValue("--" + key).trim();
  }
  const cut = [...document.querySelectorAll("svg text, .dygraph-axis-label, h1, h2, figcaption")]
    .filter((e) => { const b = e.getBoundingClientRect(); return b.left < 0 || b.right > innerWidth; })
    .map((e) => e.textContent);
  const measured = { boxes, colours, cut, height: document.documentElement.scrollHeight,
                     width: document.documentElement.scrollWidth };
  document.body.appendChild(document.createElement("pre")).id = "measured";
  document.getElementById("measured").textContent = JSON.stringify(measured);
  document.getElementById("measured").style.display = "none";
}, 100));</script>"""


def find_browser():
    """On CI there must be one; elsewhere tests are skipped without."""
    for name in NAMES:
        if shutil.which(name):
            return name
    assert not os.environ.get("CI"), f"none of {', '.join(NAMES)} is installed: make setup"
    pytest.skip("no Chromium")


@dataclasses.dataclass
class Seen:
    dom: str
    image: object  # PIL's, RGB
    boxes: dict  # left, top, right and bottom of each plot, by the id of its figure
    colours: dict  # RGB by name
    cut: list  # texts that reach beyond the window
    complaints: list  # lines of the console
    width: int  # of what is on the page

    def pixels(self, figure, colour, alpha=1.0, tolerance=36):
        """How many in the plot's box are of about this colour, laid over the background with `alpha`."""
        import numpy

        want = alpha * numpy.array(self.colours[colour]) + (1 - alpha) * numpy.array(self.colours["back"])
        left, top, right, bottom = (round(edge) for edge in self.boxes[figure])
        box = numpy.asarray(self.image, dtype=int)[top:bottom, left:right]
        return int((abs(box - want).max(axis=2) <= tolerance).sum())


def rgb(text):
    return tuple(int(text[i : i + 2], 16) for i in (1, 3, 5))


def run_browser(page, folder, height, dark, *arguments):
    command = [
        find_browser(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={WIDTH},{height}",
        "--virtual-time-budget=5000",
        "--enable-logging=stderr",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        *arguments,
        page.as_uri(),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout, [line for line in result.stderr.splitlines() if "CONSOLE" in line]


def look_at(page, folder, dark=False):
    """The whole page in a light or dark theme; the screenshot stays in `folder`."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    measuring = folder / "measuring.html"
    measuring.write_text(page.read_text().replace("</body>", MEASURE + "</body>"))

    def measure(height):
        dom, complaints = run_browser(measuring, folder, height, dark, "--dump-dom")
        found = re.search(r'<pre id="measured"[^>]*>(.*?)</pre>', dom, re.S)
        assert found, f"the page's script has not come to its end: {complaints}"
        return dom, complaints, json.loads(html.unescape(found[1]))

    height = min(MOST_HEIGHT, measure(1000)[2]["height"])
    dom, complaints, measured = measure(height)
    picture = folder / ("dark.png" if dark else "light.png")
    run_browser(measuring, folder, height, dark, f"--screenshot={picture}")
    return Seen(
        dom,
        Image.open(picture).convert("RGB"),
        measured["boxes"],
        {name: rgb(text) for name, text in measured["colours"].items()},
        measured["cut"],
        complaints,
        measured["width"],
    )
