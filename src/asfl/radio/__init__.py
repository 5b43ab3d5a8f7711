"""Who is where, and how good each link is."""
