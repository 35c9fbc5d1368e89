"""Embed sentences and search them: python examples/embed_and_search.py MODEL_FOLDER ["a question"]"""

import sys

import bert_tf2

SENTENCES = """The capital of Japan is Tokyo. | The largest animal on the earth is the blue whale. | Bees make honey.
The heart pumps blood around the body. | The moon goes around the earth. | A saw is a tool that cuts wood.
Water freezes and becomes ice. | Elephants live in Africa and in Asia.""".replace("\n", " | ").split(" | ")

model, *given = sys.argv[1:] or sys.exit(__doc__)
question = (given or ["Which animals live in Africa?"])[0]
found = bert_tf2.load(model).search(question, SENTENCES, top_k=3)
print(question)
for place, cosine in zip(found.indexes, found.scores, strict=True):
    print(f"  {cosine:.3f}  {SENTENCES[place]}")
