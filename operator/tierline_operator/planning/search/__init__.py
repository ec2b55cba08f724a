"""The choices of each task, and the search for one of each with which every deadline holds."""
