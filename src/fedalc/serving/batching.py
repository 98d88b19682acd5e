"""Dynamic batching: requests that arrive within a short window are predicted together, in one thread."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from fedalc.errors import FedalcError
from fedalc.serving.limits import Limits
from fedalc.serving.predictor import RecordPredictor, Records, len_of
from fedalc.workflows.prediction_files import Answer, Predictions

LOG = logging.getLogger("fedalc.serving")


class Busy(Exception):
    """Too many requests are waiting."""


@dataclass(frozen=True, eq=False)
class Waiting:
    records: Records
    wanted: Answer
    answer: asyncio.Future[Predictions]


class Batcher:
    """Predicts for many requests at once. `start` and `stop` it within the event loop that calls `predict`."""

    def __init__(self, predictor: RecordPredictor, limits: Limits) -> None:
        self._predictor, self._limits = predictor, limits
        self._waiting: deque[Waiting] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "model")
        self._loop: asyncio.Task[None] | None = None
        self.answered = 0
        self.batches = 0

    def __len__(self) -> int:
        return len(self._waiting)

    async def start(self) -> None:
        self._loop = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def predict(self, records: Records, wanted: Answer) -> Predictions:
        """Return the labels of these records. Raises Busy at once if too many requests are waiting."""
        if len(self._waiting) >= self._limits.queue:
            raise Busy
        request = Waiting(records, wanted, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._arrived.set()
        try:
            predictions = await request.answer
        except asyncio.CancelledError:  # too late, or its client is gone: it takes no place any more
            with suppress(ValueError):
                self._waiting.remove(request)
            raise
        self.answered += 1
        return predictions

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            if self._limits.window and sum(len_of(each.records) for each in self._waiting) < self._limits.batch:
                await asyncio.sleep(self._limits.window)
            batch = self._taken()
            if not batch:
                continue
            self.batches += 1
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._answers, batch)
            for request, answer in zip(batch, answers, strict=True):
                if request.answer.done():  # its client gave up meanwhile
                    continue
                if isinstance(answer, Exception):
                    request.answer.set_exception(answer)
                else:
                    request.answer.set_result(answer)

    def _taken(self) -> list[Waiting]:
        """Take the oldest requests, as many as fit into one batch, and at least one."""
        batch: list[Waiting] = []
        size = 0
        while self._waiting:
            first = self._waiting[0]
            if not first.answer.done():
                if batch and size + len_of(first.records) > self._limits.batch:
                    break
                batch.append(first)
                size += len_of(first.records)
            self._waiting.popleft()
        if not self._waiting:
            self._arrived.clear()
        return batch

    def _answers(self, batch: Sequence[Waiting]) -> Sequence[Predictions | Exception]:
        """Predict, in the model's thread. If one request cannot be answered, the others are."""
        try:
            return self._predictor.predict([each.records for each in batch], [each.wanted for each in batch])
        except FedalcError as error:
            return [error] if len(batch) == 1 else [self._answers([each])[0] for each in batch]
        except Exception as error:
            LOG.exception("the model failed")
            return [error] * len(batch)
