"""Learns a WordPiece vocabulary from plain text, for pretraining on a language or a subject of one's own.

    python build_vocab.py --help

shows every flag. The class BuildVocabOptions in bert_tf2/pretraining/build_vocab.py defines the flags.
"""

from bert_tf2 import commands

if __name__ == "__main__":
    commands.run("build_vocab")
