"""Search the smallest requests that show a wrong row again: fewer at once, a shorter prompt, an option less."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from eqcheck.core.shrinking.items import kept, spans
from eqcheck.core.shrinking.numbers import below
from eqcheck.core.shrinking.reducer import Budget, Shrinking, first
from eqcheck.core.shrinking.tokens import behind_first
from eqcheck.gate.bets import ends_so
from eqcheck.gate.compared_rows import ENDS, Row, Wanted
from eqcheck.gate.comparison import Gate

TRIES = 3  # a request has to show the wrong row each time
MOST = 300  # rows that are asked for in a search
ROWS = 64  # that a script draws on each server


class Requests(NamedTuple):
    """Requests that are sent at once, and the number of that whose row is wrong."""

    requests: tuple[Wanted, ...]
    shown: int

    def but(self, number: int, **changes: Any) -> Requests:
        """Return these requests with one changed."""
        changed = replace(self.requests[number], **changes)
        return Requests((*self.requests[:number], changed, *self.requests[number + 1 :]), self.shown)


class SmallestSearch:
    """A search for the smallest case that shows a row as wrong as it was: ``kind`` is one of `ENDS`, or another.

    A smaller case is kept if it shows the wrong row in all tries; ``row`` is its last answer. No more than `MOST` rows
    are asked for. With a ``length`` of `eqcheck.gate.bets.LENGTHS` the plain server's row of the same request shows
    that it is wrong.
    """

    def __init__(self, gate: Gate, kind: str, length: str = "") -> None:
        self.gate, self.kind, self.length = gate, kind, length
        self.row: Row | None = None
        self._budget = Budget(MOST)

    @property
    def asked(self) -> int:
        """Return how many rows were asked for so far."""
        return int(MOST - self._budget.tries)

    def smallest(self, wrong: Row) -> Requests | None:
        """Return the smallest case; None if the row is right in a try, alone and with the rows that ran with it."""
        number = next(at for at, row in enumerate(self.gate.rows) if row is wrong)
        begin = max(number - wrong.place, number - wrong.concurrency + 1)
        beside = self.gate.rows[begin : begin + wrong.concurrency]
        whole = Requests(tuple(replace(row.asked, prompt=row.answer.prompt) for row in beside), number - begin)
        found = first((Requests((whole.requests[whole.shown],), 0), whole), self._shown)
        if found is None:
            return None
        case, row = found
        search = Shrinking(case, row, lambda smaller, _: self._shown(smaller))
        search.run(
            lambda: search.greedy(_fewer),
            lambda: search.greedy(self._plainer),
            lambda: search.greedy(_shorter),
            lambda: search.greedy(self._plainer),  # a shorter prompt may be wrong sooner
        )
        return search.case

    @property
    def at(self) -> int:
        """Return the index of the wrong token: the first that exceeds, or else the last."""
        assert self.row is not None
        beyond = None if self.kind in ENDS else self.row.beyond(self.gate.threshold)
        return len(self.row.answer.tokens) - 1 if beyond is None else beyond

    def _shown(self, case: Requests) -> Row | None:
        """Return the wrong row as it was in the last try; None if it was right in one."""
        for _ in range(TRIES):
            self._budget.spend(len(case.requests))
            server = self.gate.speculative
            answer = server.each(server.complete, case.requests, len(case.requests))[case.shown]
            places = () if self.kind in ENDS else tuple(self.gate.plain.scored(answer.prompt, answer.tokens))
            row = Row(0, case.requests[case.shown], answer, places, len(case.requests), case.shown)
            if not (self._ends_so(row) if self.kind in ENDS else row.beyond(self.gate.threshold) is not None):
                return None
        self.row = row
        return row

    def _plainer(self, case: Requests) -> Iterator[Requests]:
        """Lower the limit of the row, then leave out an option of a request."""
        limit = case.requests[case.shown].max_tokens
        smaller = [case.but(case.shown, max_tokens=each) for each in below(limit, 1, self.at + 1, limit // 2)]
        for number in range(len(case.requests)):
            smaller += [case.but(number, stops=()), case.but(number, temperature=0.0, seed=None)]
        yield from smaller

    def _ends_so(self, row: Row) -> bool:
        if not self.length:
            return row.wrong_end(self.gate.ends) == self.kind
        return ends_so(self.length, row, replace(row, answer=self.gate.plain.complete(row.asked)))


def _fewer(case: Requests) -> Iterator[Requests]:
    """Leave out all other requests, then half of them, at last one."""
    others = [number for number in range(len(case.requests)) if number != case.shown]
    for gone in spans(len(others), len(others)):
        numbers = sorted((case.shown, *kept(tuple(others), gone)))
        yield Requests(tuple(case.requests[number] for number in numbers), numbers.index(case.shown))


def _shorter(case: Requests) -> Iterator[Requests]:
    """Shorten a prompt; its first token may be special, and stays."""
    for number, one in enumerate(case.requests):
        yield from (case.but(number, prompt=prompt) for prompt in behind_first(one.prompt))


def curls(gate: Gate, case: Requests) -> dict[str, str]:
    """Return a curl command for each server: all requests for the speculative one, the wrong one for the plain one."""

    def line(server: Any, asked: Sequence[Wanted]) -> str:
        calls = (server.call(one) for one in asked)
        head = "-H 'Content-Type: application/json' -d"
        return " & ".join(f"curl {shlex.quote(url)} {head} {shlex.quote(json.dumps(body))}" for url, body in calls)

    return {
        "speculative": line(gate.speculative, case.requests),
        "plain": line(gate.plain, case.requests[case.shown :][:1]),
    }


def script(gate: Gate, case: Requests, at: int | None) -> str:
    """Return a script of the standard library that shows the wrong row, and its wrong token, on both servers."""
    servers = tuple((server.url, server.model) for server in (gate.speculative, gate.plain))
    told = _SCRIPT.format(servers=servers, bodies=[one.body("") for one in case.requests], shown=case.shown)
    return told if at is None else told + _BEHIND.format(at=at)


_SCRIPT = '''"""Show a wrong row of a server with speculation and the plain server's row. Written by eqcheck gate."""
import json, os, urllib.request
from concurrent.futures import ThreadPoolExecutor

SPECULATIVE, PLAIN = {servers}
REQUESTS = {bodies}
SHOWN = {shown}  # the wrong request


def ask(server, body):
    headers = {{"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("EQCHECK_API_KEY", "")}}
    data = json.dumps(body | {{"model": server[1]}}).encode()
    answer = urllib.request.urlopen(urllib.request.Request(server[0] + "/completions", data, headers))
    row = json.load(answer)["choices"][0]
    ids = row.get("token_ids")
    return [each["id"] for each in row["logprobs"]["content"]] if ids is None else ids, row["finish_reason"]


with ThreadPoolExecutor(len(REQUESTS)) as pool:
    tokens, reason = list(pool.map(lambda body: ask(SPECULATIVE, body), REQUESTS))[SHOWN]
row = REQUESTS[SHOWN]
for name, (ids, end) in (("expected", ask(PLAIN, row)), ("got", (tokens, reason))):
    print(f"{{name:9}}", *(f"{{token:6}}" for token in ids), f"  {{len(ids)}} of {{row['max_tokens']}} tokens, {{end}}")
'''
_BEHIND = """after = row | {{"prompt": row["prompt"] + tokens[:{at}], "max_tokens": 1}}
print("token {at} is", tokens[{at}], "but after the same tokens the plain server returns", ask(PLAIN, after)[0][0])
"""


def sampled_script(gate: Gate, asked: Wanted) -> str:
    """Return a script that samples a request many times on both servers and has the plain one score the rows."""
    if gate.plain.scoring != "prompt_logprobs":
        return ""
    servers = tuple((server.url, server.model) for server in (gate.speculative, gate.plain))
    return _SAMPLED_SCRIPT.format(servers=servers, body=replace(asked, seed=None).body(""), rows=ROWS)


_SAMPLED_SCRIPT = '''"""Sample a request often on two servers; the plain one scores rows. Written by eqcheck gate."""
import json, os, urllib.request
from concurrent.futures import ThreadPoolExecutor

SPECULATIVE, PLAIN = {servers}
REQUEST = {body}

def ask(server, body):
    headers = {{"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("EQCHECK_API_KEY", "")}}
    data = json.dumps(body | {{"model": server[1]}}).encode()
    answer = urllib.request.urlopen(urllib.request.Request(server[0] + "/completions", data, headers))
    return json.load(answer)["choices"][0]

def scores(server, seed):
    tokens = ask(server, REQUEST | {{"seed": seed}})["token_ids"]
    row = {{"prompt": REQUEST["prompt"] + tokens, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}}
    told = ask(PLAIN, row)["prompt_logprobs"][len(REQUEST["prompt"]):]
    return [at[str(token)]["logprob"] for at, token in zip(told, tokens)]

for name, server in (("speculative", SPECULATIVE), ("plain", PLAIN)):
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda seed: scores(server, seed), range({rows})))
    means = [sum(each) / len(each) for each in ([row[at] for row in rows if len(row) > at] for at in range(64)) if each]
    print(f"{{name:12}} mean log-probability by place:", *(f"{{mean:.2f}}" for mean in means))
'''
