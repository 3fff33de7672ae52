"""Scripted drafts: a draft model and a head that propose the target's tokens where a case says so."""
