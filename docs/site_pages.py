"""Additions of `make docs` to this folder: the Python interface, linked files, notebooks as pages, tabs, colors.

A hook of MkDocs, see mkdocs.yml and https://www.mkdocs.org/user-guide/configuration/#hooks.
"""

from __future__ import annotations

import json
import pathlib
import posixpath
import re
import shutil
import subprocess
import textwrap
import urllib.parse

from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[1]

# The pages of the Python interface: title -> modules, in the order in which one reads them.
API = {
    "Loading": ["api.bert", "api.vectors"],
    "Texts into Keras": [
        *("api.text_models", "api.token_models", "api.masked_models", "api.embedders"),
        "exporting.tokenize_layer",
    ],
    "Config and tokenization": ["config", "tokenization"],
    "The model": ["modeling", "layers", "heads", "losses"],
    "Training": ["optimization", "training.keras_optimizer"],
    "Weights": ["weights.checkpoint"],
    "Records": ["data.records"],
}
_OTHERS = "repository/"  # the folder of the site with files from outside of this folder
# Words that people search; each must be in a guide.
SEARCHED = "tfhub", "fp16", "TextVectorization", "class weight", "learning rate", "multi-label", "freeze"
# Page -> words that people search, which must find this page first; checked where Node is installed (search.js).
FIRST = {
    "recipes": "early stopping, overfitting, several seeds, k-fold, hyperparameter search, keras-tuner, optuna, class "
    "imbalance, mixed precision, semantic search, own csv, csv, excel, encodings, semicolons, pandas, "
    "hugging face datasets, W&B, Weights & Biases, wandb, mlflow, freezing, LoRA, parts of speech, patience, continue "
    "pretraining",
    "from_transformers": "TFBert, TFBertForSequenceClassification, TFBertForTokenClassification, "
    "TFBertForQuestionAnswering, TFBertForMaskedLM, TFAutoModel, pipeline",
    "from_tutorials": "hub.KerasLayer, bert_preprocess, classify text with BERT, Model Garden, movie reviews",
    "long_texts": "long text, long texts, sliding window, stride, doc_stride, head and tail, longer than 512 tokens",
    "sentence_vectors": "embedder, sentence vectors, sentence embeddings, hard negatives, in-batch negatives, "
    "triplets, recall@k, spearman",
    "pretraining_decisions": "more text, hours, vocabulary size, batch size learning rate, flagfile, steps epochs",
    "reliability": "killed, resume",
    "guide": "out of memory, OOM, pack_rows",
    "pretrained_models": "pretrained models, pre-trained models, cased uncased, download, convert weights",
    "finetuning": "distillation, teacher, student, temperature, layer_decay, layer-wise "
    "learning rate, layerwise, multi-label, NER, SQuAD",
    "python": "score, pseudo-log-likelihood, pseudo-perplexity, next_sentence, masked_lm, fill_mask",
    "how_bert_works": "what do the layers do, probe, why are positions learned, positions learned",
    "repository/examples": "antibodies, antiberty",
    "serving": "quantization, onnx, docker",
    "gpu": "bfloat16, fp16",
}
# Interactive Python: an indented block that begins with >>>, with its output. The site shows it in colors.
_SNIPPET = re.compile(r"(?m)^    >>> .*\n(?:    .*\n)*")
_COMMENT = re.compile(r"(?s)<!--(?! /?tabs).*?-->")  # may hold snippets that a test needs and a reader does not
_TABS = re.compile(r"(?ms)^<!-- tabs -->\n(.*?)^<!-- /tabs -->\n")
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")


def on_files(files, config):
    """Adds the pages of the interface, and every file of the repository that a page links to."""
    for title, modules in API.items():
        parts = "\n\n".join(f"::: bert_tf2.{module}" for module in modules)
        name = f"api/{title.lower().replace(' ', '_')}.md"
        files.append(File.generated(config, name, content=f"# {title}\n\n{parts}\n"))
    waiting = [f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")]
    seen = set(waiting)
    while waiting:
        source = waiting.pop()
        if not source.startswith("docs/"):
            files.append(File.generated(config, _OTHERS + source, content=(ROOT / source).read_bytes()))
        if source.endswith(".ipynb"):
            files.append(File.generated(config, _OTHERS + _page(source), content=_notebook(source)))
        if source.endswith((".md", ".ipynb")):
            text = (ROOT / source).read_text(encoding="utf-8")
            linked = {_resolved(source, link) for link in _LINK.findall(text)} - seen
            waiting += [target for target in linked if not target.startswith("docs/") and (ROOT / target).is_file()]
            seen |= linked
    return files


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Turns links between files of the repository into links between pages of the site, and sections into tabs."""
    uri = page.file.src_uri
    if uri.startswith(("api/", "design.md", f"{_OTHERS}C")) or uri.endswith("_notebook.md"):
        page.meta["search"] = {"boost": 0.01}  # in a search, guides come first
    if uri.startswith("api/"):
        return markdown
    markdown = _SNIPPET.sub(_colored, _COMMENT.sub("", markdown))
    markdown = _TABS.sub(lambda found: _as_tabs(found[1]), markdown)
    source = uri.removeprefix(_OTHERS) if uri.startswith(_OTHERS) else f"docs/{uri}"

    def in_site(found: re.Match) -> str:
        target = _resolved(source, found[1])
        if not (ROOT / target).exists():
            raise PluginError(f"{source}: links to {found[1]}, which does not exist")
        if (ROOT / target).is_dir():  # shown by a host of repositories, but not here
            return posixpath.relpath(f"{_OTHERS}README.md", posixpath.dirname(uri))
        target = _page(target)
        there = target.removeprefix("docs/") if target.startswith("docs/") else _OTHERS + target
        return posixpath.relpath(there, posixpath.dirname(uri) or ".")

    return _LINK.sub(in_site, markdown)


@event_priority(-100)  # after the index of the search
def on_post_build(config) -> None:
    """Every link within the site leads to a file, pages load nothing from elsewhere, and the search finds what it must.

    (MkDocs does not check links to files that are no pages.)
    """
    site, wrong = pathlib.Path(config.site_dir), []
    for index in (site / "search").iterdir():  # so that people who type W&B find "W&amp;B", the HTML of a heading
        index.write_text(re.sub(r"\b&amp;(?=[A-Z]\b)", "&", index.read_text(encoding="utf-8")), encoding="utf-8")
    for page in {*site.rglob("*.html")} - {site / "404.html"}:  # a server's, with links from its root
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r'(?:href|src)="(?![a-z]+:|//)([^"#?]+)', text):
            if not (page.parent / urllib.parse.unquote(link)).exists():
                wrong.append(f"{page.relative_to(site)} links to {link}")
        loaded = re.findall(r'(?:src|<link rel="stylesheet" href)="((?:https?:)?//[^"]+)|class="(mermaid)', text)
        wrong += [f"{page.relative_to(site)} loads {''.join(what)}" for what in loaded]
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    guides = " ".join(entry["title"] + " " + entry["text"] for entry in entries if entry.get("boost", 1) == 1).lower()
    wrong += [f"no guide has {words}" for words in SEARCHED if words.lower() not in guides]
    wrong += _not_first(site) if shutil.which("node") else []
    if wrong:
        raise PluginError("; ".join(wrong[:5]))


def _not_first(site: pathlib.Path) -> list[str]:
    """A line for each of the words in FIRST with which the site's search finds another page first."""
    wanted = [(words, page) for page, listed in FIRST.items() for words in listed.split(", ")]
    command = ["node", str(ROOT / "docs" / "search.js"), str(site), *(words for words, _ in wanted)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
    pairs = zip(wanted, found, strict=True)
    wrong = [(words, at) for (words, page), at in pairs if not at.startswith((f"{page}.html", f"{page}/"))]
    return [f"{words} finds {first or 'nothing'}" for words, first in wrong]


def _resolved(source: str, link: str) -> str:
    """The path of a link's target, relative to the root of the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _page(path: str) -> str:
    """The page that shows a notebook; other paths as they are."""
    return re.sub(r"\.ipynb$", "_notebook.md", path)


def _notebook(source: str) -> str:
    """A notebook as a page, with a button that downloads the file."""
    name = posixpath.basename(source)
    button = f'<a class="md-button md-button--primary" href="{name}" download>Download the notebook</a>\n\n'
    button += f"To run it, type `pip install -e '.[notebooks]'` and `jupyter notebook {source}` in the checkout.\n"
    parts = []
    for number, cell in enumerate(json.loads((ROOT / source).read_text(encoding="utf-8"))["cells"]):
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        if number == 0:
            parts.append(button)
    return "\n\n".join(parts) + "\n"


def _colored(found: re.Match) -> str:
    return f"```pycon\n{textwrap.dedent(re.sub(r' *# doctest: .*', '', found[0]))}```\n"


def _as_tabs(markdown: str) -> str:
    """Sections that begin with ### as tabs of one place."""
    _, *parts = re.split(r"(?m)^### (.*)\n", markdown)
    tabs = zip(parts[::2], parts[1::2], strict=True)
    return "\n".join(f'=== "{title}"\n{textwrap.indent(text, "    ")}' for title, text in tabs)
