"""Generated from protos/paceline/v1; see `make protos`."""
