"""Pages of the explorer in Debian's Chromium, driven by Playwright, and what must hold of every page.

An `open` page has no console error, and loads nothing from elsewhere; `Pages.problems` lists where it did.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import shutil

_PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DESKTOP, PHONE = 1280, 390  # widths in CSS pixels


class Browser:
    """Chromium without a window; a context manager."""

    @staticmethod
    def missing() -> str | None:
        """Why there is no browser, in a sentence; None if there is one."""
        modules = ("playwright", "axe_playwright_python")
        missing = [module for module in modules if not importlib.util.find_spec(module)]
        return f"not installed: {' '.join(missing) or 'Chromium'}" if missing or not _PROGRAM else None

    def __enter__(self) -> Browser:
        from playwright.sync_api import sync_playwright  # an extra

        self._playwright = sync_playwright().start()
        # Its own sandbox does not start for root or in most containers; it shows nothing but this server's pages.
        self._chromium = self._playwright.chromium.launch(executable_path=_PROGRAM, args=["--no-sandbox"])
        return self

    def __exit__(self, *error) -> None:
        self._chromium.close()
        self._playwright.stop()

    def pages(self, address: str) -> Pages:
        return Pages(self._chromium, address)


class Pages:
    """The pages of one test.

    Attributes:
      problems: errors of the console and of scripts, and requests to other servers, so far.
    """

    def __init__(self, chromium, address: str):
        self._chromium, self._address = chromium, address
        self._contexts: list = []
        self.problems: list[str] = []

    def open(self, view: str = "", width: int = DESKTOP, color_scheme: str = "light", offline: bool = False):
        """Opens a page, and waits until its view is drawn. `view` is what is behind the port, as "#/model"."""
        look = {"viewport": {"width": width, "height": 900}, "color_scheme": color_scheme, "offline": offline}
        context = self._chromium.new_context(**look, reduced_motion="reduce")
        self._contexts.append(context)
        context.set_default_timeout(15_000)
        page, own, note = context.new_page(), (f"{self._address}/", "data:", "blob:"), self.problems.append
        page.on("console", lambda message: message.type in ("error", "warning") and note(f"console: {message.text}"))
        page.on("pageerror", lambda error: note(f"script: {error}"))
        page.on("request", lambda asked: asked.url.startswith(own) or note(f"asks another server: {asked.url}"))
        page.on(  # aborted: the page left, or asks anew
            "requestfailed",
            lambda asked: asked.failure == "net::ERR_ABORTED" or note(f"failed: {asked.url} {asked.failure}"),
        )
        page.goto(f"{self._address}/{view}")
        page.wait_for_selector("main:not([aria-busy=true])")
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()


def expect(locator):
    """Playwright's assertions about a part of a page, which wait until they hold."""
    from playwright.sync_api import expect as playwrights  # an extra

    return playwrights(locator)


def problems_of_access(page) -> list[str]:
    """Violations that axe-core finds, https://github.com/dequelabs/axe-core, and whether the page scrolls sideways."""
    script = importlib.resources.files("axe_playwright_python") / "axe.min.js"
    page.evaluate(script.read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run()")
    assert len(found["passes"]) > 10  # it looked
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    violations = [
        f"axe: {each['id']}: {each['help']}: {each['nodes'][0]['html'][:120]}" for each in found["violations"]
    ]
    return violations + [f"the page is {wide} pixels too wide"] * (wide > 0)
