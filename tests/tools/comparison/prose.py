"""What the report says in words."""

INTRODUCTION = """# The same faults, seen by the tests in use

Every fault that changes the output of an ordinary Llama or GPT-2,
{compared} of {total}, is switched into its engine, one at a time, and the engine is put through the equivalence
tests that are in use today and through eqcheck. {draft_side} faults of the draft side and {other} that need another
set-up are counted apart, below. Each test is run twice: *as used*, as its source describes it, and *at its best*,
with what distinguishes it kept (what is compared, how many tokens and prompts) and everything around it chosen in
its favour. False alarms are counted on the {good} known-good decoders of the catalogue that speculate.
`make comparison` writes this report and `comparison.json` anew.
"""

HOW = """## How each test is set up

All run on tiny random models (2 layers, width 32, 128 tokens) built from a configuration and a seed, and compare
token ids. *Weights* is the standard deviation of the initial weights: 0.02 is transformers' default, 0.3 with an
untied output gives varied text. A *noisy* draft is a copy of the target with Gaussian noise in its weights; *agree*
is the share of places at which a draft proposes the target's token. Rows end at no token, at token 2 (Llama's
default), at two tokens out of the *middle* of the target's outputs, or at the two most *common* in them. The pad is
the first token that ends rows, as where a tokenizer has no pad.

At its best, every test gets Llama and GPT-2 (only GPT-2 shows a constant offset of positions), prompts of different
lengths from one token on in one batch, a draft that is partly right, rows that end inside a block, and float64, in
which a difference is never noise. The types as used: float32, which is what transformers' tests run in, and in
which these models have no near-ties, so no test as used is made to fail by noise; vLLM, SGLang and the paper run in
16 bits, which the column of bfloat16 stands for.
"""

SIMPLIFIED = """Simplified against the sources:

- All: random weights instead of trained ones; token ids instead of text, which is stricter; the reference is greedy
  decoding with a cache at batch 1; a wrong number of rows counts as a crash. A test stops at the first run that
  fails, and within a run where the rest could not save it.
- transformers: generates with the engine instead of `generate`; equal tokens are asked for, where the source also
  lets outputs pass whose scores are close at the first difference; shapes of scores and attentions are not checked.
  At its best it is run with three drafts.
- vLLM: the prompts are random tokens, of which half share all but one word, instead of requests to repeat a word
  and GSM8K; the draft is a noisy model, not EAGLE; accuracy on GSM8K is not run. The threshold at its best is that
  of its MTP test, over 80 %.
- SGLang: no server; the draft is a noisy model, not EAGLE; floors on acceptance length, log-probabilities and
  accuracy are not run.
- EQSPEC: 8 prompts instead of 480. The paper gives E (exact match) and P (mean prefix match) without a threshold;
  as used, a decoder passes down to E = 90 % and P = 95 %, just below the worst results of the paper's own decoders
  (90.8 % and 95.7 %, at batch 4); of 8 prompts, that lets none be wrong. At its best every row must match too.
"""

LIMITS = """## What this does not show

- The faults are eqcheck's own catalogue, and its self-check demands that eqcheck catches every one of them. That it
  does is no measure of what it would miss; the comparison measures the *other* tests on these faults.
- The faults model reported defects (each has a link in the catalogue), several in more than one engine; their mix
  is not the mix of defects in the wild, and shares over it are not probabilities.
- On trained models a small fault changes fewer tokens than on random ones, and near-ties are more frequent:
  thresholds will catch less there and exact tests will raise more false alarms than here.
- The tests run inside real engines, where they also cover kernels, schedulers and servers that these engines lack.
- One seed per test; a fault that is missed might be caught with another. No confidence intervals.
- Low precision is a tiny model in bfloat16 on a CPU; how many false alarms near-ties raise there says little about
  large models and other kernels.
"""

READING = """Of the {compared} faults, {unused} are caught by none of the tests as they are used, and {unseen} by none
of them at its best. On the {held} that sit in an engine or place on which eqcheck's attribution was not developed,
the tests catch {low} to {high} and eqcheck {by_us}.

A right decoder (`{build}`) is timed with nothing known beforehand, for eqcheck with the {cases} cases of an audit; in
brackets the ratio to eqcheck. The other times are over the faults, up to the first run that fails; eqcheck's include
the repairs that confirm the cause. The machine has two shared cores: read times as ratios. False alarms are counted
once per known-good decoder, in the numeric type of the set-up (see below), and as used also in bfloat16.
"""

APART = """## Counted apart

- **{draft_side} faults of the draft side.** The output stays right, so no test that compares outputs can see them; vLLM
  and SGLang guard against some with floors on acceptance, which this comparison does not run. eqcheck warns of
  {warned}.
- **{other} faults that need another set-up**: a handed prefix, chunked prefill, a preallocated cache, a sliding window,
  a recurrent state, or an edit of what only the transparent target keeps in its cache. The sources of the tests do
  not set these up. eqcheck catches {caught}.
"""

LEGEND = """{letters}. First as used, then at its best: `x` caught by its tokens, `c` by a crash or hang, `-` passed.
In the last column `x` is caught and named as declared, `?` caught and not so named.
"""
