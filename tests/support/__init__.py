"""What tests share: made-up worlds, rank processes, servers, and code that runs in workers."""
