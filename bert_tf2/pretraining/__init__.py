"""Pretraining on plain text; as bert_tf2.create_pretraining_data, has the names of google-research/bert."""

from bert_tf2.support import lazy

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "options": "CreatePretrainingDataOptions PretrainingDataOptions",
        "examples": "create_masked_lm_predictions truncate_seq_pair",
        "features": "TrainingInstance make_instances create_training_instances create_instances_from_document"
        " write_instance_to_example_files",
        "tf_features": "create_int_feature create_float_feature",
    },
)
