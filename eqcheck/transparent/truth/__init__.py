"""The output that the target alone gives: its tokens, the law of a sampled token, and the policy on ties."""
