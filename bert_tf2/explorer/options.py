"""The settings of explore.py."""

from __future__ import annotations

from bert_tf2.support.settings import DATA, MODEL, TO_DO, Options, options, setting
from bert_tf2.training.options import sequence_length

DEFAULT_PORT = 8600


@options
class ExplorerOptions(Options):
    """Opens a local page that shows a BERT step by step, on any weights: from a sentence to the words for its [MASK].

    Example:
      python explore.py --model=$BERT_BASE_DIR

    The page is at http://127.0.0.1:8600 until Ctrl-C. Only this machine can open it, and it needs no internet.
    """

    model: str = setting(
        "The weights of a BERT, of any kind: a folder or a file, for example an output_dir.",
        group=MODEL,
        reads="weights",
    )
    bert_config_file: str | None = setting(
        "JSON file with the model's sizes; defaults to the one beside the weights.", None, group=MODEL, reads=True
    )
    vocab_file: str | None = setting(
        "The vocabulary that the model was trained with; defaults to the one beside the weights.",
        None,
        group=MODEL,
        reads=True,
    )
    do_lower_case: bool | None = setting(
        "Lower-case the text and strip accents; defaults to what the files beside the weights, or the vocabulary, say.",
        None,
        group=MODEL,
    )
    max_seq_length: int | None = sequence_length(
        "Maximum number of tokens of a sentence or pair, including [CLS] and [SEP]; defaults to all that the model can"
        " read.",
        default=None,
    )
    compare_with: str | None = setting(
        "Other weights of the same sizes, for example before fine-tuning: the page shows which variables differ.",
        None,
        group=DATA,
        reads="weights",
    )
    text: str | None = setting("The sentence that the page begins with; may have [MASK].", None, group=DATA)
    text_b: str | None = setting("The second sentence of a pair.", None, group=DATA)
    other_text: str | None = setting(
        "A sentence to show beside --text, for example with one word changed.", None, group=DATA
    )
    write: str | None = setting(
        "File for one page with --text worked through, to be shared: it needs no server and no internet. Writes it,"
        " and opens no page.",
        None,
        group=TO_DO,
        writes_file=True,
    )
    port: int = setting(
        "The page is http://127.0.0.1:PORT; 0 takes any free one.", DEFAULT_PORT, group=TO_DO, low=0, high=65535
    )
