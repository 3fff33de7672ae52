"""The fork server imports this: before all else that it ends with the audit, then all that a worker needs."""

from eqcheck.audit.workers.serve import begin_child

begin_child()

import gc  # noqa: E402

gc.disable()  # what is imported lasts, and the collector would walk it over and over

import transformers.generation.utils  # noqa: E402, F401

import eqcheck.audit.workers.fork  # noqa: E402
import eqcheck.transparent.hashlm.model  # noqa: E402, F401

gc.enable()
gc.freeze()
