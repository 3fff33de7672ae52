# mypy: ignore-errors
"""Pages by hand that rows with one beginning share, copied on write; all tokens of a call stand in one row.

Rows join and leave, and prompts are fed in chunks beside rows that decode. Target and draft share the noise of a row.
"""

import random

import torch

import eqcheck

SIZE, RUNNING, CHUNK = 4, 3, 9


class Pool:
    """Pages of one model."""

    def __init__(self, model):
        self.model, self.layers, self.refs, self.known = model, {}, [], {}

    def take(self):
        page = self.refs.index(0) if 0 in self.refs else len(self.refs)
        self.refs[page:] = self.refs[page:] or [0]
        self.refs[page] = 1
        return page

    def drop(self, page):
        self.refs[page] -= 1
        if self.refs[page] == 0:
            self.known = {text: p for text, p in self.known.items() if p != page}

    def share(self, line):
        """Pages that hold the beginning of a line, and how many tokens they hold."""
        table, held = [], 0
        while (stop := held + SIZE) < len(line) and tuple(line[:stop]) in self.known:
            table.append(self.known[tuple(line[:stop])])
            held = stop
        if held == (len(line) - 1) // SIZE * SIZE < len(line) - 1 and ("part", *line[:-1]) in self.known:
            table.append(self.known[("part", *line[:-1])])
            held = len(line) - 1
        for page in table:
            self.refs[page] += 1
        return table, held

    def register(self, view, prompt):
        for number, page in enumerate(view.table):
            stop = (number + 1) * SIZE
            if stop <= min(view.held, len(prompt)):
                self.known.setdefault(tuple(prompt[:stop]), page)
            elif view.held == len(prompt) - 1 and number == (len(prompt) - 1) // SIZE and view.held % SIZE:
                self.known.setdefault(("part", *prompt[:-1]), page)

    def copy(self, page):
        new = self.take()
        for pair in self.layers.values():
            for i, held in enumerate(pair):
                pair[i] = held = grown(held, len(self.refs) * SIZE)
                held[new * SIZE : (new + 1) * SIZE] = held[page * SIZE : (page + 1) * SIZE]
        self.drop(page)
        return new

    def feed(self, work):
        """work: (view, tokens) of each row; the logits [tokens, vocabulary] of each."""
        ids, positions, write, read, owner, limit = [], [], [], [], [], []
        for number, (view, tokens) in enumerate(work):
            first, last = view.held, view.held + len(tokens)
            for index in range(first // SIZE, (last - 1) // SIZE + 1):
                if index == len(view.table):
                    view.table.append(self.take())
                elif self.refs[view.table[index]] > 1:
                    view.table[index] = self.copy(view.table[index])
            where = [view.table[p // SIZE] * SIZE + p % SIZE for p in range(last)]
            ids += tokens
            positions += range(first, last)
            write += where[first:]
            read += where
            owner += [number] * last
            limit += range(last)
            view.held = last
        mine = torch.tensor([n for n, (_, tokens) in enumerate(work) for _ in tokens])
        at = torch.tensor(positions)
        mask = (torch.tensor(owner) == mine[:, None]) & (torch.tensor(limit) <= at[:, None])
        logits = self.model(
            input_ids=torch.tensor([ids]),
            attention_mask=mask[None, None],
            position_ids=at[None],
            past_key_values=Call(self, write, read),
        ).logits[0]
        return logits.split([len(tokens) for _, tokens in work])


def grown(held, slots):
    if len(held) >= slots:
        return held
    return torch.cat([held, held.new_zeros(slots - len(held), *held.shape[1:])])


class Call:
    def __init__(self, pool, write, read):
        self.pool, self.write, self.read = pool, torch.tensor(write), torch.tensor(read)

    def get_seq_length(self, layer_idx=0):
        return len(self.read) - len(self.write)

    def update(self, keys, values, layer_idx, *_, **__):
        pair = self.pool.layers.setdefault(
            layer_idx, [new.new_zeros(0, new.shape[1], new.shape[3]) for new in (keys, values)]
        )
        for i, new in enumerate((keys, values)):
            pair[i] = grown(pair[i], len(self.pool.refs) * SIZE)
            pair[i][self.write] = new[0].transpose(0, 1)
        return tuple(held[self.read].transpose(0, 1)[None] for held in pair)


class View:
    """A row's pages in one pool."""

    def __init__(self, pool, line):
        self.pool = pool
        self.table, self.held = pool.share(line)

    def trim(self, length):
        self.held = min(self.held, length)
        while len(self.table) > -(-self.held // SIZE):
            self.pool.drop(self.table.pop())

    def close(self):
        for page in self.table:
            self.pool.drop(page)


class Row:
    def __init__(self, prompt, options, pools):
        self.prompt, self.options, self.output, self.drafts = prompt, options, [], []
        seed = options.seed if options.seed is not None else random.getrandbits(64)
        self.noise = f"{seed}"
        self.big, self.small = (View(pool, prompt) for pool in pools)

    @property
    def line(self):
        return self.prompt + self.output

    def draw(self, scores, index):
        """The token at an index of the output; the noise depends on seed and index alone."""
        options = self.options
        if options.temperature == 0:
            return int(scores.argmax())
        p = torch.softmax(scores.double() / options.temperature, -1)
        p, order = p.sort(descending=True, stable=True)
        if options.top_k:
            p[options.top_k :] = 0
        p = p / p.sum()
        if options.top_p < 1:
            p[1:][p.cumsum(0)[:-1] >= options.top_p] = 0
        p[p < options.min_p * p[0]] = 0
        u = random.Random(f"{self.noise}/{index}").random() * float(p.sum())
        return int(order[min(int((p.cumsum(0) <= u).sum()), int((p > 0).sum()) - 1)])

    def scores(self, logits):
        s = logits.double().clone()
        seen = sorted(set(self.prompt + self.output))
        s[seen] = torch.where(
            s[seen] > 0, s[seen] / self.options.repetition_penalty, s[seen] * self.options.repetition_penalty
        )
        if len(self.output) < self.options.min_new_tokens:
            s[list(self.options.eos_token_ids)] = -torch.inf
        return s

    def ended(self):
        return (bool(self.output) and self.output[-1] in self.options.eos_token_ids) or (
            len(self.output) >= self.options.max_new_tokens
        )


@eqcheck.decoder(
    name="packed_pages",
    padding_sides=("left", "right"),
    cache_states=("empty", "pads-huge", "pads-nan", "chunked", "late-rows"),
    capabilities=(
        "row-limits",
        "row-eos",
        "min-new-tokens",
        "repetition-penalty",
        "temperature",
        "top-k",
        "top-p",
        "min-p",
        "seeds",
    ),
    seeds="speculation",
)
def generate(target, draft, request):
    pools = Pool(target), Pool(draft)
    arrivals = request.arrivals or (0,) * len(request.prompts)
    waiting, running, outputs = list(range(len(request.prompts))), {}, [[] for _ in request.prompts]
    chunk, calls = request.prefill_chunk or CHUNK, 0
    while waiting or running:
        for i in sorted(waiting, key=lambda i: (max(arrivals[i] - calls, 0), i)):
            if len(running) < RUNNING and (arrivals[i] <= calls or not running):
                row = Row(request.prompts[i], request.rows[i], pools)
                waiting.remove(i)
                if row.options.max_new_tokens:
                    running[i] = row
        # draft for rows whose prompt is in
        for row in running.values():
            row.drafts = []
        for _ in range(request.num_draft_tokens):
            work = []
            for row in running.values():
                if (
                    row.big.held >= len(row.prompt) - 1
                    and len(row.drafts) < row.options.max_new_tokens - len(row.output) - 1
                ):
                    line = row.line + row.drafts
                    row.small.trim(len(line) - 1)
                    work.append((row, line[row.small.held :]))
            if not work:
                break
            answers = pools[1].feed([(row.small, tokens) for row, tokens in work])
            for (row, _), logits in zip(work, answers, strict=True):
                row.drafts.append(row.draw(logits[-1], len(row.output) + len(row.drafts)))
        for row in running.values():
            pools[1].register(row.small, row.prompt)
        # one call for all: chunks of prompts, and blocks that are verified
        work = []
        for row in running.values():
            line = row.line + row.drafts
            work.append((row.big, line[row.big.held :][: chunk if row.big.held < len(row.prompt) - 1 else None]))
        answers = pools[0].feed(work)
        calls += 1
        for (i, row), answer in zip(list(running.items()), answers, strict=True):
            if row.big.held < len(row.prompt):
                pools[0].register(row.big, row.prompt)
                continue
            for j, logits in enumerate(answer[-len(row.drafts) - 1 :]):
                token = row.draw(row.scores(logits), len(row.output))
                row.output.append(token)
                if row.ended() or j == len(row.drafts) or row.drafts[j] != token:
                    break
            row.big.trim(len(row.line) - 1)
            row.small.trim(len(row.line) - 1)
            pools[0].register(row.big, row.prompt)
            if row.ended():
                outputs[i] = row.output
                row.big.close()
                row.small.close()
                del running[i]
    return outputs
