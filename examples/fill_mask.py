"""Fill in [MASK] with the most probable words: python examples/fill_mask.py MODEL_FOLDER ["a [MASK] sentence"]"""

import sys

import bert_tf2

SENTENCES = [
    "The capital of Spain is [MASK].",
    "A spider has [MASK] legs.",
    "In the [MASK] the sun [MASK].",
]

model, *given = sys.argv[1:] or sys.exit(__doc__)
for answer in bert_tf2.load(model).fill_mask(given or SENTENCES, top_k=3):
    print(answer.filled)
    for mask in answer.masks:
        print("   ", ", ".join(f"{word.token} {word.probability:.3f}" for word in mask.predictions))
