"""What is true of a mutant: the components and kinds that are right answers, by the place that was changed.

Decided from the engines' code alone, before an audit had said anything. A place is a run of lines, from the line that
holds its text up to the next place; what is said of it holds for every change there, because most changes of one
variable break everything that reads it. An answer is ``component`` (every kind of it is right) or ``component/kind``.
Where nothing is named, a change can only cost speed or memory, or end the decoder. `crash` is right wherever the
decoder does crash or hang, and ``unattributed`` nowhere, though it is not false.

What the words cover, beyond their first meaning:

READ      the target's answers are read from wrong columns
OVER      a draft token counts as accepted though the target's answer differs; the engines emit the target's answers, so
          what is emitted is what the target said after a rejected draft token
UNFED     a token is never fed, or not kept: it is missing where it should be seen
REFED     which tokens are fed, and at which position, follows from one number: too many are seen, or too few, or at
          wrong positions
EXCHANGED the draft is asked where the target should be
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from mutation.mutator import FOLDER, Mutant

JUDGEMENTS = Path(__file__).with_name("judgements.json")

READ = "bookkeeping/wrong-correction bookkeeping/lost-token bookkeeping/repeated-token"
OVER = "bookkeeping/over-accept bookkeeping/wrong-correction"
UNFED = "cache/missing-entry"
REFED = "cache/missing-entry cache/duplicate-entry cache/stale-entry position bookkeeping/unverified"
EXCHANGED = "bookkeeping/unverified"
LOST_ROW = "bookkeeping/premature-stop"
RUNS_ON = "bookkeeping/over-length bookkeeping/past-eos"
MISPLACED = "mask position cache/misaligned"

Site = tuple[str, str] | tuple[str, str, Mapping[str, str]]
SITES: dict[str, tuple[Site, ...]] = {
    "eqspec.py": (
        ("class AlignedModel", ""),
        ("self.model, self.pad, self.side =", ""),
        ("self.lengths = [0] * batch", REFED),
        ("self.kept = torch.zeros(batch, 0", "mask"),
        ("width = max(map(len, blocks))", ""),
        ("left = self.side ==", "mask cache/missing-entry"),
        ("gap = width - len(block)", "bookkeeping/wrong-correction bookkeeping/lost-token"),
        ("before, after = (gap, 0)", READ),
        ("tokens.append([self.pad]", MISPLACED),
        ("real.append([False]", "mask cache/missing-entry cache/misaligned cache/stale-entry"),
        ("positions.append([0]", "position"),
        ("device = self.model.device", ""),
        ("self.kept = torch.cat([self.kept", "mask cache/misaligned cache/missing-entry cache/stale-entry"),
        ("output = self.model(", ""),
        ("input_ids=torch.tensor(tokens", ""),
        ("attention_mask=self.kept.long()", "mask/pad-visible cache/stale-entry"),
        ("position_ids=torch.tensor(positions", "position"),
        ("use_cache=True", UNFED),
        ("**cache_argument(self.model", UNFED),
        ("self.lengths = [n + len(block)", "position"),
        ("first = [[(width if left", READ),
        ("columns = torch.tensor(first", READ),
        ("logits: torch.Tensor = output.logits", READ),
        ("return logits[torch.arange(len(blocks)", READ),
        ("def realign", ""),
        ("kept = self.kept[list(rows)]", "cache mask/token-hidden"),
        ("rank = kept.cumsum(1)", "cache mask/token-hidden"),
        ("kept = kept & (rank <=", "cache mask", {"compare": "cache/missing-entry mask/token-hidden"}),
        ("order = kept.long().argsort(", "cache mask/token-hidden", {"compare": UNFED}),
        ("width = max(lengths)", UNFED),
        ("order = order[:, order.shape[1] - width", UNFED),
        ("index = torch.tensor(list(rows)", "cache"),
        ("for layer in self.cache.layers:", "cache", {"twin": "cache/torn-entry", "swap-elements": "cache/torn-entry"}),
        ("self.kept = kept.gather(1, order)", "mask cache/misaligned cache/stale-entry"),
        ("self.lengths = list(lengths)", REFED),
        ("class Eqspec(Engine)", ""),
        ("def room(self)", LOST_ROW),
        ("def _align", ""),
        ("self.verifier, self.drafter = (", EXCHANGED),
        ("def join", ""),
        ("def _prefill", ""),
        ("lengths = [row.cached for row in self.rows]", REFED),
        ("for start in range(0, max(lengths), chunk):", UNFED + " position"),
        ("for model in (self.verifier, self.drafter):", UNFED),
        ("model.feed([row.tokens[:-1]", REFED),
        ("self.stats.prefill_calls += 1", ""),
        ("if max(lengths):", ""),
        ("model.realign(range(len(lengths)), lengths)", "cache mask position"),
        ("def round(self)", ""),
        ("budgets = [row.budget", "bookkeeping/over-length"),
        ("choose = chooser(", ""),
        ("drafts = self._propose(budgets", ""),
        ("waiting = [row.tokens[n:] for row, n in zip(rows, self.verifier", REFED),
        (
            "blocks = [w + d[:k]",
            "position cache/stale-entry cache/missing-entry",
        ),
        ("self.stats.verify_calls += 1", ""),
        ("logits = self.verifier.feed(blocks", READ, {"twin": "bookkeeping/unverified"}),
        ("for row, budget, block in zip", READ),
        ("committed = row.commit(block)", f"{OVER} bookkeeping/over-length"),
        ("self.stats.count(budget", ""),
        ("going = [i for i, row in enumerate(rows)", f"{LOST_ROW} {RUNS_ON}"),
        ("self.rows = [rows[i] for i in going]", f"cache/wrong-row {LOST_ROW} bookkeeping/row-swap"),
        ("if going:", REFED),
        ("self._realign(going)", REFED),
        ("def _propose", ""),
        ("drafts = torch.empty(", ""),
        ("waiting = [row.tokens[n:] for row, n in zip(self.rows, self.drafter", ""),
        ("for step in range(max(budgets))", ""),
        ("blocks = [tokens if step < k else []", ""),
        ("drafts[:, step] = choose.propose(", "", {"twin": "cache position"}),
        ("waiting = drafts[:, step", ""),
        ("def _realign", REFED + " cache/stale-entry"),
        ("self.drafter.realign(going", "", {"twin": "cache position"}),
        ("self.stats.realignments += 1", ""),
        ("def select", "cache"),
        ("@eqcheck.decoder(", ""),
        ("batch_size, pad, side = len(request.prompts)", ""),
        ("return decode(Eqspec", "", {"twin": EXCHANGED, "swap-arguments": EXCHANGED}),
    ),
    "exspec.py": (
        ("POOL = 4", ""),
        ("class Group", ""),
        ("place = {id(row): i", "cache/wrong-row"),
        ("self.index = torch.tensor([place", "cache/wrong-row"),
        ("self.starts = [row.cached - row.behind", UNFED),
        ("width = self._width() + AHEAD", UNFED),
        ("self.models: list[RowModel]", "", {"twin": EXCHANGED}),
        ("def _width", UNFED),
        ("def fit", "cache"),
        ("def close", ""),
        ("written = [range(start, row.cached)", UNFED),
        ("slots = torch.tensor([slot for some", UNFED),
        ("source = torch.arange(len(written)", "cache"),
        ("for model, copy in zip(self.pool.models", "cache"),
        ("class Exspec", ""),
        ("self.pool = Pool(self.target, self.draft", "", {"twin": EXCHANGED, "swap-arguments": EXCHANGED}),
        ("self.rows = self.pool.rows", ""),
        ("rows = self.choose()", ""),
        ("if self.group is None or rows != self.group.rows", "cache"),
        ("self._close()", UNFED),
        ("with self.stats.timed(", ""),
        ("self.group = Group(self.pool, rows", "cache"),
        ("self.stats.realignments += not equal", ""),
        ("self.group.fit()", "cache"),
        ("target, draft = self.group.models", EXCHANGED),
        ("speculate(target, draft, rows", EXCHANGED, {"drop": ""}),
        ("self.stats.verify_calls += 1", ""),
        ("if any(row.finish_reason for row in rows):", RUNS_ON),
        ("self._close()", "cache"),
        ("self.pool.drop_finished()", RUNS_ON),
        ("return rows", ""),
        ("def choose", UNFED),
        ("def _close", "cache"),
        ("@eqcheck.decoder(", ""),
        ("return decode(Exspec", "", {"twin": EXCHANGED, "swap-arguments": EXCHANGED}),
    ),
    "ragged.py": (
        ("class Ragged", ""),
        ("took_part, k = self.let_in()", LOST_ROW),
        ("speculate(self.pool.target, self.pool.draft", EXCHANGED, {"drop": ""}),
        ("self.let_go()", RUNS_ON),
        ("return took_part", ""),
        ("return decode(Ragged", "", {"twin": EXCHANGED, "swap-arguments": EXCHANGED}),
    ),
    "serving/bounded.py": (
        ("class Bounded", ""),
        ("self.pool = Pool(self.target, self.draft", "", {"twin": EXCHANGED, "swap-arguments": EXCHANGED}),
        ("def room", ""),
        ("def join", LOST_ROW),
        ("def let_in", LOST_ROW),
        ("def let_go", ""),
        ("self.pool.drop_finished()", RUNS_ON),
        ("self.stats.kv_bytes", ""),
        ("def _check", ""),
    ),
    "serving/checks.py": (
        ("NO_LIMIT = 2**31", "position"),
        ("class OutOfMemory", ""),
        ("def window_of", "mask"),
        ("def position_oddity", ""),
        ("def max_positions", "position"),
        ("def check_prompt", ""),
    ),
    "serving/decoder.py": (
        ("def decode(", ""),
        ("engine = kind(target, draft", "", {"twin": EXCHANGED, "swap-arguments": EXCHANGED}),
        ("outputs: list[list[int]]", ""),
        ("outputs[update.id] += update.token_ids", "bookkeeping/lost-token", {"drop": LOST_ROW}),
        ("return outputs", ""),
        ("def _arriving", LOST_ROW),
        ("yield Prompt(request.prompts[i]", "bookkeeping/row-swap"),
    ),
    "serving/engine.py": (
        ("class Engine", ""),
        ("self.target, self.draft = target, draft", EXCHANGED),
        ("self.num_draft_tokens = at_least_one", ""),
        ("def busy", ""),
        ("def stream", ""),
        ("def _decode", LOST_ROW),
        ("def _step", LOST_ROW),
        ("def _check", ""),
    ),
    "serving/pool.py": (
        ("JOIN = 4", ""),
        ("def enough", ""),
        ("def slots_within", ""),
        ("class Pool", ""),
        ("self.target, self.draft = RowModel(target)", EXCHANGED),
        ("self.models = (self.target, self.draft)", EXCHANGED + " cache"),
        ("self.rows: list[Row] = []", ""),
        ("self.block, self.chunk, self.most = num_draft_tokens", UNFED),
        ("def draft_tokens", UNFED),
        ("def takes", LOST_ROW),
        ("def fit", UNFED),
        ("first = len(self.rows)", "cache"),
        ("self.rows += joining", LOST_ROW),
        ("self.fit()", ""),
        ("if not first and not self.chunk", "cache"),
        ("row.behind = row.unfed = row.cached", UNFED),
        ("return 0", ""),
        ("longest = max(row.cached", UNFED),
        (
            "padded = [row.tokens[:-1]",
            UNFED,
            {"swap-operands": "cache/duplicate-entry cache/missing-entry mask/pad-visible position"},
        ),
        ("ids = torch.tensor(padded", ""),
        ("step = self.chunk or", UNFED),
        ("starts = range(0, longest, step)", UNFED),
        ("for start in starts:", ""),
        ("for model in self.models:", UNFED),
        ("model.feed(ids[:, start : start + step]", "cache position"),
        ("return len(starts)", ""),
        ("def drop_finished", f"{LOST_ROW} {RUNS_ON} cache/wrong-row"),
        ("model.copy_row(len(self.rows), place", "cache/wrong-row"),
        ("self.fit()", ""),
    ),
    "serving/requests.py": (
        ("class PromptError", ""),
        ("self.tokens = list(prompt.token_ids)", ""),
        ("self.end = len(self.tokens) + prompt", f"bookkeeping/over-length {LOST_ROW}"),
        ("self.stop = frozenset(", "bookkeeping/past-eos"),
        ("self.behind = self.unfed = 0", REFED),
        ("self.waiting_since = 0", ""),
        ("self._reported = len(self.tokens)", "bookkeeping/prompt-in-output"),
        ("def cached", REFED),
        ("def budget", "bookkeeping/over-length"),
        ("for count, token in enumerate(block, start=1)", ""),
        ("self.tokens.append(token)", LOST_ROW),
        ("if token in self.stop:", f"{LOST_ROW} bookkeeping/past-eos"),
        ("if len(self.tokens) == self.end:", f"{LOST_ROW} bookkeeping/over-length"),
        (
            "new = self.tokens[self._reported :]",
            f"bookkeeping/lost-token bookkeeping/repeated-token bookkeeping/prompt-in-output {LOST_ROW}",
        ),
        ("self._reported = len(self.tokens)", "bookkeeping/repeated-token"),
        ("return Update(", ""),
    ),
    "serving/rounds.py": (
        ("unfed = rows[0].unfed", REFED),
        ("budgets = [row.budget", "bookkeeping/over-length"),
        ("k = max(budgets)", ""),
        ("choose = chooser(", ""),
        ("waiting = torch.tensor([row.tokens[-1 - unfed :]", REFED),
        ("drafts = propose(draft, rows, k, choose) if k", READ),
        ("starts = [row.cached - unfed", REFED),
        (
            "logits = target.feed(torch.cat([waiting, drafts]",
            READ,
            {"swap-elements": "position cache", "twin": EXCHANGED},
        ),
        ("for row, budget, block in zip", READ),
        ("committed = row.commit(block)", f"{OVER} bookkeeping/over-length"),
        ("row.behind, row.unfed = int(committed == k + 1)", REFED),
        ("stats.count(budget, len(block)", ""),
        ("def propose", ""),
        ("for step in range(k - 1):", f"{READ} {OVER}"),
        ("drafts.append(choose.propose(", f"{READ} {OVER}"),
        ("return torch.stack(drafts, dim=1)", ""),
    ),
    "serving/sampling.py": (
        ("SAMPLING = (", ""),
        ("class Greedy", ""),
        ("predicted = self.pick(logits)", ""),
        ("right = (predicted[:, :-1] == drafts)", OVER),
        ("answers = torch.cat(", READ),
        ("return [tokens[: min(n, k) + 1]", f"{OVER} {READ} bookkeeping/over-length"),
        ("def propose", ""),
        ("def pick", "bookkeeping/wrong-correction"),
        ("class Sampled", ""),
        ("def chooser", ""),
        ("def drawn", ""),
    ),
    "serving/row_cache.py": (
        ("ROOM = 1.5", ""),
        ("class WritePlan", "cache"),
        ("class RowLayer", "cache"),
        ("self.dtype, self.device, self.is_initialized =", UNFED),
        ("self.keys, self.values = (self.zeros", "cache"),
        ("def zeros", "cache"),
        ("if not self.is_initialized:", UNFED),
        ("return self._write(self.keys, key_states)", "cache"),
        ("def _write", "cache"),
        ("def get_seq_length", "mask"),
        ("def get_mask_sizes", "mask"),
        ("def resize", UNFED),
        ("class RowModel", ""),
        ("self.window, self.last_position = window_of(model)", "position mask"),
        ("self.keeps =", ""),
        ("layers = model.config.get_text_config()", ""),
        ("def fit", UNFED),
        ("def kv_bytes", ""),
        ("def feed", ""),
        ('keep = {"logits_to_keep"', READ),
        ("logits: torch.Tensor = self.run(", READ),
        ("def run", ""),
        ("rows, block = next(", "cache mask"),
        ("plan = self.plan", "cache mask"),
        ("plan.first, plan.start = first, max(offsets)", "cache position mask"),
        ("plan.width = plan.start + block", "cache mask"),
        ("columns = torch.arange(block", "position cache"),
        ("same = min(offsets) == plan.start", "cache position mask"),
        ("places = (columns + plan.start)", "cache position"),
        ("plan.slots = None if same else places", "cache"),
        ("at, seen = (places, None if same else", "mask cache/stale-entry position"),
        ("return self.model(", ""),
        ("attention_mask=None if seen is None", "mask cache/stale-entry"),
        ("position_ids=at.clamp(", "position"),
        ("use_cache=True", UNFED),
        ("**cache_argument(self.model", UNFED),
        ("def _seen", "mask cache/stale-entry"),
        ("def _mask", "mask cache/stale-entry"),
        ("def move", "cache"),
        ("def copy_row", "cache"),
        ("def gather", "cache"),
        ("def scatter", "cache"),
    ),
    "serving/stats.py": (("class Stats", ""),),
}


@lru_cache(maxsize=16)
def places(file: str) -> tuple[tuple[int, Site], ...]:
    """The first line of each place of a file; a place that is not found after the one before is an error."""
    lines = (FOLDER / file).read_text(encoding="utf-8").splitlines()
    found: list[tuple[int, Site]] = []
    for site in SITES[file]:
        after = found[-1][0] if found else 0
        at = next((number for number, line in enumerate(lines, 1) if number > after and site[0] in line), None)
        if at is None:
            raise LookupError(f"{file}: no line after {after} holds {site[0]!r}; mend tests/tools/mutation/truth.py")
        found.append((at, site))
    return tuple(found)


def answers(mutant: Mutant) -> tuple[str, ...]:
    """The right answers for a mutant, besides crashes."""
    site = next((site for line, site in reversed(places(mutant.file)) if line <= mutant.line), ("", ""))
    of_operator = site[2] if len(site) == 3 else {}
    return tuple(dict.fromkeys(of_operator.get(mutant.operator, site[1]).split()))


def judged(record: dict[str, Any]) -> dict[str, Any]:
    """A mutant's record, with whether component and kind are right.

    What is asserted outside the table is held against the changed code by hand: ``true`` is an answer that the table
    had not thought of, ``component`` one of which the kind is misleading, ``false`` one that is not so. So is an answer
    within the table whose explanation was found false all the same.
    """
    if not record.get("caught"):
        return record
    component, kind, allowed = record["component"], record["kind"], record["answers"]
    crash = component == "crash"
    component_right = crash or any(answer.partition("/")[0] == component for answer in allowed)
    kind_right = crash or component in allowed or f"{component}/{kind}" in allowed
    found = {**record, "component_right": component_right, "kind_right": kind_right}
    known = _judgements().get(f"{record['id']} {component}/{kind} on {record['case_id']}")
    if known or not (kind_right or component == "unattributed"):
        judgement, why = known or ("to judge", "")
        found.update(
            judgement=judgement,
            why=why,
            kind_right=judgement == "true",
            component_right=judgement in ("true", "component") or (component_right and judgement != "false"),
        )
    return found


@lru_cache(maxsize=1)
def _judgements() -> dict[str, tuple[str, str]]:
    """By mutant, answer and minimised case, what a person found and why."""
    found: dict[str, tuple[str, str]] = json.loads(JUDGEMENTS.read_text(encoding="utf-8"))
    return found
