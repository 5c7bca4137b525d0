"""One command, several ranks: a supervisor outside MPI, and what each rank has with it.

    firsttoken serve ENGINE            the supervisor: preflight, mpirun, signals, the job's end. Touches no GPU.
    └── mpirun -n TP                   told nothing but to start; SIGTERM to it would kill the ranks whatever they handle
        ├── rank 0, the leader         the server itself: gRPC, scheduling, the executor's leader
        └── rank 1 .. TP-1             wait inside their executor until the leader's shuts down

A Unix socket joins each rank to the supervisor. A drain goes down it to rank 0; its end tells each side that the other has gone. Where that
is too slow, because a library holds the interpreter, the kernel does it: every child dies with its parent.
"""
