"""Models that run as captured CUDA graphs."""
