"""Files and folders that are there whole or not at all, after a kill and after a power cut."""
