"""stalls.py DIR STOP_FILE: makes, writes and removes a file again and again, and prints how long the calls took that a server's death held up."""
import os
import sys
import time

directory, stop = sys.argv[1:]
path = os.path.join(directory, 'stalls')
stalls, rounds = [], 0
while not os.path.exists(stop):
    began = time.monotonic()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, b'x' * 1000)
    os.close(fd)
    os.unlink(path)
    took = time.monotonic() - began
    rounds += 1
    if took > 0.02:
        stalls.append(took * 1000)
    time.sleep(0.002)
stalls.sort()
if not stalls:
    sys.exit('nothing was held up')
at = lambda share: stalls[min(len(stalls) - 1, int(share * len(stalls)))]
print(f'stalls over 20 ms: {len(stalls)} in {rounds} rounds; median {at(0.5):.0f} ms, p90 {at(0.9):.0f}, p99 {at(0.99):.0f}, worst {stalls[-1]:.0f}')
