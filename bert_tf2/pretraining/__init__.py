"""Pretraining on plain text; has the names of create_pretraining_data.py of google-research/bert.

from bert_tf2 import pretraining as create_pretraining_data
"""

from bert_tf2.support import lazy

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "options": "CreatePretrainingDataOptions PretrainingDataOptions",
        "instances": "TrainingInstance make_instances truncate_seq_pair create_training_instances"
        " create_instances_from_document",
        "masking": "create_masked_lm_predictions",
        "example_files": "write_instance_to_example_files",
    },
)
