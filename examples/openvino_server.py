"""OpenVINO GenAI as a server of completions for `eqcheck gate`: ``python openvino_server.py MODEL [--draft DRAFT]``.

MODEL and DRAFT are folders that ``optimum-cli export openvino`` made. Rows are decoded by the continuous batching
pipeline, with a draft model or without. GenAI tells no scores of a given row, so ``prompt_logprobs`` are read from the
same model, run by OpenVINO itself.
"""

import argparse
import json
import queue
import threading
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import openvino
import openvino_genai as genai
from transformers import AutoConfig, AutoTokenizer


class Engine:
    """One pipeline, stepped by a thread of its own; requests join between steps."""

    def __init__(self, model, draft, num_draft_tokens):
        options = {"draft_model": genai.draft_model(draft, "CPU")} if draft else {}
        self.depth = num_draft_tokens if draft else 0
        self.pipeline = genai.ContinuousBatchingPipeline(model, genai.SchedulerConfig(), "CPU", options)
        self.tokenizer, ends = AutoTokenizer.from_pretrained(model), AutoConfig.from_pretrained(model).eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [ends])
        self.scorer = openvino.Core().compile_model(f"{model}/openvino_model.xml", "CPU").create_infer_request()
        self.scoring, self.waiting = threading.Lock(), queue.Queue()
        threading.Thread(target=self.run, daemon=True).start()

    def config(self, asked):
        config = genai.GenerationConfig()
        config.max_new_tokens, config.logprobs = asked.get("max_tokens", 16), 1
        config.temperature = asked.get("temperature", 1.0)
        config.do_sample = config.temperature > 0
        if config.do_sample:
            config.top_k, config.top_p = 2**31, 1.0
            config.rng_seed = asked["seed"] if asked.get("seed") is not None else np.random.randint(2**31)
        config.eos_token_id = min(self.ends)
        config.stop_token_ids = self.ends | set(asked.get("stop_token_ids") or ())
        if self.depth:
            config.num_assistant_tokens = self.depth
        return config

    def ask(self, ids, asked):
        answer = Future()
        self.waiting.put((openvino.Tensor(np.array([ids], np.int64)), self.config(asked), answer))
        return answer

    def run(self):
        running, number = [], 0
        while True:
            while not running or not self.waiting.empty():
                prompt, config, answer = self.waiting.get()
                running.append((self.pipeline.add_request(number, prompt, config), answer))
                number += 1
            self.pipeline.step()
            for handle, answer in running:
                if str(handle.get_status()).rpartition(".")[2] != "RUNNING":
                    answer.set_result(handle.read_all()[0])
            running = [(handle, answer) for handle, answer in running if not answer.done()]

    def laws(self, ids):
        """The log-probabilities after each token of a row ``[len(ids), vocabulary]``."""
        size = len(ids)
        with self.scoring:
            self.scorer.reset_state()
            fed = {"input_ids": [ids], "attention_mask": [[1] * size], "position_ids": [range(size)]}
            fed = {name: np.array(values, np.int64) for name, values in fed.items()}
            logits = self.scorer.infer(fed | {"beam_idx": np.zeros(1, np.int32)})["logits"][0].astype(np.float64)
        shifted = logits - logits.max(-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


class Server(ThreadingHTTPServer):
    request_queue_size = 128


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def do_GET(self):
        self.answer({"data": [{"id": "openvino"}]} if self.path == "/v1/models" else None)

    def do_POST(self):
        asked, engine = json.loads(self.rfile.read(int(self.headers["Content-Length"]))), self.server.engine
        if self.path == "/tokenize":
            self.answer({"tokens": engine.tokenizer(asked["prompt"])["input_ids"]})
        else:
            self.answer(self.completed(engine, asked) if self.path == "/v1/completions" else None)

    def completed(self, engine, asked):
        ids = engine.tokenizer(asked["prompt"])["input_ids"] if isinstance(asked["prompt"], str) else asked["prompt"]
        told = engine.ask(ids, asked).result()
        tokens = list(told.generated_ids)
        reason = str(told.finish_reason).rpartition(".")[2].lower()
        row = {"text": "", "finish_reason": reason, "token_ids": tokens, "prompt_token_ids": ids}
        row["logprobs"] = {"token_logprobs": [float(score) for score in told.generated_log_probs]}
        if (count := asked.get("prompt_logprobs")) is not None:
            row["prompt_logprobs"] = [None, *map(likeliest, ids[1:], engine.laws(ids), [count] * len(ids))]
        return {"choices": [row]}

    def answer(self, data):
        body = json.dumps(data or {"error": {"message": f"no {self.path}"}}).encode()
        self.send_response(200 if data else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def likeliest(token, law, count):
    return {int(one): {"logprob": float(law[one])} for one in (token, *np.argsort(-law)[:count])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--draft")
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    server = Server(("127.0.0.1", given.port), Handler)
    server.engine = Engine(given.model, given.draft, given.num_draft_tokens)
    print("ready", flush=True)
    server.serve_forever()
