"""The API server as agent and operator speak to it: objects in plain JSON, nothing decided.

    errors     what goes wrong: refused, not answered, not found at all
    resource   how a kind is addressed; the kinds that Tierline reads or writes
    events     events about objects                                             pure
    client     requests and watches, over the `kubernetes` client's connections  I/O

Nothing here keeps anything, and nothing is sent twice: the caller knows what a request that
failed means, and when to try again. This file imports nothing, because the client takes seconds
to load.
"""
