"""Fills in blanks: the most probable words for every [MASK] in sentences, by a pretrained BERT.

    python predict_masked.py --help

shows every flag. The class MaskedLMOptions in bert_tf2/inference/options.py defines the flags.
"""

from bert_tf2 import commands

if __name__ == "__main__":
    commands.run("predict_masked")
