"""`import tokenization` beside the scripts, as in google-research/bert: the module bert_tf2.tokenization."""

import sys

from bert_tf2 import tokenization

sys.modules[__name__] = tokenization
