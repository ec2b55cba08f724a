"""A client's session: what each message of the protocol does.

`client` is the state and the verbs that all subjects share, `loading`, `jobs` and `reattach` the
subjects, `session` the state machine that joins them, `replies` how failures become messages.
"""
