"""Every view in both colors and on a phone: names, keyboard, contrast, width; and a picture of each for a person."""

from __future__ import annotations

import pytest
from browser_pages import DESKTOP, PHONE, SCREENSHOTS, accessibility_problems, screenshot

VIEWS = {
    "sentence": "#sentence",
    "model": "#model?variable=bert%2Fpooler%2Fdense%2Fkernel",
}
LOOKS = {
    "light": ("light", DESKTOP),
    "dark": ("dark", DESKTOP),
    "phone": ("light", PHONE),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("view", VIEWS)
def test_everyone_can_read_and_use_a_view(open_page, view, look):
    color_scheme, width = LOOKS[look]
    page = open_page(VIEWS[view], width=width, color_scheme=color_scheme)
    path = screenshot(page, f"{view}-{look}")
    print(f"a picture of {view} is in {path.relative_to(SCREENSHOTS.parent)}")
    assert accessibility_problems(page, keyboard=look == "light") == []


def test_the_checks_find_what_is_wrong(page):
    page.evaluate(
        """() => {
          const add = (html) => document.querySelector("main").insertAdjacentHTML("beforeend", html);
          add("<button></button>");
          add("<a href='#x' class='hidden-focus'>a link</a>");
          document.querySelector(".hidden-focus").style.outline = "none";
          add("<div class='wide'>wide</div>");
          document.querySelector(".wide").style.width = "3000px";
        }"""
    )
    found = "\n".join(accessibility_problems(page))
    for expected in ("pixels too wide", "the focus cannot be seen: <a href", "axe: button-name"):
        assert expected in found
