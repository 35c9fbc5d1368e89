"""Exports a model for TensorFlow Serving: a SavedModel that takes token ids and raw text.

    python export_saved_model.py --help

shows every flag. The class ExportOptions in bert_tf2/exporting/options.py defines the flags.
"""

from bert_tf2 import commands

if __name__ == "__main__":
    commands.run("export_saved_model")
