"""Files of other libraries that state grouped products."""
