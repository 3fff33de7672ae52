"""The oracle: is every emitted token the token of the target alone, and if not, why?"""
