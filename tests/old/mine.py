"""An adapter as users wrote them for eqcheck 0.2 at bcb459f: every claim, a class with hooks, and wrong decoders."""

import torch

import eqcheck


def _alone(target, prompt, request, options=None):
    ids = torch.tensor([prompt])
    limit = options.max_new_tokens if options else request.max_new_tokens
    eos = options.eos_token_ids if options else request.eos_token_ids
    row = []
    while len(row) < limit:
        scores = target(ids, use_cache=False).logits[0, -1]
        if options and options.temperature:
            token = int(torch.multinomial(torch.softmax(scores.double() / options.temperature, -1), 1))
        else:
            token = int(scores.argmax())
        row.append(token)
        if token in eos:
            break
        ids = torch.cat([ids, torch.tensor([[token]])], 1)
    return row


@eqcheck.decoder(
    name="all-claims",
    padding_sides=("left", "right"),
    families=("rotary", "learned"),
    cache_states=("empty", "pads-huge"),
    requires=("no-eos",),
    known={"bookkeeping/premature-stop": "https://example.org/1"},
    origin="a test",
    version="1.0",
    note="slow",
)
def right(target, draft, request):
    return [_alone(target, prompt, request) for prompt in request.prompts]


@eqcheck.decoder(name="short", padding_sides=("left", "right"))
def short(target, draft, request):
    return [_alone(target, prompt, request)[:-1] for prompt in request.prompts]


@eqcheck.decoder(name="warm", capabilities=("temperature",))
def warm(target, draft, request):
    """Ignores the temperature: every sampled row is greedy."""
    rows = request.rows or [None] * len(request.prompts)
    return [
        _alone(target, prompt, request, row and type(row)(row.max_new_tokens, row.eos_token_ids))
        for prompt, row in zip(request.prompts, rows)
    ]


@eqcheck.decoder(name="remembers")
class Remembers:
    """Its second request is answered wrongly."""

    def open(self):
        self.calls = 0

    def close(self):
        pass

    def __call__(self, target, draft, request):
        self.calls += 1
        rows = [_alone(target, prompt, request) for prompt in request.prompts]
        return [row[:-1] if self.calls % 3 == 0 else row for row in rows]
