"""An adapter audited against several versions of an engine: in which version did a cause appear or vanish?

environments: one version of a package on top of an environment that is there; auditing: the audits, each kept;
table: what they show side by side
"""
