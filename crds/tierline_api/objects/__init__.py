"""The objects of the API, and what they are made of."""
