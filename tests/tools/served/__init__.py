"""Engines as served, with faults in their windows and states: do audits catch them, and name the component?

`engine` and `memory` have the parts of a small speculative engine, `ring` and `paged` its two builds. `faults` has the
faults that attribution may be developed on, `held`, `unseen` and `fresh` those of other mechanisms, and `score` counts
what is said of them: ``python -m served``.
"""
