"""Three walks through the page in Chromium: with the keyboard, with the mouse, and through every view and look.

A page that logs an error or asks another server for anything fails its walk.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest
from browser_pages import DESKTOP, PHONE, expect, problems_of_access
from small_models import MAKERS

from bert_tf2.explorer import server
from bert_tf2.explorer.model import Explorer
from bert_tf2.explorer.options import ExplorerOptions

pytestmark = pytest.mark.slow
PAIR = "#sentence?text=Paris+is+in+France.&text_b=It+is+%5BMASK%5D."
TWO = "#sentence?text=Paris+is+in+%5BMASK%5D.&other_text=Rome+is+in+%5BMASK%5D."


def heading(page, name: str):
    return page.get_by_role("heading", name=name)


def test_with_the_keyboard_alone(visit, explorer):
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
    tokens.nth(1).focus()
    page.keyboard.press("Enter")
    expect(page.locator("#embeddings h3")).to_have_text("For rome at position 1")
    matrix = page.locator("#attention .heat-map")
    expect(matrix).to_contain_text("rome")  # each part of the page is drawn when its own answer is there
    matrix.locator(".cells").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    expect(heading(page, "One weight: from rome (1) to is (2)")).to_be_visible()

    box.fill("a [mask]")  # a mistake is told and leaves the page usable
    with page.expect_response("**/api/sentence") as answered:
        box.press("Enter")
    assert answered.value.status == 400
    expect(page.get_by_role("alert")).to_contain_text("[MASK]")
    expect(page.locator("#attention")).to_be_hidden()  # it is of another sentence
    box.fill("a [MASK]")
    box.press("Enter")
    expect(page.get_by_role("alert")).to_have_count(0)
    assert "status of 400" in pages.problems.pop()  # the browser itself logs the status


def test_with_the_mouse(visit, saved, explorer, tmp_path):
    page = visit(explorer).open(PAIR)
    matrix = page.locator("#attention .heat-map")
    matrix.locator(".cells").scroll_into_view_if_needed()
    box = matrix.locator(".cells").bounding_box()
    page.mouse.click(box["x"] + 4.5 * box["width"] / 12, box["y"] + 1.5 * box["width"] / 12)  # row 1 and column 4 of 12
    expect(heading(page, "One weight: from paris (1) to france (4)")).to_be_visible()
    share = matrix.get_by_role("status").inner_text().rsplit(": ", 1)[1]
    expect(page.locator(".steps li").last).to_contain_text(share)

    rows = page.get_by_role("region", name="The most probable words").get_by_role("row")
    (mask,) = explorer.bert.fill_mask("Paris is in France. ||| It is [MASK].").masks
    assert rows.nth(1).inner_text().split()[0] == mask.predictions[0].token and rows.count() == 1 + 10
    second = rows.nth(2).get_by_role("button")
    second.click()
    expect(heading(page, f"The dot product for {second.inner_text()}")).to_be_visible()
    page.get_by_label("Take the state of").select_option("1")
    page.locator(".map").nth(3).click()  # all heads at a glance
    expect(page.locator("#attention")).to_contain_text("Layer 1, head 1 of 2")
    page.reload()
    expect(page.locator("#attention")).to_contain_text("Layer 1, head 1 of 2")
    expect(heading(page, "with the state of paris (1)")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as SVG: Attention, after the softmax").click()
    assert re.fullmatch(r"[a-z0-9-]+\.svg", download.value.suggested_filename)
    root = ElementTree.parse(download.value.path()).getroot()
    assert "[MASK]" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]

    page = visit(explorer).open(TWO)
    pair, states = page.locator("#pair"), page.locator("#pair .heat-map").first
    (mask,) = explorer.bert.fill_mask("Rome is in [MASK].").masks
    best = max(mask.predictions, key=lambda each: each.probability)
    row = pair.get_by_role("table", name="Answers for the other sentence").first.get_by_role("row", name=best.token)
    found = float(row.first.locator(".number").inner_text().removesuffix(" %"))
    assert found == pytest.approx(100 * best.probability, abs=0.06)
    states.locator(".cells").press("ArrowRight")
    expect(states.get_by_role("status")).to_have_text(re.compile(r"paris / rome, after the embeddings: 0?\.\d+|1\.\d+"))
    other = page.get_by_label("Another sentence, for example")
    other.fill("Rome is in the [MASK].")
    other.press("Enter")
    above = pair.locator(".heat-map .above").first.locator("span > span")
    expect(above).to_have_text(["[CLS]", "[MASK]", ".", "[SEP]"])

    classifier = saved(tmp_path / "classifier", MAKERS["classifier"], 4)  # another model has its own output
    page = visit(Explorer(ExplorerOptions(model=classifier))).open()
    expect(page.locator("#words")).to_contain_text("no masked-LM head")
    expect(page.get_by_role("table", name="Classifier").get_by_role("row")).to_have_count(3)


def test_through_every_view_and_look(visit, weights, explorer, tmp_path):
    """For everyone: names, contrast, width."""
    pages = visit(explorer)
    for address in ("#sentence", "#model?variable=bert%2Fpooler%2Fdense%2Fkernel"):
        for look, width in (("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE)):
            page = pages.open(address, width=width, color_scheme=look)
            assert problems_of_access(page) == []
    page.evaluate(  # the checks find what is wrong
        """() => document.querySelector("main").insertAdjacentHTML(
          "beforeend", "<button></button><svg width='3000'></svg>")"""
    )
    assert {problem[:10] for problem in problems_of_access(page)} == {"axe: butto", "the page i"}

    page = pages.open("#model")
    parts = page.get_by_role("table", name="Parameters by part")
    assert re.search(r"embeddings\s+15,040", parts.inner_text())  # (888 + 2 + 48 + 2) * 16
    page.get_by_role("application", name="Cosines of the positions").press("End")
    expect(page.locator(".heat-map")).to_contain_text("0 and 47: ")
    page.get_by_label("Find").fill("attention.self.query")  # the name in Hugging Face
    table = page.get_by_role("region", name="Variables", exact=True)
    expect(table.get_by_role("row")).to_have_count(1 + 4)
    page.get_by_label("Part", exact=True).select_option("block 1")
    page.get_by_label("Sort by").select_option("parameters")
    assert "query/kernel" in table.get_by_role("row").nth(1).inner_text() and table.get_by_role("row").count() == 3
    table.get_by_role("button", name="bert/encoder/layer_1/attention/self/query/bias", exact=True).press("Enter")
    expect(page.locator(".detail")).to_contain_text("model.bert.blocks[1].attention.query.bias")
    page.get_by_role("button", name="Close").first.click()
    expect(page.locator(".detail")).to_have_count(0)

    texts = {"text": "Paris is in </script> [MASK].", "other_text": "Rome is in </script> [MASK]."}
    server.write_page(str(tmp_path / "page.html"), Explorer(ExplorerOptions(model=weights, **texts)))
    page = visit(tmp_path.as_uri()).open("page.html", PHONE, "dark", offline=True)  # one file, without a network
    assert problems_of_access(page) == []
    tokens = page.get_by_role("region", name="Tokens").get_by_role("button")
    for layer in range(2):
        for head in range(2):
            page.locator(".map").nth(layer * 2 + head).click()
            expect(page.locator("#attention")).to_contain_text(f"Layer {layer}, head {head} of 2")
            expect(page.locator("#pair h3").last).to_have_text(f"Layer {layer}, head {head} in both")
        for token in range(tokens.count()):
            tokens.nth(token).click()
            expect(page.locator("#block h3").first).to_contain_text(f"({token}) in layer {layer}")
            expect(page.locator("#words h3").first).to_be_visible()
    assert page.locator(".notice").count() == 0
    page.get_by_role("button", name="Code: softmax", exact=True).first.click()
    expect(page.locator("#code-panel .here")).to_contain_text("tf.nn.softmax(")
