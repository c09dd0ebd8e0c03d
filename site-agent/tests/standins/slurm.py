"""squeue and sacct that say what a test wrote down beforehand: Slurm itself runs in other tests."""
from cluster import QUEUE, fail

AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


def recorded(command):
    def answer(arguments):
        # As Slurm 20.11, which lacks the names of some states.
        if command == "squeue" and arguments[arguments.index("-t") + 1] != "all":
            fail("squeue: error: Invalid job state specified")
        path = QUEUE / f"{command}.txt"
        if not path.exists():
            fail("Slurm accounting storage is disabled")
        print(path.read_text(), end="")

    return answer


COMMANDS = {command: recorded(command) for command in ("squeue", "sacct")}
