"""mlx-lm 0.32: a server with a draft model answers the second of two equal requests otherwise than the first.

eqcheck checkpoint write full target --draft draft && python <this file> target draft
"""

import json
import subprocess
import sys
import time
import urllib.request


def answers(*options: str) -> list[str]:
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", sys.argv[1], "--port", "8123", *options]
    body = json.dumps(
        {"prompt": "".join(f"[{token}]" for token in range(12)), "max_tokens": 7, "temperature": 0}
    ).encode()
    asked = urllib.request.Request("http://127.0.0.1:8123/v1/completions", body, {"Content-Type": "application/json"})
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(120):
            try:
                return [json.load(urllib.request.urlopen(asked))["choices"][0]["text"] for _ in range(2)]
            except OSError:
                time.sleep(0.5)
        raise SystemExit("the server did not start")
    finally:
        server.kill()
        server.wait()


alone, drafted = answers(), answers("--draft-model", sys.argv[2], "--num-draft-tokens", "3")
print(f"without a draft: {alone}\nwith a draft: {drafted}")
raise SystemExit(alone[0] == alone[1] == drafted[0] != drafted[1])
