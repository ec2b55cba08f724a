"""Pure decisions of the agent: what runs next, what is copied next, what is given up.

No I/O, no clock, no threads: values in, values out (an import contract proves it).
"""
