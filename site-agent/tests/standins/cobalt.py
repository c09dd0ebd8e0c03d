"""qsub, qstat, qdel and nodelist, as Cobalt has them."""
import argparse
import os
from pathlib import Path

import cluster
from cluster import fail, jobs, utc

AWAY = "Failed to connect to queue-manager"


def options():
    parser = argparse.ArgumentParser(prog="qsub", allow_abbrev=False)
    for letter in "oenqtA":
        parser.add_argument(f"-{letter}")
    for word in ("mode", "jobname", "debuglog", "attrs"):
        parser.add_argument(f"--{word}")
    parser.add_argument("script", nargs="?")
    return parser


def qsub(arguments):
    given = options().parse_args(arguments)
    inside = options().parse_args(cluster.directives(given.script, "#COBALT"))
    if inside.q == "nosuch":
        fail("Queue 'nosuch' does not exist")
    if given.mode != "script" or not os.access(given.script, os.X_OK):
        fail(f"command {given.script} is not executable")
    begun = lambda number: Path(given.debuglog).write_text(f"jobid {number} submitted from terminal /dev/pts/1\n")
    number = cluster.submit(given.jobname, given.script, given.o, int(inside.n), int(inside.t), inside.q, environment,
                            log=given.debuglog, begun=begun)
    if number is None:
        fail("Failed to connect to queue-manager")
    print(f"Memory mode set to cache for queue default\n{number}")


def environment(job, hosts):
    return cluster.bare(COBALT_JOBID=str(job["id"]), COBALT_NODEFILE=hosts)


def ended(job):
    stamp = utc(job["end"])
    with open(job["log"], "a", encoding="utf-8") as log:
        if job["start"]:
            log.write(f"{utc(job['start'])} Info: running job on {','.join(job['nodes'])}\n")
        if job["why"] == "cancelled":
            log.write(f"{stamp} Info: user delete requested with signal SIGTERM\n")
        if job["why"] == "limit":
            log.write(f"{stamp} Info: maximum execution time exceeded; initiating job termination\n")
        if job["code"] is not None:
            log.write(f"{stamp} Info: task completed normally with an exit code of {job['code']}; initiating job cleanup\n")


def qstat(arguments):
    if arguments == ["-Q"]:
        assert "QSTAT_HEADER" not in os.environ
        print("Name    Users  Groups  MinTime  MaxTime   MaxRunning  MaxQueued  MaxUserNodes  MaxNodeHours  TotalNodes  State\n" + "=" * 99)
        print("closed  None   None    None     None      None        None       None          None          None        stopped")
        print("debug   None   None    None     01:00:00  None        5          None          None          2           running")
        return
    assert os.environ["QSTAT_HEADER"] == "JobID:State:StartTime:JobName"
    live = [job for job in jobs() if job["state"] != "ended"]
    if live:
        print("JobID  State    StartTime                             JobName\n" + "=" * 60)
    for job in live:
        print(f"{job['id']}     {job['state']:<8} {utc(job['start']) if job['start'] else 'N/A':<37} {job['name']}")


def qdel(arguments):
    cluster.cancel(arguments, lambda _: fail("No jobs to delete"))


def nodelist(_):
    print("Node_id  Name  Queues  Status  MCDRAM  NUMA  Backfill\n" + "=" * 60)
    for number, node in enumerate(cluster.nodes()):
        busy = node in cluster.busy()
        print(f"{number}  {node}  default:debug  {'busy' if busy else 'idle'}  cache  quad  {'-' if busy else '1:00:00'}")


cluster.ENDED = ended
COMMANDS = {"qsub": qsub, "qstat": qstat, "qdel": qdel, "nodelist": nodelist}
