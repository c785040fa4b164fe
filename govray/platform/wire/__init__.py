"""What goes over the wire between a service and its client, said once for both."""
