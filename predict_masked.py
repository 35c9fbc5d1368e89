"""Fills in blanks: the most probable words for every [MASK] in sentences, by a pretrained BERT.

    python predict_masked.py --help

shows every flag. They are stated in bert_tf2/pretraining/options.py, as the class MaskedLMOptions.
"""

from bert_tf2 import commands

if __name__ == "__main__":
    commands.run("predict_masked")
