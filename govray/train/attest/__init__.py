"""From the last commit to an attested model folder, and its memorization audit."""
