"""Writes BERT's hidden states for the lines of a text: for every token, or pooled into one vector a line.

    python extract_features.py --help

shows every flag. The class FeatureOptions in bert_tf2/inference/options.py defines the flags.
"""

from bert_tf2 import commands

__getattr__ = commands.names("extract_features")  # the reference's classes and functions

if __name__ == "__main__":
    commands.run("extract_features")
