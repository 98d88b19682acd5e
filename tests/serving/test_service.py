"""The HTTP service, over real connections to 127.0.0.1."""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from fedalc.data.text.features import fit_text
from fedalc.data.text.settings import TextSettings
from fedalc.errors import FedalcError
from fedalc.evaluation.calibrate import fit_calibration, held_out_scores
from fedalc.models.trained import TrainedModel
from fedalc.serving.app import Service
from fedalc.serving.limits import Limits
from fedalc.serving.predictor import RecordPredictor
from fedalc.serving.server import bound, is_loopback, server_of
from fedalc.serving.token import Token
from tests.commands import run
from tests.models.drawn import FEATURES, SIDE, make_model

DEFAULT = Limits()
TEXTS = ["wheat and corn", "oil prices rise", "corn", "ships with oil", "grain ships"]


@contextmanager
def serving(
    model: TrainedModel, limits: Limits = DEFAULT, token: Token | None = None
) -> Iterator[tuple[Client, Service]]:
    service = Service(RecordPredictor(model), "test", limits, token)
    server = server_of(service, "127.0.0.1", limits)
    with bound("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Client(listening.getsockname()[1]), service
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


class Client:
    def __init__(self, port: int) -> None:
        self.port = port

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def predict(self, request: Any, **headers: str) -> tuple[int, Any]:
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        code, _, content = self.ask("POST", "/predict", body, {"Content-Type": "application/json", **headers})
        return code, json.loads(content)


@pytest.fixture(scope="module")
def model() -> TrainedModel:
    return make_model(name="linear", output="raw", features="unit")


@pytest.fixture(scope="module")
def client(model: TrainedModel) -> Iterator[Client]:
    with serving(model) as (client, _):
        yield client


def rows(count: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return np.round(draw.random((count, FEATURES)) * (draw.random((count, FEATURES)) < 0.3), 4)


def as_json(model: TrainedModel, X: Any, top: int) -> list[dict[str, Any]]:
    labels, scores = model.predict(X, top)
    return [
        {
            "instance": at,
            "labels": [
                {"label": int(label), "name": model.label_names[label], "score": pytest.approx(float(score), abs=2e-6)}
                for label, score in zip(labels[at], scores[at], strict=True)
            ],
        }
        for at in range(len(labels))
    ]


def test_full_and_sparse_rows_give_what_predict_gives(client: Client, model: TrainedModel) -> None:
    X = rows(4)
    assert client.predict({"features": X.tolist(), "top": 3}) == (200, {"predictions": as_json(model, X, 3)})
    sparse = [{"indices": np.flatnonzero(x).tolist(), "values": x[x != 0].tolist()} for x in X]
    assert client.predict({"sparse": sparse}) == (200, {"predictions": as_json(model, X, 5)})
    assert client.predict({"features": []}) == (200, {"predictions": []})


WRONG: list[tuple[Any, int, str]] = [
    (b"{not json", 400, "the request is not JSON: line 1, column 2, at 'not json'"),
    (b'{"features":\n [[1,]]}', 400, "the request is not JSON: line 2, column 6, at ']]}'"),
    (b"[" * 100_000, 400, "the request is not JSON: it is nested too deeply"),
    (b"", 400, "the request is not JSON: it is empty"),
    (b'{"features": [', 400, "the request is not JSON: it ends too early"),
    (b"\xff\xfe", 400, "the request is not JSON: line 1, column 1, at "),
    ([1, 2], 422, "expected an object, { … }"),
    ({}, 422, "give exactly one of features, sparse; found none"),
    ({"features": [[0.0] * FEATURES], "sparse": []}, 422, "found features and sparse"),
    ({"features": [[0.0] * FEATURES, [1.0]]}, 422, f"row 1 has 1 numbers, but the model takes {FEATURES}"),
    (b'{"features": [[NaN]]}', 422, "features[0][0]: expected a finite number, found nan"),
    ({"features": [[1e39] * FEATURES]}, 422, "row 0, column 0 is not a finite number"),
    ({"features": [["1"] * FEATURES]}, 422, "features[0][0]: expected a number, found '1'"),
    ({"sparse": [{"indices": [FEATURES], "values": [1.0]}]}, 422, f"feature {FEATURES}, but the model takes features"),
    ({"sparse": [{"indices": [-1], "values": [1.0]}]}, 422, "feature -1"),
    ({"sparse": [{"indices": [1, 1], "values": [1.0, 2.0]}]}, 422, "a feature twice"),
    ({"sparse": [{"indices": [1], "values": []}]}, 422, "1 indices but 0 values"),
    ({"sparse": [{"indices": [10**30], "values": [1.0]}]}, 422, "feature 1000000000000000000000000000000"),
    ({"texts": ["a"]}, 422, f"texts: this model takes {FEATURES} features"),
    ({"pictures": ["a"]}, 422, f"pictures: this model takes {FEATURES} features"),
    ({"features": [], "top": 0}, 422, "top: expected at least 1, found 0"),
    ({"features": [], "abstain_below": 2}, 422, "abstain_below: expected at most 1, found 2"),
    ({"features": [], "threshold": True}, 422, "threshold: expected f1, precision=0.9 or a probability between 0 and"),
    ({"features": [], "threshold": 1.5}, 422, "threshold: expected f1, precision=0.9 or a probability between 0 and"),
    ({"features": [], "threshold": {"f1": 1}}, 422, "threshold: expected f1, precision=0.9 or a probability between"),
    ({"features": [], "best": 3}, 422, "best: there is no such field; there are texts, features"),
    ({"text": ["a"]}, 422, "text: there is no such field; did you mean texts?"),
    ({"texts": "a"}, 422, "texts: expected a list, [ … ], found 'a'"),
    ({"sparse": [{"indices": [0]}]}, 422, "sparse[0].values: this field is missing"),
    ({"features": [[0.0] * FEATURES] * 1001}, 413, "1001 records, but at most 1000"),
    (b" " * (9 << 20), 413, "more than 8388608 bytes"),
]


@pytest.mark.parametrize(("request_", "code", "said"), WRONG, ids=range(len(WRONG)))
def test_wrong_requests_are_refused_with_one_line(client: Client, request_: Any, code: int, said: str) -> None:
    found, answer = client.predict(request_)
    assert found == code and said in answer["error"] and "\n" not in answer["error"], answer
    assert client.ask("GET", "/health")[0] == 200


def test_other_paths_methods_and_types_are_refused(client: Client) -> None:
    code, _, content = client.ask("GET", "/nothing")
    assert code == 404 and json.loads(content)["error"].startswith("there is nothing at /nothing: POST to /predict")
    code, headers, content = client.ask("GET", "/predict")
    assert (code, headers["allow"]) == (405, "POST")
    assert json.loads(content) == {"error": "/predict does not take GET: use POST"}
    code, _, content = client.ask("POST", "/predict", b"{}", {"Content-Type": "text/plain"})
    assert code == 415 and "application/json" in json.loads(content)["error"]
    code, _, content = client.ask("GET", "/health", headers={"Host": "elsewhere.example"})
    assert code == 400 and "'elsewhere.example' is not a name of this service" in json.loads(content)["error"]


def spoken(port: int, sent: bytes) -> tuple[str, dict[str, str]]:
    """Return the status line and the answer to raw bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(sent)
        answer = b""
        while part := connection.recv(4096):
            answer += part
    head, _, content = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode(), json.loads(content)


NOT_HTTP = (
    b"nonsense\r\n\r\n",
    b"GET /health HTTP/1.1\r\n\r\n",
    b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: abc\r\n\r\n",
    b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
)


@pytest.mark.parametrize("sent", NOT_HTTP)
def test_what_is_not_http_is_refused_in_json(client: Client, sent: bytes) -> None:
    status, answer = spoken(client.port, sent)
    assert status.startswith("HTTP/1.1 400") and "not a request in HTTP/1.1" in answer["error"]
    assert client.ask("GET", "/health")[0] == 200


def test_too_many_connections_are_refused_in_json(model: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedalc.serving.server.BACKLOG", 1)
    with serving(model, Limits(queue=0)) as (client, _):
        assert client.ask("GET", "/health")[0] == 200
        with socket.create_connection(("127.0.0.1", client.port), timeout=30):
            code, headers, content = client.ask("GET", "/health")
            assert code == 503 and headers["retry-after"] == "1" and "open connections" in json.loads(content)["error"]


def test_a_body_of_unknown_length_is_cut_off(client: Client) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
    try:
        chunks = (b" " * (1 << 20) for _ in range(40))
        connection.request("POST", "/predict", chunks, {"Content-Type": "application/json"}, encode_chunked=True)
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):  # it stopped reading before all was sent
        pass
    finally:
        connection.close()
    assert client.ask("GET", "/health")[0] == 200


def test_what_the_service_says_about_itself(client: Client, model: TrainedModel) -> None:
    labels = json.loads(client.ask("GET", "/labels")[2])["labels"]
    assert [each["name"] for each in labels] == list(model.label_names)
    assert [each["predicted"] for each in labels] == model.held.tolist()
    health = json.loads(client.ask("GET", "/health")[2])
    assert health["status"] == "ok" and health["waiting"] == 0
    description = json.loads(client.ask("GET", "/openapi.json")[2])
    assert set(description["paths"]) == {"/predict", "/labels", "/health"}
    referenced = set(_references(description))
    assert referenced and all(name in description["components"]["schemas"] for name in referenced)
    for path in ("/", "/docs"):
        code, headers, page = client.ask("GET", path)
        assert code == 200 and "default-src 'none'" in headers["content-security-policy"]
        assert b"{{" not in page and b"//" not in page  # nothing from elsewhere


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            if key == "$ref":
                yield each.rpartition("/")[2]
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


def test_requests_at_the_same_time_are_predicted_together(model: TrainedModel) -> None:
    with serving(model, Limits(window=0.2)) as (client, service), ThreadPoolExecutor(16) as pool:
        X = rows(16, seed=1)
        asked = [pool.submit(client.predict, {"features": [x.tolist()], "top": 1 + at % 5}) for at, x in enumerate(X)]
        for at, each in enumerate(asked):
            assert each.result() == (200, {"predictions": as_json(model, X[at : at + 1], 1 + at % 5)})
        assert service.batcher.batches <= 4 and service.batcher.answered == 16


def test_one_bad_request_does_not_spoil_its_batch() -> None:
    model = make_model(name="linear", output="raw", features="raw")
    with serving(model, Limits(window=0.2)) as (client, _), ThreadPoolExecutor(2) as pool:
        good, bad = rows(1), np.full((1, FEATURES), 3e38)
        bad[0, ::2] *= -1
        first, second = (pool.submit(client.predict, {"features": X.tolist()}) for X in (good, bad))
        assert first.result() == (200, {"predictions": as_json(model, good, 5)})
        code, answer = second.result()
        assert code == 422 and "scale the features" in answer["error"]


class Slow(RecordPredictor):
    """Waits until it may go on."""

    def __init__(self, model: TrainedModel) -> None:
        super().__init__(model)
        self.go = threading.Event()

    def predict(self, *given: Any) -> Any:
        self.go.wait(20)
        return super().predict(*given)


@pytest.mark.long
def test_a_full_queue_and_a_late_answer(model: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(model)
    monkeypatch.setattr("tests.serving.test_service.RecordPredictor", lambda _: slow)
    limits = Limits(queue=2, timeout=3.0, window=0, batch=1)
    with serving(model, limits) as (client, _), ThreadPoolExecutor(8) as pool:
        request = {"features": rows(1).tolist()}
        first = pool.submit(client.predict, request)  # it is being predicted
        while json.loads(client.ask("GET", "/health")[2])["waiting"] or not slow_began(slow):
            time.sleep(0.01)
        rest = [pool.submit(client.predict, request) for _ in range(4)]
        codes = sorted(each.result()[0] for each in rest)
        assert codes == [429, 429, 503, 503]
        assert first.result()[0] == 503
        slow.go.set()
        assert client.predict(request)[0] == 200


def slow_began(slow: Slow) -> bool:
    return any(thread.name.startswith("model") for thread in threading.enumerate())


def test_a_token(model: TrainedModel, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef0123\n")
    file.chmod(0o644)
    with pytest.raises(FedalcError, match="chmod 600"):
        Token.read(file)
    file.chmod(0o600)
    token = Token.read(file)
    assert "0123" not in repr(token)
    request = {"features": rows(1).tolist()}
    with serving(model, token=token) as (client, _):
        assert client.predict(request)[0] == 401
        assert client.predict(request, Authorization="Bearer 0123456789abcdef0124")[0] == 401
        assert client.predict(request, Authorization="0123456789abcdef0123")[0] == 401
        assert client.predict(request, Authorization="Bearer 0123456789abcdef0123")[0] == 200
        assert client.ask("GET", "/labels")[0] == 401 and client.ask("GET", "/health")[0] == 200
    for content in ("short", "two words of at least sixteen", "", "ä" * 20):
        file.write_text(content)
        with pytest.raises(FedalcError, match="at least 16 ASCII"):
            Token.read(file)
    with pytest.raises(FedalcError, match="cannot be read"):
        Token.read(tmp_path / "absent")


def test_texts() -> None:
    text = fit_text(TEXTS, TextSettings())
    model = make_model(feature_count=text.feature_count, name="linear", output="raw", features="unit")
    model = TrainedModel(model.model, model.encoder, model.label_names, model.held, text)
    with serving(model, Limits(window=0.1)) as (client, _), ThreadPoolExecutor(3) as pool:
        X = text.transform(TEXTS)
        asked = [
            pool.submit(client.predict, {"texts": TEXTS[:2]}),
            pool.submit(client.predict, {"features": X[2].toarray().tolist()}),
            pool.submit(client.predict, {"texts": TEXTS[3:]}),
        ]
        for each, part in zip(asked, (X[:2], X[2], X[3:]), strict=True):
            assert each.result() == (200, {"predictions": as_json(model, part, 5)})


@pytest.mark.long
def test_pictures() -> None:
    image = pytest.importorskip("PIL.Image")
    model = make_model(name="resnet-small", output="raw")
    pixels = np.random.default_rng(1).integers(0, 256, (2, SIDE, SIDE, 3)).astype(np.uint8)
    files = []
    for each in pixels:
        file = io.BytesIO()
        image.fromarray(each).save(file, "PNG")
        files.append(base64.b64encode(file.getvalue()).decode())
    from fedalc.data.images.images import Images

    with serving(model) as (client, _):
        wanted = as_json(model, Images(pixels, ["0", "1"]), 3)
        assert client.predict({"pictures": files, "top": 3}) == (200, {"predictions": wanted})
        for picture, said in (("§", "number 0 is not base64"), ("aGVsbG8=", "not a picture of a known format")):
            code, answer = client.predict({"pictures": [picture]})
            assert code == 422 and said in answer["error"]


def test_probabilities_and_thresholds(model: TrainedModel) -> None:
    draw = np.random.default_rng(5)
    X, Y = rows(80, seed=7), csr_matrix((draw.random((80, len(model.label_names))) < 0.3).astype(np.float32))
    fitted = fit_calibration([held_out_scores(model.scorer(X), Y, model.held)], len(model.label_names))
    calibrated = replace(model, calibration=fitted)
    asked = {"features": X[:3].tolist()}
    with serving(calibrated, Limits(window=0.1)) as (client, _), ThreadPoolExecutor(3) as pool:
        answers = [
            pool.submit(client.predict, {**asked, **options})
            for options in ({"top": 2, "probabilities": True}, {"threshold": 0.3}, {"threshold": "f1", "top": 1})
        ]
        (code, best), (_, sets), (_, first) = (each.result() for each in answers)
        assert code == 200
        labels, probabilities = calibrated.predict_proba(X[:3], k=2)
        for at, each in enumerate(best["predictions"]):
            assert [label["label"] for label in each["labels"]] == labels[at].tolist()
            assert [label["probability"] for label in each["labels"]] == pytest.approx(probabilities[at], abs=2e-6)
        wanted = calibrated.predict_sets(X[:3], 0.3)
        assert [sorted(label["label"] for label in each["labels"]) for each in sets["predictions"]] == [
            sorted(row.indices.tolist()) for row in wanted
        ]
        assert all(len(each["labels"]) <= 1 for each in first["predictions"])
        _, refused = client.predict({**asked, "abstain_below": 1.0, "threshold": "0.5"})
        assert all(
            each == {"instance": at, "labels": [], "abstained": True} for at, each in enumerate(refused["predictions"])
        )
        assert client.predict({**asked, "threshold": "0.3"}) == (200, sets)
        code, answer = client.predict({**asked, "threshold": "much"})
        assert code == 422 and "much" in answer["error"]


def test_a_model_without_probabilities_says_so(client: Client) -> None:
    code, answer = client.predict({"features": rows(1).tolist(), "probabilities": True})
    assert code == 422 and "fedalc calibrate" in answer["error"]


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "example.org")))


def test_the_command_refuses_before_it_serves(model: TrainedModel, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    with bound("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        assert "another --port" in run("serve", "model", "--port", port, cwd=tmp_path, code=2).stderr
    assert (
        "cannot listen on 192.0.2.1"
        in run("serve", "model", "--port", "0", "--host", "192.0.2.1", cwd=tmp_path, code=2).stderr
    )
    assert "token file cannot be read" in run("serve", "model", "--token-file", "no", cwd=tmp_path, code=2).stderr
    assert "no such folder" in run("serve", "absent", "--port", "0", cwd=tmp_path, code=2).stderr


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_requests_finish(model: TrainedModel, tmp_path: Path, number: int) -> None:
    """In a process of its own, as users start it."""
    model.save(tmp_path / "model")
    command = [sys.executable, "-m", "fedalc", "serve", "model", "--port", "0", "--batch-window", "1000"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline() + process.stderr.readline()
            port = int(said.partition("http://127.0.0.1:")[2].split()[0])
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(Client(port).predict, {"features": rows(1).tolist()})
                time.sleep(0.4)
                process.send_signal(number)
                assert asked.result()[0] == 200
            assert process.wait(30) == 0
            assert process.stderr.read().strip() == "stopped"
        finally:
            process.kill()
