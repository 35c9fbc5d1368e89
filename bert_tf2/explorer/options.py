"""The settings of explore.py."""

from __future__ import annotations

from bert_tf2.support.settings import Options, of_data, of_model, of_to_do, options


@options
class ExplorerOptions(Options):
    """Opens a local page that shows a BERT step by step, on any weights: from a sentence to the words for its [MASK].

    Example:
      python explore.py --model=$BERT_BASE_DIR

    The page is at http://127.0.0.1:8600 until Ctrl-C. Only this machine can open it, and it needs no internet.
    """

    model: str = of_model(
        "The weights of a BERT, of any kind: a folder or a file, for example an output_dir.", reads="weights"
    )
    bert_config_file: str | None = of_model(
        "JSON file with the model's sizes; defaults to the file beside the weights.", None, reads=True
    )
    vocab_file: str | None = of_model(
        "The vocabulary of the model; defaults to the file beside the weights.", None, reads=True
    )
    do_lower_case: bool | None = of_model(
        "Lower-case the text and strip accents; defaults to the setting beside the weights or in the vocabulary.", None
    )
    text: str | None = of_data("The sentence that the page begins with; may have [MASK].", None)
    text_b: str | None = of_data("The second sentence of a pair.", None)
    other_text: str | None = of_data("A sentence to show beside --text, for example with one word changed.", None)
    write: str | None = of_to_do(
        "Write one page with the answers for --text into this file, instead of a server.", None, writes_file=True
    )
    port: int = of_to_do("The page is http://127.0.0.1:PORT; 0 takes any free port.", 8600, low=0, high=65535)
