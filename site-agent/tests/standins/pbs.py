"""qsub, qselect, qstat, qdel and pbsnodes, as OpenPBS 23.06 has them."""
import argparse
import re
import sys
import time

import cluster
from cluster import fail, jobs

AWAY = "Connection refused\nqsub: cannot connect to server head (errno=15010)"


def options():
    parser = argparse.ArgumentParser(prog="qsub", allow_abbrev=False)
    for letter in "NqAjor":
        parser.add_argument(f"-{letter}")
    parser.add_argument("-l", action="append", default=[])
    parser.add_argument("script", nargs="?")
    return parser


def qsub(arguments):
    given = options().parse_args(arguments)
    inside = options().parse_args(cluster.directives(given.script, "#PBS"))
    if len(given.N) > 15 or not re.fullmatch("[A-Za-z][A-Za-z0-9_-]*", given.N):
        fail("qsub: illegal -N value", 2)
    if inside.q == "nosuch":
        fail("qsub: Unknown queue", 170)
    wanted = dict(part.split("=", 1) for part in inside.l)
    hours, minutes, _ = (int(part) for part in wanted["walltime"].split(":"))
    number = cluster.submit(given.N, given.script, given.o, int(wanted["select"].split(":")[0]), hours * 60 + minutes,
                            inside.q, environment)
    if number is None:
        fail("qsub: End of File")
    print(f"{number}.head")


def environment(job, hosts):
    return cluster.bare(PBS_JOBID=f"{job['id']}.head", PBS_NODEFILE=hosts, PBS_ENVIRONMENT="PBS_BATCH")


def qselect(arguments):
    name = arguments[arguments.index("-N") + 1]
    assert "-u" in arguments, "jobs of others may have the same name"
    for job in jobs():
        if job["name"] == name and ("-x" in arguments or job["state"] != "ended"):
            print(f"{job['id']}.head")


def qstat(arguments):
    if "-Q" in arguments:
        print("Queue: debug\n    queue_type = Execution\n    resources_max.nodect = 2\n    resources_max.walltime = 01:00:00\n"
              "    max_queued = [u:PBS_GENERIC=5]\n    enabled = True\n    started = True\n\n"
              "Queue: closed\n    queue_type = Execution\n    enabled = False\n    started = False\n")
        return
    code = 0
    known = {f"{job['id']}.head": job for job in jobs()}
    stamp = lambda seconds: time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(seconds))
    for name in [word for word in arguments if not word.startswith("-")]:
        if name not in known:
            print(f"qstat: Unknown Job Id {name}", file=sys.stderr)
            code = 153
            continue
        job = known[name]
        letter = {"queued": "Q", "running": "R", "ended": "F"}[job["state"]]
        print(f"Job Id: {name}\n    Job_Name = {job['name']}\n    job_state = {letter}\n    queue = {job['queue']}")
        # What users export is printed as it is.
        print("    Variable_List = BASH_FUNC_m%%=() {  echo \"x\"\n}\n    comment = Not Running: Not enough resources")
        if job["start"]:
            print(f"    stime = {stamp(job['start'])}")
        if job["state"] == "ended":
            status = {"limit": -29, "cancelled": 271}.get(job["why"], job["code"])
            print(f"    obittime = {stamp(job['end'])}\n    substate = {91 if job['why'] == 'cancelled' else 92}")
            if job["start"]:
                print(f"    Exit_status = {status}")
        print()
    sys.exit(code)


def qdel(arguments):
    cluster.cancel([name.split(".")[0] for name in arguments],
                   lambda number: fail(f"qdel: Job has finished {number}.head", 35))


def pbsnodes(_):
    for node in cluster.nodes():
        busy = node in cluster.busy()
        print(f"{node}\n     Mom = {node}\n     state = {'job-exclusive' if busy else 'free'}\n     pcpus = 2")
        if busy:
            print("     jobs = 41.head/0")
        print("     resources_available.mem = 4194304kb\n     resources_available.ncpus = 2\n")


COMMANDS = {"qsub": qsub, "qselect": qselect, "qstat": qstat, "qdel": qdel, "pbsnodes": pbsnodes}
