"""What the jobs of a site show, and the lesson that follows."""
