"""Makes the interposer's C hooks and their documentation from hooks.toml and cuda.h."""
