"""How long explore.py takes from Enter to the picture, and each request by itself.

    python benchmarks/explorer.py --model=MODEL
    python benchmarks/explorer.py --num_hidden_layers=24 --hidden_size=1024 --tokens=512

Without --model, the weights are random, of BERT's proportions with the demo's vocabulary. The requests are those that
the page makes for a new sentence; each round has another sentence, so nothing is remembered. If Playwright and Chromium
are there, a page types the sentences, and the time from Enter until all parts are drawn is printed too.
"""

from __future__ import annotations

import pathlib
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator

import machine

from bert_tf2.support import flags
from bert_tf2.support.settings import MODEL, TO_DO, Options, options, setting


@options
class BenchmarkOptions(Options):
    """How long explore.py takes from Enter to the picture, and each request by itself."""

    model: str | None = setting("Weights of any kind; random ones without it.", None, group=MODEL, reads="weights")
    num_hidden_layers: int = setting("Layers of the random model.", 6, group=MODEL, low=1)
    hidden_size: int = setting("hidden_size of the random model; each head has 64.", 384, group=MODEL, low=64)
    tokens: int = setting("Tokens of a sentence.", 12, group=TO_DO, low=4)
    rounds: int = setting("How many sentences.", 9, group=TO_DO, low=1)


def random_model(options: BenchmarkOptions, folder: pathlib.Path) -> str:
    """Writes a model with random weights; returns its folder."""
    from bert_tf2 import heads
    from bert_tf2.config import BertConfig
    from bert_tf2.weights import checkpoint

    vocabulary, width = pathlib.Path(machine.VOCAB).read_text(encoding="utf-8"), options.hidden_size
    sizes = {"hidden_size": width, "num_attention_heads": width // 64, "intermediate_size": 4 * width}
    sizes |= {"vocab_size": len(vocabulary.splitlines()), "num_hidden_layers": options.num_hidden_layers}
    config = BertConfig(type_vocab_size=2, **sizes)
    checkpoint.save(str(folder / "model.ckpt"), checkpoint.tf1_variables(heads.PretrainingModel(config)))
    (folder / "bert_config.json").write_text(config.to_json_string())
    (folder / "vocab.txt").write_text(vocabulary, encoding="utf-8")
    return str(folder)


def sentences(count: int, tokens: int) -> Iterator[str]:
    """Different sentences of so many tokens with [CLS] and [SEP], with a [MASK] each."""
    draw = random.Random(1)
    for _ in range(count):
        words = draw.choices(("the", "a", "in", "of", "is", "and"), k=tokens - 2)
        words[draw.randrange(len(words))] = "[MASK]"
        yield " ".join(words)


def requests(explorer, options: BenchmarkOptions) -> dict[str, list[float]]:
    """Milliseconds of the handlers, one value for each sentence."""
    from bert_tf2.explorer import sentence

    handlers = sentence.routes(explorer)
    found: dict[str, list[float]] = {}
    has_words = "masked_lm" in explorer.bert.model.heads
    for text in sentences(options.rounds + 1, options.tokens):
        token = text.split().index("[MASK]") + 1
        for path, more in (
            ("/api/sentence", {}),
            ("/api/embeddings", {"token": token}),
            ("/api/attention", {"layer": 0, "head": 0}),
            ("/api/block", {"layer": 0, "token": token}),
            *([("/api/words", {"token": token})] if has_words else []),
            ("/api/outputs", {}),
        ):
            began = time.perf_counter()
            handlers[path]({"text": text, **more})
            found.setdefault(path, []).append(1000 * (time.perf_counter() - began))
    return {path: values[1:] for path, values in found.items()}  # the first sentence warms up


def in_browser(explorer, options: BenchmarkOptions) -> list[float]:
    """Milliseconds from Enter until the page has drawn all parts, one value for each sentence."""
    from playwright.sync_api import sync_playwright

    from bert_tf2.explorer import server

    found = []
    with server.listen(0) as listening, sync_playwright() as playwright:
        served = server.serve(explorer, listening)
        threading.Thread(target=served.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.goto(f"http://{server.HOST}:{listening.getsockname()[1]}/")
        page.wait_for_selector("form[data-milliseconds]")
        for text in sentences(options.rounds + 1, options.tokens):
            page.evaluate("delete document.querySelector('form').dataset.milliseconds")
            page.fill("#field-text", text)
            page.press("#field-text", "Enter")
            page.wait_for_selector("form[data-milliseconds]")
            found.append(float(page.get_attribute("form", "data-milliseconds")))
        browser.close()
        served.shutdown()
    return found[1:]


def told(name: str, values: list[float]) -> str:
    return f"{name:<18} median {statistics.median(values):6.0f} ms, highest {max(values):6.0f} ms"


def main(options: BenchmarkOptions) -> None:
    flags.load_tensorflow()

    from bert_tf2.explorer.opened import Explorer
    from bert_tf2.explorer.options import ExplorerOptions

    with tempfile.TemporaryDirectory() as folder:
        path = options.model or random_model(options, pathlib.Path(folder))
        explorer = Explorer(ExplorerOptions(model=path))
    config = explorer.bert.config
    print(machine.describe())
    print(f"{config.num_hidden_layers} layers, hidden_size {config.hidden_size}, {options.tokens} tokens")
    for name, values in requests(explorer, options).items():
        print(told(name, values))
    try:
        print(told("Enter to picture", in_browser(explorer, options)))
    except ImportError:
        print("Enter to picture   not measured: pip install playwright")
    print(f"peak memory {machine.peak_memory_gb():.1f} GB")


if __name__ == "__main__":
    flags.run(BenchmarkOptions, main)
