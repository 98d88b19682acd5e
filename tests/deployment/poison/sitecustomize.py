"""Make one party of a test answer NaN in one round; its processes have this folder on their path.

The round is in a file, so that a test can say when. Without the file nothing is different.
"""

import os
from pathlib import Path

if said := os.environ.get("FEDALC_TEST_POISON"):
    import numpy as np
    from flwr.app import Array, ArrayRecord
    from flwr.clientapp import ClientApp

    honest = ClientApp.__call__

    def answer(app, message, context):
        reply = honest(app, message, context)
        asked = message.metadata
        said_now = Path(said).read_text().strip() if Path(said).exists() else ""
        if asked.message_type == "train" and asked.group_id == said_now:
            change = reply.content["change"]
            broken = {
                name: Array(a.dtype, a.shape, a.stype, np.full(a.shape, np.nan, a.dtype).tobytes())
                for name, a in change.items()
            }
            reply.content["change"] = ArrayRecord(broken)
        return reply

    ClientApp.__call__ = answer

if said_stop := os.environ.get("FEDALC_TEST_STOP"):  # "ROUND STEP FILE": stop at that step of a secure sum, and say so
    import time

    from flwr.clientapp import ClientApp

    stop_round, stop_step, stop_file = said_stop.split(" ", 2)
    willing = ClientApp.__call__

    def answer_or_stop(app, message, context):
        asked = message.metadata
        steps = message.content.get("sum", {}) if asked.message_type == "query.sum" else ()
        reached = asked.message_type == "train" if stop_step == "masked" else stop_step in steps
        if reached and asked.group_id == stop_round:
            Path(stop_file).touch()
            time.sleep(3600)
        return willing(app, message, context)

    ClientApp.__call__ = answer_or_stop
