"""Models for TensorFlow Serving. `bert_tf2.exporting.load` opens an exported folder in Python."""

from bert_tf2.support import lazy

__getattr__, __dir__ = lazy.names(__name__, {}, of_tensorflow={"saved_model_files": "load"})
