"""Plain averaging makes all labels the same; FedALC keeps them apart. About half a minute.

Every client has the records of one label and no others. `fedavg` pulls all class embeddings W towards the same vector;
the other two methods use what the server knows about labels that occur together.
"""

from __future__ import annotations

import fedalc

data = fedalc.load_dataset("demo")  # embedded texts: 79 labels, so 79 clients
print(data)

compared = fedalc.compare(["fedavg", "fedalc", "fedalc-exact"], data, preset="demo", rounds=40)
for run in compared.runs:
    cosine = run.result["collapse"]["max_cosine"]  # between the class embeddings of two labels; 1: they are the same
    print(f"{run.settings.method:14} P@1 {run.metrics['P@1']:5.1f} %   largest cosine of two labels {cosine:.3f}")

worst, *_, best = sorted(compared.runs, key=lambda run: run.metrics["P@1"])
record = data.test.features[:1]
for run in (worst, best):
    labels, _ = run.model.predict(record, k=3)
    print(f"{run.settings.method} says: {', '.join(data.label_names[label] for label in labels[0])}")
truth = data.test.labels[:1].indices
print(f"true: {', '.join(data.label_names[label] for label in truth)}")
