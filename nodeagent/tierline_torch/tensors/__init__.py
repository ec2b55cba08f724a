"""Knowledge of a program's tensors and operators, without the program noticing."""
