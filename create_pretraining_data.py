"""Makes masked-LM and next-sentence examples for pretraining BERT out of plain text.

    python create_pretraining_data.py --help

shows every flag. The class CreatePretrainingDataOptions in bert_tf2/pretraining/options.py defines the flags.
"""

from bert_tf2 import commands

__getattr__ = commands.names("create_pretraining_data")  # the reference's classes and functions

if __name__ == "__main__":
    commands.run("create_pretraining_data")
