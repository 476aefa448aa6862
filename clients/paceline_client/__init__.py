"""Light client of Paceline: grpcio and protobuf only."""
