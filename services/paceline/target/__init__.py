"""The target service: owns the truth of every session, that is rows, draws and what is emitted.

Rooms: `engine` and `loop` (what is computed), `servicer` (the gRPC edge), `link` (the stream to a drafter), `server`.
"""
