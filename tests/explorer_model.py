"""The sizes of the small model that the tests of the explorer show, and how its fine-tuned twin differs."""

from __future__ import annotations

from command_lines import ROOT

VOCAB_FILE = ROOT / "bert_tf2" / "demo" / "vocab.txt"
SIZES = {"vocab_size": 888, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 48}
"""Of the model. It has 2 blocks with 2 heads each."""
MOVED = "bert/encoder/layer_1/output/dense/kernel"
"""The variable that changed most in the fine-tuned twin."""
MOVED_WORD = "paris"
"""The word whose embedding did."""
