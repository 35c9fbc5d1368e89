"""Classification of texts and pairs; as bert_tf2.run_classifier, has the names of google-research/bert."""

from bert_tf2.support import lazy

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "tasks": "TASKS Table Task TsvLayout find_task",
        "examples": "InputExample DataProcessor TaskProcessor ColaProcessor MnliProcessor MrpcProcessor XnliProcessor"
        " get_processor register",
        "features": "PaddingInputExample InputFeatures truncate_seq_pair convert_single_example"
        " convert_examples_to_features _truncate_seq_pair iterate_features record_kind as_record"
        " file_based_convert_examples_to_features",
        "results": "write_test_results write_predictions",
    },
)
