"""Learning from the jobs of a site, and the lesson that follows."""
