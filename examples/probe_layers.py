"""Probe what each layer knows: python examples/probe_layers.py MODEL_FOLDER [PLOT.svg]"""

import collections
import itertools
import pathlib
import sys

import numpy as np
from sklearn import linear_model, model_selection, pipeline, preprocessing

import bert_tf2

model, *plot = sys.argv[1:] or sys.exit(__doc__)
table = pathlib.Path(__file__).with_name("data").joinpath("word_classes.tsv").read_text()
rows = (line.split("\t") for line in table.splitlines())
classes = {word: name for name, words in rows for word in words.split()}
corpus = pathlib.Path(bert_tf2.__file__).with_name("demo") / "corpus.txt"
bert, texts = bert_tf2.load(model), [line for line in corpus.read_text().splitlines() if line]
inputs = bert.tokenize(texts)
output = bert.encoder(inputs)
states = np.array([output.get_embedding_output(), *output.get_all_encoder_layers()])  # [1 + layers, texts, F, D]
tokens = [bert.tokenizer.convert_ids_to_tokens(row) for row in inputs["input_ids"]]
lengths = [len(row) - row.count("[PAD]") for row in tokens]
common = [word for word, _ in collections.Counter(itertools.chain(*tokens)).most_common(24) if word[0] != "["]
# A place (text, position), the answer, and the group: words or texts that the probe is asked about are new to it.
asked = {"word class": [], "next word": [], "length of the text": []}
for number, row in enumerate(tokens):
    third = int(np.searchsorted(np.quantile(lengths, [1 / 3, 2 / 3]), lengths[number]))
    asked["length of the text"].append((number, 0, third, number))  # from [CLS]: short, medium, long
    for place, (word, following) in enumerate(itertools.pairwise(row)):
        if word in classes:
            asked["word class"].append((number, place, classes[word], word))
        if place and following in common:
            asked["next word"].append((number, place, following, number))
probe = pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression(C=0.01, max_iter=200))
folds, right = model_selection.GroupKFold(4, shuffle=True, random_state=1), {}
print(f"{'':20} guess embeddings", *(f"layer {layer}" for layer in range(len(states) - 1)))
for question, places in asked.items():
    text, place, answers, groups = map(np.array, zip(*places, strict=True))
    guess = np.unique(answers, return_counts=True)[1].max() / len(answers)
    vectors = (layer[text, place] for layer in states)
    every = (model_selection.cross_val_score(probe, each, answers, groups=groups, cv=folds) for each in vectors)
    right[question] = [100 * np.mean(scores) for scores in every]
    print(f"{question:20} {100 * guess:5.1f} {right[question][0]:10.1f}", *(f"{p:7.1f}" for p in right[question][1:]))
if plot:
    import matplotlib.pyplot as plt

    plt.figure(figsize=(6, 3.2), layout="constrained")
    for question, shares in right.items():
        plt.plot(["embeddings", *map(str, range(len(states) - 1))], shares, marker="o", label=question)
    plt.gca().set(xlabel="layer", ylabel="right answers, %", ylim=(0, 100))
    plt.legend()
    plt.savefig(plot[0])
