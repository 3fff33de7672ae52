"""Make a failing case small, of whatever lane: a reducer that tries candidates, and a file for each type of value.

`eqcheck.core.shrinking.reducer` keeps the smallest case that still shows the fault, within a budget. The
other files say how one type of value is made smaller: `eqcheck.core.shrinking.items` (rows of a batch,
requests of a sequence), `eqcheck.core.shrinking.numbers` (limits, K, and numbers inside tables),
`eqcheck.core.shrinking.tokens` (prompts, accepted draft tokens) and `eqcheck.core.shrinking.options` (what a
row asks for). A lane names its fields, and when a case "still fails".
"""
