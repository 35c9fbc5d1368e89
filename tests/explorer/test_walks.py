"""Two walks through the page in Chromium: with the keyboard and the mouse, and through every view and look.

A page that logs an error or asks another server for anything fails its walk.
"""

from __future__ import annotations

import re

import pytest
from browser_pages import DESKTOP, PHONE, expect, problems_of_access
from small_models import MAKERS

from bert_tf2.explorer import server
from bert_tf2.explorer.model import Explorer
from bert_tf2.explorer.options import ExplorerOptions

pytestmark = pytest.mark.slow


def heading(page, name: str):
    return page.get_by_role("heading", name=name)


def test_with_the_keyboard_and_the_mouse(visit, saved, explorer, tmp_path):
    pages = visit(explorer)
    page = pages.open()
    for _ in range(4):  # to skip to the content, the tabs, then the first field
        page.keyboard.press("Tab")
    box = page.get_by_label("Sentence, with [MASK]")
    expect(box).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("Rome is [MASK].")
    page.keyboard.press("Enter")
    tokens = page.get_by_role("region", name="Tokens").get_by_role("button")
    expect(tokens).to_have_text(["[CLS]", "rome", "is", "[MASK]", ".", "[SEP]"])
    expect(page.locator("#announcer")).to_have_text("6 tokens, 1 of them [MASK]")
    tokens.nth(1).press("Enter")
    expect(page.locator("#embeddings h3")).to_have_text("Embeddings of rome at position 1")
    matrix = page.locator("#attention .heat-map")
    expect(matrix).to_contain_text("rome")  # each part of the page is drawn when its own answer is there
    matrix.locator(".cells").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    expect(heading(page, "One weight: from rome (1) to is (2)")).to_be_visible()
    box.fill("a [mask]")  # the page names a mistake and remains usable
    box.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("[MASK]")
    box.fill("a [MASK]")
    box.press("Enter")
    expect(page.get_by_role("alert")).to_have_count(0)
    assert "status of 400" in pages.problems.pop()  # the browser itself logs the status

    page = pages.open("#sentence?text=Paris+is+in+France.&text_b=It+is+%5BMASK%5D.")
    rows = page.get_by_role("region", name="The most probable words").get_by_role("row")
    (mask,) = explorer.bert.fill_mask("Paris is in France. ||| It is [MASK].").masks
    expect(rows).to_have_count(1 + 10)
    assert rows.nth(1).inner_text().split()[0] == mask.predictions[0].token
    second = rows.nth(2).get_by_role("button")
    second.click()
    expect(heading(page, f"The dot product for {second.inner_text()}")).to_be_visible()
    page.get_by_label("Take the state of").select_option("1")
    page.locator(".map").nth(3).click()  # all heads at a glance
    page.reload()
    expect(page.locator("#attention")).to_contain_text("Layer 1, head 1 of 2")
    expect(heading(page, "with the state of paris (1)")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as SVG: Attention, after the softmax").click()
    assert "[MASK]" in download.value.path().read_text() and download.value.suggested_filename.endswith(".svg")
    other = page.get_by_label("Another sentence, for example")
    other.fill("Rome is in the [MASK].")
    other.press("Enter")
    expect(page.locator("#pair .heat-map .above").first).to_contain_text("[MASK]")

    classifier = saved(tmp_path / "classifier", MAKERS["classifier"], 4)  # another model has its own output
    page = visit(Explorer(ExplorerOptions(model=classifier))).open()
    expect(page.locator("#words")).to_contain_text("no masked-LM head")
    expect(page.get_by_role("table", name="Classifier").get_by_role("row")).to_have_count(3)


def test_every_view_and_look_and_the_page_in_one_file(visit, weights, explorer, tmp_path):
    """For everyone: names, contrast, width."""
    pages = visit(explorer)
    for address in ("#sentence", "#model?variable=bert%2Fpooler%2Fdense%2Fkernel"):
        for look, width in (("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE)):
            assert problems_of_access(pages.open(address, width=width, color_scheme=look)) == []

    page = pages.open("#model")
    parts = page.get_by_role("table", name="Parameters by part")
    assert re.search(r"embeddings\s+15,040", parts.inner_text())  # (888 + 2 + 48 + 2) * 16
    page.get_by_role("application", name="Cosines of the positions").press("End")
    expect(page.locator(".heat-map")).to_contain_text("0 and 47: ")
    page.get_by_label("Find").fill("attention.self.query")  # the name in Hugging Face
    page.get_by_label("Part", exact=True).select_option("block 1")
    page.get_by_label("Sort by").select_option("parameters")
    table = page.get_by_role("region", name="Variables", exact=True)
    expect(table.get_by_role("row")).to_have_count(1 + 2)
    table.get_by_role("button", name="bert/encoder/layer_1/attention/self/query/bias", exact=True).press("Enter")
    expect(page.locator(".detail")).to_contain_text("model.bert.blocks[1].attention.query.bias")

    texts = {"text": "Paris is in </script> [MASK].", "other_text": "Rome is in </script> [MASK]."}
    server.write_page(str(tmp_path / "page.html"), Explorer(ExplorerOptions(model=weights, **texts)))
    page = visit(tmp_path.as_uri()).open("page.html", PHONE, "dark", offline=True)
    assert problems_of_access(page) == []
    tokens = page.get_by_role("region", name="Tokens").get_by_role("button")
    for number in range(4):
        page.locator(".map").nth(number).click()
        expect(page.locator("#pair h3").last).to_have_text(f"Layer {number // 2}, head {number % 2} in both")
        for token in range(tokens.count()):
            tokens.nth(token).click()
            expect(page.locator("#block h3").first).to_contain_text(f"({token}) in layer {number // 2}")
            expect(page.locator("#words h3").first).to_be_visible()
    assert page.locator(".notice").count() == 0
    page.get_by_role("button", name="Code: softmax", exact=True).first.click()
    expect(page.locator("#code-panel .here")).to_contain_text("tf.nn.softmax(")
