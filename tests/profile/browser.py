"""Remote control of a browser: Chromium, headless, over a pair of pipes. Needs only Python's own library.

The protocol is Chromium's DevTools protocol: JSON messages that end in a zero byte, read by the browser from descriptor 3 and
written to 4.
"""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ["chromium", "chromium-browser", "google-chrome", "chrome"]


def find():
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page of one browser. [console] has its output and its errors."""

    def __init__(self, width=1440, height=1000, dark=False):
        self.profile = tempfile.mkdtemp(prefix="hr-browser-")
        to_read, self.to = os.pipe()
        self.frm, from_write = os.pipe()

        def arrange():
            # The pipes may have the numbers 3 and 4 themselves.
            a, b = os.dup(to_read), os.dup(from_write)
            while min(a, b) <= 4:
                a, b = (os.dup(a) if a <= 4 else a), (os.dup(b) if b <= 4 else b)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [find(), "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--mute-audio",
             f"--window-size={width},{height}", f"--user-data-dir={self.profile}", "about:blank"],
            preexec_fn=arrange, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self.profile, "DBUS_SESSION_BUS_ADDRESS": "disabled:"})
        os.close(to_read)
        os.close(from_write)
        self.buffer, self.number, self.session, self.console, self.requests = b"", 0, None, [], []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.dark(dark)

    def dark(self, on):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}])

    def message(self, seconds):
        deadline = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.frm], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self.frm, 1 << 20)
            if not part:
                raise RuntimeError(f"the browser ended, with status {self.process.wait()}")
            self.buffer += part
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def note(self, message):
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.console.append([params["type"]] + [a.get("value", a.get("description")) for a in params["args"]])
        elif method == "Runtime.exceptionThrown":
            detail = params["exceptionDetails"]
            self.console.append(["exception", detail["text"], detail.get("exception", {}).get("description")])
        elif method == "Log.entryAdded":
            self.console.append([params["entry"]["level"], params["entry"]["text"]])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def call(self, method, seconds=120, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        while True:
            answer = self.message(seconds)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.note(answer)

    def open(self, path, seconds=120):
        self.console, self.requests = [], []
        self.call("Page.navigate", url="file://" + os.path.abspath(path))
        deadline = time.monotonic() + seconds
        while self.eval("document.readyState !== 'complete' || (window.headroom ? headroom.busy() : document.title === '')"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} does not get ready: {self.console}")
            time.sleep(0.05)

    def eval(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails'].get('exception', {}).get('description')}")
        return result["result"].get("value")

    def settle(self):
        """Waits until pending changes are drawn."""
        self.eval("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))))")

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x, y, modifiers=0):
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", clickCount=1, modifiers=modifiers)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1, modifiers=modifiers)
        self.settle()

    def drag(self, x0, y0, x1, y1, modifiers=0):
        self.mouse("mouseMoved", x0, y0)
        self.mouse("mousePressed", x0, y0, button="left", clickCount=1, modifiers=modifiers)
        for part in (0.3, 0.7, 1):
            self.mouse("mouseMoved", x0 + (x1 - x0) * part, y0 + (y1 - y0) * part, button="left", buttons=1, modifiers=modifiers)
        self.mouse("mouseReleased", x1, y1, button="left", clickCount=1, modifiers=modifiers)
        self.settle()

    def wheel(self, x, y, delta):
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=delta)
        self.settle()

    def key(self, key, text=None):
        text = key if text is None and len(key) == 1 else text
        more = {"text": text} if text else {}
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=codes.get(key, ord(key[0].upper())), **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=codes.get(key, ord(key[0].upper())))
        self.settle()

    def type(self, text):
        self.call("Input.insertText", text=text)
        self.settle()

    def box(self, selector):
        return self.eval(f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; }})(document.querySelector({json.dumps(selector)}))")

    def press(self, selector):
        x, y, width, height = self.box(selector)
        self.click(x + width / 2, y + height / 2)

    def screenshot(self, path, height=None):
        clip = {"captureBeyondViewport": True, "clip": {"x": 0, "y": 0, "width": self.eval("innerWidth"), "height": height, "scale": 1}} if height else {}
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png", **clip)["data"]))

    def close(self):
        try:
            self.session = None
            self.call("Browser.close", seconds=5)
            self.process.wait(5)
        except Exception:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.frm)
        for _ in range(20):  # helper processes may still be writing there
            shutil.rmtree(self.profile, ignore_errors=True)
            if not os.path.exists(self.profile):
                break
            time.sleep(0.1)
