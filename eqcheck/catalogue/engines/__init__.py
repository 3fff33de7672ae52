"""Engines that are right by construction, one kind of cache and batch each.

Each step that can be broken is a method of its own, and what breaks it is not here.
"""
