"""The gRPC edge shared by the services: statuses, channels, servers, conversions."""
