"""A program that trains: its steps run in what other tasks leave, and its weights stay its own.

    loop      the program's outermost module calls: which are parts of a step
    gates     where a step can give the device away: module calls, nodes of autograd, optimizers
    slices    gates inside the steps of optimizers
    steps     what is a step, and which task has the device meanwhile
    leased    a step under an agent
    measured  a step that is measured, alone
    state     what a step keeps: its bytes, and a digest of the weights

Nothing here learns, moves or seals a weight, whatever the program runs: `loop` takes the place of
`dispatch` in a process with TIERLINE_TRAINING.
"""
