"""What may be learned where: credentials, the depth policy, and the routes that follow."""
