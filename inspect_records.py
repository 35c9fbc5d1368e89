"""Checks every record of TFRecord files and shows what they hold: lengths, padding, masks, labels, examples.

    python inspect_records.py --help

shows every flag. The class InspectRecordsOptions in bert_tf2/pretraining/options.py defines the flags.
"""

from bert_tf2 import commands

if __name__ == "__main__":
    commands.run("inspect_records")
