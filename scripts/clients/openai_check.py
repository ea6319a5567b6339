"""PyPI's `openai` on `/openai/v1`: models, chat, streaming, embeddings, files, and a batch during which the server is killed.

    openai_check.py BINARY DOCKER_HOST IMAGE FOLDER

Called by scripts/clients-check with the Python of its virtual environment. IMAGE contains `/model-server` (examples/models);
FOLDER is empty.
"""

import json
import subprocess
import sys
import time
import urllib.request

import openai

BINARY, DOCKER, IMAGE, FOLDER = sys.argv[1:]
LINES = 1000
LIMIT_S = 600
MODELS = ["llama", "mistral"]
MESSAGES = [{"role": "user", "content": "hello"}]


class Server:
    """A server with one port and one database over restarts."""

    def __init__(self):
        self.port, self.process = 0, None
        self.start()

    def start(self):
        serve = [BINARY, "serve", "--listen", f"127.0.0.1:{self.port}", "--docker-host", DOCKER, "--node", "clients"]
        self.process = subprocess.Popen(serve, cwd=FOLDER, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().split("serves on ")[1].split()[0]
        self.port = int(self.url.rsplit(":", 1)[1])

    def kill_and_start(self):
        self.process.kill()
        self.process.wait()
        self.start()

    def cli(self, *args, env=None):
        return subprocess.run([BINARY, "--url", self.url, *args], cwd=FOLDER, check=True, capture_output=True, env=env).stdout


def declare(server, token):
    env = {"WINDLASS_TOKEN": token}
    for model in MODELS:
        server.cli(
            "runtime", "set", model, "--image", IMAGE, "--port", "8080", "--probe", "8080/health", "--stop-grace-s", "0",
            "--", "/model-server", model, "0.5", env=env,
        )  # fmt: skip
    members = [word for model in MODELS for word in ("--member", f"{model}={model}")]
    server.cli("pool", "set", "gpu", *members, "--at-once", "4", "--starvation-s", "60", env=env)


def take_away(server, token):
    env = {"WINDLASS_TOKEN": token}
    server.cli("pool", "delete", "gpu", env=env)
    for model in MODELS:
        server.cli("runtime", "delete", model, env=env)


def check_models(client):
    assert sorted(model.id for model in client.models.list()) == MODELS
    assert client.models.retrieve("llama").owned_by == "gpu"
    try:
        client.chat.completions.create(model="absent", messages=MESSAGES)
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error
    else:
        raise SystemExit("an unknown model was found")
    try:
        openai.OpenAI(base_url=client.base_url, api_key="windlass_wrong").models.list()
    except openai.AuthenticationError as error:
        assert error.code == "invalid_token", error
    else:
        raise SystemExit("a wrong key was accepted")


def check_answers(client, endpoint):
    chat = client.chat.completions.create(model="llama", messages=MESSAGES)
    assert chat.choices[0].message.content.startswith("llama received"), chat
    assert chat.usage.total_tokens == 2, chat
    # The first word arrives before the model sends the others.
    answer = client.chat.completions.create(model="llama", messages=[{"role": "user", "content": "wait for /go"}], stream=True)
    words = [next(answer).choices[0].delta.content]
    with urllib.request.urlopen(f"{endpoint('llama')}/go", timeout=LIMIT_S):
        words += [chunk.choices[0].delta.content for chunk in answer]
    assert "".join(words) == "one two three four five", words
    assert client.embeddings.create(model="mistral", input="x", encoding_format="float").data[0].embedding[0] == 0.5
    assert client.completions.create(model="mistral", prompt="x").choices[0].text.startswith("mistral")


def line(number):
    body = {"model": MODELS[number % 2], "messages": [{"role": "user", "content": f"question {number}"}]}
    return json.dumps({"custom_id": f"q-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})


def check_batch(client, server):
    content = "\n".join(line(number) for number in range(LINES)).encode()
    file = client.files.create(file=("questions.jsonl", content), purpose="batch")
    assert client.files.retrieve(file.id).bytes == len(content)
    assert client.files.content(file.id).read() == content
    assert [one.id for one in client.files.list()] == [file.id]
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"of": "questions"}
    )
    began, killed = time.monotonic(), None
    while batch.status != "completed":
        assert batch.status in ("validating", "in_progress", "finalizing"), batch
        assert time.monotonic() < began + LIMIT_S, batch
        if killed is None and batch.request_counts.completed > 50:
            killed = batch.request_counts.completed
            server.kill_and_start()
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    assert killed, "the batch was done before the server could be killed"
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (LINES, LINES, 0), batch
    assert batch.metadata == {"of": "questions"} and batch.error_file_id is None and batch.completed_at, batch
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert sorted(answer["custom_id"] for answer in answers) == sorted(f"q-{number}" for number in range(LINES))
    for answer in answers:
        number = int(answer["custom_id"].removeprefix("q-"))
        asked = len(json.dumps(json.loads(line(number))["body"]))
        said = answer["response"]["body"]
        assert said["choices"][0]["message"]["content"] == f"{MODELS[number % 2]} received {asked} bytes", answer
    assert [one.id for one in client.batches.list()] == [batch.id]
    assert client.files.delete(file.id).deleted
    return killed, time.monotonic() - began


def check_refusal_and_cancel(client):
    file = client.files.create(file=("odd.jsonl", b'{"custom_id": "a"}\n'), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    batch = until(client, batch, "failed")
    assert batch.errors.data[0].line == 1 and batch.errors.data[0].code == "invalid_json_line", batch
    content = "\n".join(line(number) for number in range(LINES)).encode()
    file = client.files.create(file=("many.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    until(client, batch, "in_progress")
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = until(client, batch, "cancelled")
    assert batch.request_counts.completed + batch.request_counts.failed == LINES, batch
    errors = [json.loads(line) for line in client.files.content(batch.error_file_id).text.splitlines()]
    assert len(errors) == batch.request_counts.failed and errors[-1]["error"]["code"] == "batch_cancelled", errors[-1]


def until(client, batch, status):
    deadline = time.monotonic() + LIMIT_S
    while batch.status != status:
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def main():
    server = Server()
    try:
        made = server.cli("token", "create", "--database", "sqlite:windlass.db", "--role", "admin", "--name", "check", "--output", "json")
        token = json.loads(made)["token"]
        declare(server, token)
        client = openai.OpenAI(base_url=f"{server.url}/openai/v1", api_key=token, max_retries=5)
        check_models(client)
        show = lambda model: server.cli("runtime", "show", model, "--output", "json", env={"WINDLASS_TOKEN": token})
        check_answers(client, lambda model: json.loads(show(model))["endpoint"])
        killed, took = check_batch(client, server)
        check_refusal_and_cancel(client)
        take_away(server, token)
        print(
            f"PyPI's openai {openai.__version__}: models, chat, streaming, embeddings, files, a refused and a cancelled batch, and one of "
            f"{LINES} lines, complete and exact in {took:.0f} s with the server killed after {killed}"
        )
    finally:
        server.process.terminate()
        server.process.wait(30)


main()
