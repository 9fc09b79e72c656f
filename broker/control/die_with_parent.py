# Has the kernel kill a process when its parent ends: prctl(2), PR_SET_PDEATHSIG.
#
# Only the process itself can ask for that. Processes of Weir call `die_with_parent()`. Other programs, such as a Redis
# server, are started through this file: `python -I -S die_with_parent.py PARENT COMMAND...` asks and then becomes the
# command, as the request outlives exec(). It imports nothing of Weir, so that it starts quickly. A preexec_fn would run
# Python code between fork() and exec() of a process with threads, where a lock may be held for ever.
#
# The kernel's "parent" is the thread that started the process: the supervisor starts all children from its main thread.
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Be killed when the process *parent* ends. Exits if it has ended already."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit(1)


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the mask is inherited, and the command expects signals
    die_with_parent(parent)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
