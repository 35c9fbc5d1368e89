"""`import modeling` beside the scripts, as in google-research/bert: the module bert_tf2.modeling."""

import sys

from bert_tf2 import modeling

sys.modules[__name__] = modeling
