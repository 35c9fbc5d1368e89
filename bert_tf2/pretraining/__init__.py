"""Pretraining on plain text; as bert_tf2.create_pretraining_data, has the names of google-research/bert."""

from bert_tf2.support import lazy

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "options": "CreatePretrainingDataOptions PretrainingDataOptions",
        "reference_functions": "TrainingInstance make_instances create_training_instances"
        " create_instances_from_document create_masked_lm_predictions truncate_seq_pair write_instance_to_example_files"
        " create_int_feature create_float_feature",
    },
)
