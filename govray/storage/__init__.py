"""Files and folders that are whole or not there, even after a power cut; paths and URLs."""
