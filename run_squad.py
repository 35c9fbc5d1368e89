"""Fine-tunes BERT on SQuAD 1.1 or 2.0, answers questions and scores the answers.

    python run_squad.py --help

shows every flag. The class SquadOptions in bert_tf2/finetuning/options.py defines the flags.
"""

from bert_tf2 import commands

__getattr__ = commands.names("run_squad")  # the reference's classes and functions

if __name__ == "__main__":
    commands.run("run_squad")
