"""Engines that are right by construction, one kind of cache and batch each.

Each step that can be broken is a method of its own, and what breaks it is not here.

`reference_impls/` has right engines too, and the two stay apart, for these reasons:

- They have other readers. Those are written to be read and used: one file tells one algorithm from above to below,
  with sampling, streaming and options of rows. These are cut where something can be broken (`Handling.positions`,
  `turned`, `handed`, `propose`, `verify`, `after`), and take greedy requests of one limit and one set of EOS ids.
- What breaks an engine overrides one of these methods. In an engine that is written for its readers, each such seam
  would be a method that nobody there needs.
- They share no line of code but the contract (`Request`, trees, the name of a model's cache argument). So an error in a
  common loop cannot hide in both: the selfcheck holds these against the target, an audit of each holds those.
- These cover kinds of caches that no reference engine has (paged blocks, one packed line of all rows, layers of two
  kinds, recurrent states), because attribution has to tell the same mistake in each. Those have schedulers, samplers
  and trained heads, which nothing here needs.
"""
