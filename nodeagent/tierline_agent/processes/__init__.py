"""Processes at the other end of a socket, and the files by which an agent knows them again."""
