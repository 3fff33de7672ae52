"""Built checkpoints: models whose weights are written by arithmetic, so that they compute a known function exactly.

`function` is the function, in integers. `pointers` are attention heads that read a single place. `weights` are the
parts that all architectures share; `llama` and its neighbours write a function as a model of their architecture.
`folder` saves it.
Nothing here needs torch.
"""
