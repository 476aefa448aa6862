"""Pure maths of speculation: rows, noise, trees, proposals, verification. Needs torch, numpy and the standard library.

Words: a *row* is one next-token distribution; a *context* is the token sequence a row is conditioned on; *accepted*
tokens are draft tokens the target keeps; the *drawn* token is the one the target adds itself at the end of a walk.
"""
