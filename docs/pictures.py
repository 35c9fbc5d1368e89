"""Draws the pictures of README.md and docs/explorer.md from the model of `make demo`.

    .venv/bin/python docs/pictures.py demo_output

They are what the explorer's buttons "Save as SVG" save. Needs the extra `test` and Chromium.
"""

from __future__ import annotations

import pathlib
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browser_pages import Browser  # noqa: E402

from bert_tf2.explorer import server  # noqa: E402
from bert_tf2.explorer.model import Explorer  # noqa: E402
from bert_tf2.explorer.options import ExplorerOptions  # noqa: E402

SENTENCE = "#sentence?text=The+capital+of+France+is+%5BMASK%5D.&other_text=The+capital+of+Italy+is+%5BMASK%5D."
# Name of the file -> address of the view, and what of it is drawn.
PICTURES = {
    "explorer_attention": (SENTENCE, ".matrix-and-lines"),
    "explorer_heads": (SENTENCE, ".maps"),
    "explorer_layers": (SENTENCE, "#words .table-frame >> nth=1"),
    "explorer_answers": (SENTENCE, "#pair .side-by-side >> nth=0"),
    "explorer_states": (SENTENCE, "#pair .heat-map >> nth=0"),
    "explorer_positions": ("#model", ".heat-map"),
}


def main(model: str) -> None:
    with server.listen(0) as listening:
        served = server.serve(Explorer(ExplorerOptions(model=model)), listening)
        threading.Thread(target=served.serve_forever, daemon=True).start()
        with Browser() as browser:
            pages = browser.pages(f"http://{server.HOST}:{listening.getsockname()[1]}")
            for name, (view, shown) in PICTURES.items():
                page = pages.open(view, width=1024)
                picture = page.locator(shown)
                picture.wait_for()
                page.wait_for_timeout(500)  # labels are thinned when their place is known
                svg = picture.evaluate("(shown) => import('/svg_file.js').then(({ toSvg }) => toSvg(shown))")
                (ROOT / "docs" / f"{name}.svg").write_text(svg, encoding="utf-8")
                print(f"docs/{name}.svg, {len(svg) / 1000:.0f} KB")
            pages.close()
        served.shutdown()
        if pages.problems:
            sys.exit("\n".join(pages.problems))


if __name__ == "__main__":
    main(sys.argv[1])
