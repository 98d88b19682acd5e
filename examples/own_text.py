"""From texts of your own to a model that reads a new sentence. A few seconds.

The same works for a file: `fedalc train --dataset messages.csv`, then `fedalc predict RUN "a new sentence"`.
"""

from __future__ import annotations

import random

import fedalc

# A few hundred messages; yours come from a file or a data frame.
WORDS = {
    "billing": ["invoice", "refund", "charged", "payment"],
    "delivery": ["parcel", "courier", "late", "address"],
    "login": ["password", "account", "locked", "email"],
    "product": ["broken", "colour", "size", "quality"],
}
draw = random.Random(0)
texts, topics = [], []
for _ in range(600):
    chosen = draw.sample(sorted(WORDS), draw.choice([1, 1, 2]))
    words = [word for topic in chosen for word in draw.choices(WORDS[topic], k=3)]
    texts.append(" ".join(["please", "help", *draw.sample(words, len(words))]))
    topics.append(chosen)

run = fedalc.train(texts, topics, tune=False)  # a fifth of the records is held out to test on
print(run)

# The model keeps what turns texts into features, so that it reads texts.
new = ["my parcel is late and I was charged twice", "the account is locked"]
labels, probabilities = run.model.predict_proba(new, k=2)
for text, row, values in zip(new, labels, probabilities, strict=True):
    print(text, "→", ", ".join(f"{run.model.label_names[u]} {p:.2f}" for u, p in zip(row, values, strict=True)))

# Or decide on label sets: thresholds per label, chosen for F1 on held-out records.
for text, row in zip(new, run.model.predict_sets(new), strict=True):
    print(text, "→", [run.model.label_names[u] for u in row.indices])
