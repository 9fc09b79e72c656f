# Runs a command that dies with who started it: python -I -S leash.py PARENT COMMAND...
#
# The kernel kills the child of a dead parent only if the child asked for it (prctl(2), PR_SET_PDEATHSIG), and a server
# such as Redis does not ask. The wish outlives exec(), so this asks and becomes the command. Why not in a preexec_fn?
# That would run Python between fork and exec of a process with threads, where a lock may be held for ever.
# The parent must start it from its main thread: the kernel's "parent" is the thread.
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # what the parent has blocked, the command has to hear
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it died before we asked
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
