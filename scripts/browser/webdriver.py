"""A small WebDriver client for these checks. Uses the standard library only."""

import base64
import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

LIMIT_S = 120
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"enter": "\ue007", "escape": "\ue00c", "control": "\ue009", "down": "\ue015"}
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
# A notification disappears after five seconds, which is short on a busy machine. This script records all of them.
KEEP_PASSING = """
    window.passing = [];
    new MutationObserver((changes) => {
        for (const { addedNodes } of changes) for (const node of addedNodes) if (node.matches?.(".toast")) passing.push(node.textContent);
    }).observe(document, { childList: true, subtree: true });
"""
# Errors before the action had an effect: the page was changing, or another element covered the target.
NOT_YET = ("stale element", "no such element", "element click intercepted", "element not interactable")


class Driver:
    """A context manager that runs chromedriver."""

    def __enter__(self):
        self.process = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if "started successfully on port" in line:
                self.url = "http://127.0.0.1:" + line.split("on port ")[1].strip().rstrip(".")
                return self
        raise SystemExit("browser-check: chromedriver did not start")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


class Browser:
    """One Chromium with its own profile."""

    def __init__(self, driver, theme="light", width=1280, height=900):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        arguments = [*FLAGS, f"--user-data-dir={self.profile.name}", f"--window-size={width},{height}"]
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
            "unhandledPromptBehavior": "ignore",
        }
        session = ask("POST", driver.url + "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.url = f"{driver.url}/session/{session['sessionId']}"
        ask("POST", self.url + "/timeouts", {"script": 1000 * LIMIT_S})
        self.command("Emulation.setTimezoneOverride", {"timezoneId": "Europe/Berlin"})
        self.command("Page.addScriptToEvaluateOnNewDocument", {"source": KEEP_PASSING})
        self.theme(theme)
        self.size(width, height)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        ask("DELETE", self.url)
        self.profile.cleanup()

    def command(self, name, parameters):
        return ask("POST", self.url + "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def theme(self, theme):
        self.command("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]})

    def size(self, width, height):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.command("Emulation.setDeviceMetricsOverride", size)

    def open(self, address):
        # On a busy machine the driver may respond before the new page is loaded. The mark identifies the old page.
        self.run("window.before = true")
        ask("POST", self.url + "/url", {"url": address})
        wait_for(f"{address} to be loaded", lambda: self.run("return !window.before && document.readyState === 'complete'"))

    def run(self, script, *arguments):
        return ask("POST", self.url + "/execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script, *arguments):
        return ask("POST", self.url + "/execute/async", {"script": script, "args": list(arguments)})

    def find(self, selector):
        def look():
            found = ask("POST", self.url + "/elements", {"using": "css selector", "value": selector})
            return found[0][ELEMENT] if found else None

        return wait_for(f"an element {selector} at {self.address()}", look)

    def has(self, selector):
        return bool(ask("POST", self.url + "/elements", {"using": "css selector", "value": selector}))

    def click(self, selector):
        def press(element):
            # A button is disabled while its request is in progress.
            enabled = ask("GET", f"{self.url}/element/{element}/enabled")
            if enabled:
                ask("POST", f"{self.url}/element/{element}/click", {})
            return enabled

        self.when_there(selector, press)

    def type(self, selector, text, clear=True):
        def enter(element):
            if clear:
                ask("POST", f"{self.url}/element/{element}/clear", {})
            ask("POST", f"{self.url}/element/{element}/value", {"text": text})
            return True

        self.when_there(selector, enter)

    def when_there(self, selector, act):
        """Acts on an element. Finds it again if the page was replaced before the action."""
        wait_for(f"{selector} to be there", lambda: act(self.find(selector)))

    def press(self, *keys):
        """Presses keys together, such as control and k."""
        values = [KEYS.get(key, key) for key in keys]
        actions = [{"type": "keyDown", "value": value} for value in values]
        self.act(actions + [{"type": "keyUp", "value": value} for value in reversed(values)])

    def press_in_turn(self, *keys):
        """Presses keys one after the other without a pause."""
        self.act([{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")])

    def act(self, actions):
        ask("POST", self.url + "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def text(self, selector):
        read = lambda: [ask("GET", f"{self.url}/element/{self.find(selector)}/text")]
        return wait_for(f"{selector} to be there", read)[0]

    def address(self):
        return ask("GET", self.url + "/url")

    def page_text(self):
        return self.run("return document.body.innerText")

    def shows(self, text, limit_s=LIMIT_S):
        wait_for(f"“{text}” at {self.address()}", lambda: text in self.page_text(), limit_s)

    def said(self, text):
        """Waits until a notification with this text has appeared on this page."""
        wait_for(f"the notification “{text}” at {self.address()}", lambda: any(text in words for words in self.run("return passing")))

    def picture(self, path, whole=True):
        if whole:
            size = self.command("Page.getLayoutMetrics", {})["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 2400), "scale": 1}
            data = self.command("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})["data"]
        else:
            data = ask("GET", self.url + "/screenshot")
        path.write_bytes(base64.b64decode(data))

    def log(self):
        return [entry for entry in ask("POST", self.url + "/se/log", {"type": "browser"})]

    def tabs(self):
        return ask("GET", self.url + "/window/handles")

    def new_tab(self):
        handle = ask("POST", self.url + "/window/new", {"type": "tab"})["handle"]
        self.tab(handle)
        return handle

    def tab(self, handle):
        ask("POST", self.url + "/window", {"handle": handle})


def ask(method, address, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=2 * LIMIT_S) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        failure = json.load(error)["value"]
        raise RuntimeError(f"{method} {address.split('/session')[-1]}: {failure['error']}: {failure['message'].splitlines()[0]}") from None


def wait_for(what, look, limit_s=LIMIT_S):
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            found = look()
        except RuntimeError as error:
            if not any(reason in str(error) for reason in NOT_YET):
                raise
            found = None
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {limit_s} s: {what}")
