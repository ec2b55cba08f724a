"""Part of Tierline."""
