"""Opens a local page that shows a BERT step by step, on any weights: from a sentence to the words for its [MASK].

    python explore.py --help

shows every flag. The class ExplorerOptions in bert_tf2/explorer/options.py defines the flags.
"""

from bert_tf2 import commands

if __name__ == "__main__":
    commands.run("explore")
