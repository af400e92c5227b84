"""Starts a program as a service manager would: with a listening socket for the host and one for HTTP, and a socket on which it says that it is ready.

activate.py SOCKET PROGRAM ARGS...: prints the port, then "READY=1" once it was said, then waits for the program.
"""
import os
import socket
import sys

path, program = sys.argv[1], sys.argv[2:]
host = socket.socket(socket.AF_UNIX)
host.bind(path)
host.listen(16)
http = socket.socket()
http.bind(('127.0.0.1', 0))
http.listen(16)
notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.bind(path + '.notify')
print(http.getsockname()[1], flush=True)
child = os.fork()
if child == 0:
    pair = [os.dup(host.fileno()), os.dup(http.fileno())]  # out of the way of 3 and 4
    high = [os.dup2(fd, 20 + i) for i, fd in enumerate(pair)]
    for i, fd in enumerate(high):
        os.dup2(fd, 3 + i, inheritable=True)
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='2', LISTEN_FDNAMES='host:http', NOTIFY_SOCKET=path + '.notify')
    os.execv(program[0], program)
for held in (host, http):
    held.close()
notify.settimeout(60)
print(notify.recv(100).decode(), flush=True)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
