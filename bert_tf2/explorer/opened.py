"""The model that the page shows, loaded once."""

from __future__ import annotations

import threading
from typing import Any

from bert_tf2.commands import loading
from bert_tf2.explorer.options import ExplorerOptions
from bert_tf2.support.errors import UserError
from bert_tf2.training import curves
from bert_tf2.weights import checkpoint, names


class Explorer:
    """What every view needs. The handlers of requests run in threads.

    Attributes:
      options: the settings.
      bert: the model with its tokenizer and configuration.
      other: the weights of --compare_with, or None.
      lock: held while TensorFlow computes, so that two requests do not need the memory of both.
      max_seq_length: the most tokens of a sentence.
    """

    def __init__(self, options: ExplorerOptions):
        """Loads the model.

        Raises:
          UserError: see loading.load; or max_seq_length is more than the model can read; or the weights to compare with
            or a training cannot be read.
        """
        self.options = options
        self.other = checkpoint.open_weights(options.compare_with) if options.compare_with else None
        for folder in options.training_dir or ():  # they are read again when they are shown
            curves.read_run(folder)
        self.bert = loading.load(
            options.model,
            bert_config_file=options.bert_config_file,
            vocab_file=options.vocab_file,
            do_lower_case=options.do_lower_case,
        )
        if options.max_seq_length is not None:
            self.bert.config.check_sequence_length(options.max_seq_length)
        self.max_seq_length = options.max_seq_length or self.bert.config.max_position_embeddings
        if self.max_seq_length < 3:
            raise UserError(f"{options.model}: reads {self.max_seq_length} tokens; [CLS], a piece and [SEP] need 3")
        self.lock = threading.Lock()

    def describe(self) -> dict[str, Any]:
        """The facts about the model that every view shows, for /api/model."""
        bert = self.bert
        config = bert.config.to_dict()
        variables = names.tf1_variables(bert.model)
        return {
            "path": bert.path,
            "kind": type(bert.model).__name__,
            "heads": [*bert.model.heads],
            "config": {name: value for name, value in config.items() if isinstance(value, (int, float, str))},
            "parameters": sum(int(variable.shape.num_elements()) for variable in variables.values()),
            "labels": [*bert.labels.labels] if bert.labels else [],
            "do_lower_case": bert.tokenizer.basic_tokenizer.do_lower_case,
            "max_seq_length": self.max_seq_length,
            "compare_with": self.options.compare_with,
            "training_dirs": [*(self.options.training_dir or ())],
            "texts": {name: getattr(self.options, name) or "" for name in ("text", "text_b", "other_text")},
        }
