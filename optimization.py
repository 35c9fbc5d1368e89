"""`import optimization` beside the scripts, as in google-research/bert: the module bert_tf2.optimization."""

import sys

from bert_tf2 import optimization

sys.modules[__name__] = optimization
