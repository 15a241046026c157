"""Opens the page of `rolldock report` in headless Chromium, and checks its visible content.

    report_page.py CHROMIUM RUN [PICTURE]

The browser is driven over a pipe in the Chrome DevTools Protocol, so nothing but Python's standard library is needed.
"""

import base64
import fcntl
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 240
FATES = ("accepted", "filtered", "held", "carried", "requeued", "cancelled", "stale", "failed")

# Measures the page, and returns the results as JSON. Boxes are compared in pixels of the screen.
LOOK = """(() => {
  const box = element => element.getBoundingClientRect();
  const overlap = (one, other) => one.right > other.left + 1 && other.right > one.left + 1
    && one.bottom > other.top + 2 && other.bottom > one.top + 2;
  const rgb = text => text.match(/[0-9.]+/g).slice(0, 3).map(Number);
  const light = colour => rgb(colour).map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const contrast = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  const figures = [...document.querySelectorAll('figure')].map(figure => {
    const svg = figure.querySelector('svg');
    const marks = [...figure.querySelectorAll('.mark')];
    const surface = light(getComputedStyle(figure).backgroundColor);
    const texts = [...figure.querySelectorAll('svg text')];
    const outside = svg ? marks.concat(texts).filter(mark => {
      const [inner, outer] = [box(mark), box(svg)];
      return inner.left < outer.left - 1 || inner.right > outer.right + 1
        || inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
    }).length : 0;
    return {
      id: figure.id,
      marks: marks.length,
      titled: marks.filter(mark => mark.querySelector('title')?.textContent.length > 5).length,
      outside,
      overlapping: texts.filter((text, index) =>
        texts.slice(index + 1).some(other => overlap(box(text), box(other)))).length,
      rows: figure.querySelectorAll('tbody tr').length,
      text_contrast: contrast(surface, light(getComputedStyle(figure.querySelector('figcaption')).color)),
      mark_contrast: marks.length
        ? Math.min(...marks.map(mark => contrast(surface, light(getComputedStyle(mark).fill)))) : null,
    };
  });
  return JSON.stringify({
    figures,
    page: light(getComputedStyle(document.body).backgroundColor),
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  });
})()"""


class Browser:
    """A headless Chromium, and the events that it reports."""

    def __init__(self, binary, profile):
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # The browser reads commands from descriptor 3 and writes to descriptor 4.
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 20) for descriptor in (theirs_in, theirs_out)]

        def connect():
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [binary, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-background-networking",
             "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND", "--force-color-profile=srgb",
             "about:blank"],
            preexec_fn=connect, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for descriptor in [theirs_in, theirs_out, *high]:
            os.close(descriptor)
        self.read, self.write, self.waiting = ours_in, ours_out, b""
        self.sent, self.events, self.session = 0, [], None

    def message(self):
        while b"\0" not in self.waiting:
            piece = os.read(self.read, 1 << 20)
            if not piece:
                sys.exit("Chromium has ended; is its sandbox or its memory refused?")
            self.waiting += piece
        first, self.waiting = self.waiting.split(b"\0", 1)
        return json.loads(first)

    def call(self, method, **params):
        self.sent += 1
        command = {"id": self.sent, "method": method, "params": params}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.write, json.dumps(command).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("id") == self.sent:
                assert "error" not in message, (method, message)
                return message["result"]
            self.events.append(message)

    def until(self, method):
        deadline = time.monotonic() + PATIENCE_S
        while not any(event.get("method") == method for event in self.events):
            assert time.monotonic() < deadline, f"no {method}"
            self.events.append(self.message())

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"]["value"]


def expected_marks(run):
    """The number of points, columns and requests that each plot should have, from the figures of the run."""
    steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    validations = [json.loads(line) for line in (run / "validation.jsonl").read_text().splitlines()]

    def parts(name, keys=None):
        return sum(value > 0 for step in steps for key, value in step[name].items() if keys is None or key in keys)

    def known(name):
        return sum(step[name] is not None for step in steps)

    held = ("held_trainer_s", "held_queue_s", "held_reward_s")
    working = sum(step["time"]["step_s"] > sum(step["time"][key] for key in held) for step in steps)
    newest = max((run / "timeline").glob("step-*.json"), key=lambda file: int(file.stem.split("-")[1]))
    return {
        "step-time": working + parts("time", ("before_s", "put_s", *held)),
        "sample-time": parts("sample_time"),
        "throughput": known("samples"),
        "accept-rate": sum(step["groups"]["accept_rate"] is not None for step in steps),
        "fates": parts("fates", FATES),
        "filter-reasons": parts("filter_reasons"),
        "rewards": 2 * known("rewards"),
        "lengths": 3 * known("lengths"),
        "bias": known("bias"),
        "tokens": parts("tokens"),
        "staleness": parts("staleness"),
        "validation": 2 * len(validations),
        "gantt": len(json.loads(newest.read_text())["requests"]),
    }


def check(look, expected, is_dark):
    figures = {figure["id"]: figure for figure in look["figures"]}
    assert set(expected) <= set(figures), set(expected) - set(figures)
    for name, marks in expected.items():
        figure = figures[name]
        assert marks > 0 and figure["marks"] == marks, f"{name}: expected {marks} marks, found {figure}"
        assert figure["titled"] == marks, f"{name}: marks without a text: {figure}"
        assert figure["outside"] == 0 and figure["overlapping"] == 0, f"{name}: {figure}"
        assert figure["mark_contrast"] >= 1.9, f"{name}: {figure}"
    for name in ("slowest", "servers", "newest"):
        assert figures[name]["rows"] > 3, figures[name]
    for figure in figures.values():
        assert figure["text_contrast"] >= 4.5, figure
    assert (look["page"] < 0.1) == is_dark, look["page"]
    assert look["wide"] <= 0, f"the page is {look['wide']} pixels too wide"


def main():
    binary, run = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    picture = sys.argv[3] if len(sys.argv) > 3 else None
    expected = expected_marks(run)
    page = (run / "report.html").as_uri()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(binary, profile)
        try:
            target = browser.call("Target.createTarget", url="about:blank")["targetId"]
            browser.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                browser.call(f"{domain}.enable")
            browser.call("Page.navigate", url=page)
            browser.until("Page.loadEventFired")
            for scheme, width in (("light", 1280), ("dark", 1280), ("light", 390)):
                feature = {"name": "prefers-color-scheme", "value": scheme}
                browser.call("Emulation.setEmulatedMedia", features=[feature])
                size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
                browser.call("Emulation.setDeviceMetricsOverride", **size)
                look = json.loads(browser.evaluate(LOOK))
                check(look, expected, is_dark=scheme == "dark")
                if picture:
                    shot = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
                    file = pathlib.Path(picture)
                    file.with_stem(f"{file.stem}-{scheme}-{width}").write_bytes(base64.b64decode(shot["data"]))
            asked = [event["params"]["request"]["url"] for event in browser.events
                     if event.get("method") == "Network.requestWillBeSent"]
            assert asked == [page], f"requests: {asked}"
            said = [event for event in browser.events
                    if event.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")]
            assert not said, f"console: {said}"
            browser.session = None
            browser.call("Browser.close")
        finally:
            browser.process.kill()
            browser.process.wait()
    print(f"the page has {sum(expected.values())} marks in {len(expected)} plots, in light and dark, wide and narrow")


main()
