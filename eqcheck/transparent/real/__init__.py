"""Reading real models: every forward of a model of transformers becomes a `eqcheck.transparent.hashlm.trace.Call`."""
