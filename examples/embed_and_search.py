"""Embed sentences and search them: python examples/embed_and_search.py MODEL_FOLDER ["a question"]"""

import sys

import numpy as np

import bert_tf2

SENTENCES = """The capital of Japan is Tokyo. | The largest animal on the earth is the blue whale. | Bees make honey.
The heart pumps blood around the body. | The moon goes around the earth. | A saw is a tool that cuts wood.
Water freezes and becomes ice. | Elephants live in Africa and in Asia.""".replace("\n", " | ").split(" | ")

model, *given = sys.argv[1:] or sys.exit(__doc__)
bert, question = bert_tf2.load(model), (given or ["Which animals live in Africa?"])[0]
vectors = bert.embed([question, *SENTENCES], pooling="mean")  # [1 + sentences, hidden_size]
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
similarities = vectors[1:] @ vectors[0]  # cosines
print(question)
for place in similarities.argsort()[::-1][:3]:
    print(f"  {similarities[place]:.3f}  {SENTENCES[place]}")
