"""bsub, bjobs, bhist, bkill, bhosts, bqueues, bslots and busers, as LSF 10.1 has them."""
import argparse
import json
import re
import sys
import time

import cluster
from cluster import QUEUE, fail, jobs

AWAY = "LSF is down. Please wait ..."


def options():
    parser = argparse.ArgumentParser(prog="bsub", allow_abbrev=False)
    for letter in "JoqPnWU":
        parser.add_argument(f"-{letter}")
    parser.add_argument("-R", action="append", default=[])
    parser.add_argument("-rn", action="store_true")
    parser.add_argument("-x", action="store_true")
    return parser


def bsub(arguments):
    given = options().parse_args(arguments)
    script = QUEUE / f"{given.J}.stdin"
    script.write_text(sys.stdin.read())
    inside = options().parse_args(cluster.directives(script, "#BSUB"))
    if inside.q == "nosuch":
        fail("nosuch: No such queue. Job not submitted.", 255)
    avoid = [name for text in inside.R for name in re.findall("hname!='([^']*)'", text)]
    number = cluster.submit(given.J, script, given.o, int(inside.n or 1), int(inside.W or 60), inside.q, environment, avoid)
    if number is None:
        fail("Failed in LSF library call: communication error", 255)
    print(f"Job <{number}> is submitted to queue <{inside.q or 'normal'}>.")


def environment(job, hosts):
    return cluster.full(LSB_JOBID=str(job["id"]), LSB_DJOB_HOSTFILE=hosts, LSB_HOSTS=" ".join(job["nodes"]))


def bjobs(arguments):
    assert "-json" in arguments
    stamp = lambda seconds: time.strftime("%b %d %H:%M", time.localtime(seconds)) if seconds else "-"
    records = []
    for job in jobs():
        good = job["why"] == "exit" and job["code"] == 0
        state = {"queued": "PEND", "running": "RUN", "ended": "DONE" if good else "EXIT"}[job["state"]]
        reason = {"limit": "TERM_RUNLIMIT: job killed after reaching LSF run time limit", "cancelled": "TERM_OWNER: job killed by owner"}
        ran = int((job["end"] or time.time()) - job["start"]) if job["start"] else 0
        records.append({"JOBID": str(job["id"]), "STAT": state, "START_TIME": stamp(job["start"]), "FINISH_TIME": stamp(job["end"]),
                        "RUN_TIME": f"{ran} second(s)", "EXIT_CODE": str(job["code"]) if job["code"] else "-",
                        "EXIT_REASON": reason.get(job["why"], "-"),
                        "PEND_REASON": "New job is waiting for scheduling;" if state == "PEND" else "-", "JOB_NAME": job["name"]})
    if not records:
        fail("No job found", 255)
    print(json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records}, indent=2))


def bhist(_):
    fail("No matching job found", 255)


def bkill(arguments):
    cluster.cancel(arguments, lambda number: fail(f"Job <{number}>: Job has already finished", 255))


def bhosts(_):
    print(f"{'HOST_NAME':<18} STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV")
    for node in cluster.nodes():
        jobs_here = int(node in cluster.busy())
        print(f"{node:<18} {'closed_Excl' if jobs_here else 'ok':<15} -      2     {jobs_here}      {jobs_here}      0      0      0")


def bqueues(arguments):
    assert arguments == ["-l"]
    headings = "PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV PJOBS"
    for name, status in (("debug", "Open:Active"), ("closed", "Closed:Active")):
        print(f"\nQUEUE: {name}\n  -- A queue.\n\nPARAMETERS/STATISTICS\n{headings}")
        print(f" 30    0  {status:<15} -    -    -    -     0     0     0     0     0    0     0\n")
        print(" MAXIMUM LIMITS:\n RUNLIMIT\n 60.0 min\n\nUSERS: all\nHOSTS:  all")
        print("-" * 78)


def busers(arguments):
    assert arguments == ["-w"]
    print("USER/GROUP          JL/P    MAX  NJOBS   PEND    RUN  SSUSP  USUSP    RSV  MPEND")
    print("me                     -      -      0      0      0      0      0      0      5")


def bslots(_):
    print("No backfill window exists at this time")


COMMANDS = {"bsub": bsub, "bjobs": bjobs, "bhist": bhist, "bkill": bkill, "bhosts": bhosts, "bqueues": bqueues, "bslots": bslots, "busers": busers}
