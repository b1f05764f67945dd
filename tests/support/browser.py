"""A headless Chromium driven over the WebDriver protocol with nothing but the standard library."""

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)
DRIVER = shutil.which("chromedriver")
MISSING = "needs chromium and chromedriver on PATH (apt-get install chromium chromium-driver)"


class Browser:
    """One session; `run` evaluates JavaScript, `asked` lists what the page requested, `complaints` its console."""

    def __init__(self, port: int) -> None:
        self._root = f"http://127.0.0.1:{port}"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--window-size=1280,900", "--disable-background-networking"]  # fmt: skip
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": CHROMIUM, "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        found = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{found['sessionId']}"

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._root + path, data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()[:2000]) from error

    def open(self, url: str) -> None:
        """Go there; returns when the page has loaded, which the driver does not always wait for."""
        self._call("POST", f"{self._session}/url", {"url": url})
        for _ in range(400):
            if self.run("return location.href === arguments[0] && document.readyState === 'complete'", url):
                return
            time.sleep(0.05)
        raise AssertionError(f"{url} does not finish loading")

    def run(self, script: str, *arguments: Any) -> Any:
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str) -> Any:
        """Evaluate a promise."""
        body = {"script": f"const done = arguments[0]; Promise.resolve({script}).then(done, e => done(String(e)))"}
        return self._call("POST", f"{self._session}/execute/async", body | {"args": []})

    def command(self, name: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._call("POST", f"{self._session}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def logs(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call("POST", f"{self._session}/se/log", {"type": kind})
        return found

    def complaints(self) -> list[str]:
        """Messages of the console worth worrying about."""
        return [one["message"] for one in self.logs("browser") if one["level"] in ("WARNING", "SEVERE")]

    def asked(self) -> list[str]:
        """Addresses the page requested, its own and inline ones left out."""
        events = [json.loads(one["message"])["message"] for one in self.logs("performance")]
        urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith("data:") and not url.endswith("report.html")]

    def close(self) -> None:
        self._call("DELETE", self._session)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser that is gone afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    driver = subprocess.Popen([str(DRIVER), f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        session = Browser(port)
        try:
            yield session
        finally:
            session.close()
    finally:
        driver.terminate()
        driver.wait(10)
