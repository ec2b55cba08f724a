"""Manifests: read from files that nobody vouches for, each mistake one sentence."""
