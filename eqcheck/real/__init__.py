"""Reading real models: every forward of a model of transformers becomes a `eqcheck.trace.Call`."""
