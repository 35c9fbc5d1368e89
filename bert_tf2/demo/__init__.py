"""A built-in corpus and a demonstration on it: `python -m bert_tf2.demo`."""
