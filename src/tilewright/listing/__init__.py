"""AMD's listings: what the compiler prints of a kernel, and what an architecture asks of it."""
