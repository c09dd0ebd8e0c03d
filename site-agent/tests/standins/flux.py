"""flux batch, jobs, cancel, hostlist, queue and resource, as flux-core has them, and flux account of flux-accounting."""
import argparse
import json
import os
import re

import cluster
from cluster import fail, jobs

AWAY = "flux: ERROR: unable to connect to Flux: Connection refused"


def options():
    parser = argparse.ArgumentParser(prog="flux batch", allow_abbrev=False)
    for word in ("job-name", "output", "nodes", "time-limit", "queue", "bank", "requires"):
        parser.add_argument(f"--{word}")
    parser.add_argument("--exclusive", action="store_true")
    parser.add_argument("script", nargs="?")
    return parser


def batch(arguments):
    given = options().parse_args(arguments)
    inside = options().parse_args(cluster.directives(given.script, "# flux:"))
    if inside.queue == "nosuch":
        fail("flux-batch: ERROR: Invalid queue 'nosuch' specified")
    avoid = (given.requires or "-host:").removeprefix("-host:").split(",")
    minutes = int(re.fullmatch(r"(\d+)m", inside.time_limit)[1])
    number = cluster.submit(given.job_name, given.script, given.output, int(inside.nodes), minutes, inside.queue, environment, avoid)
    if number is None:
        fail("flux-batch: ERROR: connection reset")
    print(f"f{number}")


def environment(job, _):
    return cluster.full(FLUX_URI=f"local:///run/flux-{job['id']}", FLUX_JOB_ID=f"f{job['id']}", STANDIN_JOB=str(job["id"]))


def list_jobs(_):
    for job in reversed(jobs()):
        state = {"queued": "SCHED", "running": "RUN", "ended": "INACTIVE"}[job["state"]]
        good = "COMPLETED" if job["code"] == 0 else "FAILED"
        result = {"limit": "TIMEOUT", "cancelled": "CANCELED", "exit": good, None: ""}[job["why"]]
        code = "" if job["code"] is None else job["code"]
        print(f"f{job['id']}|{state}|{result}|{job['start'] or ''}|{job['end'] or ''}|{code}||{job['name']}")


def cancel(arguments):
    cluster.cancel([word[1:] for word in arguments], lambda number: fail(f"flux-cancel: ERROR: f{number}: job is inactive"))


def hostlist(_):
    print(",".join(cluster.load(os.environ["STANDIN_JOB"])["nodes"]))


def resource(arguments):
    busy, every = len(set(cluster.busy())), len(cluster.nodes())
    if arguments[-1] == "{state}|{queue}|{nnodes}":
        print(f"free||{every - busy}\nallocated||{busy}\ndown||0")
    elif arguments[-1] == "{queue}|{nnodes}":
        print(f"|{every}")
    else:
        print(f"{every}|{2 * every}|0")


def queue(arguments):
    assert arguments[:4] == ["list", "-n", "-o", "{queue}|{submission}|{scheduling}|{limits.timelimit}|{limits.max.nnodes}"]
    print("debug|enabled|started|3600.0|2\nclosed|disabled|started|inf|inf")


def account(arguments):
    assert arguments[0] == "view-user" and len(arguments) == 2
    print(json.dumps([{"username": arguments[1], "bank": bank, "active": active, "max_active_jobs": 5, "max_nodes": 2147483647}
                      for bank, active in (("proj", 1), ("old", 0))], indent=2))


def flux(arguments):
    commands = {"account": account, "batch": batch, "jobs": list_jobs, "cancel": cancel, "hostlist": hostlist, "resource": resource, "queue": queue}
    commands[arguments[0]](arguments[1:])


COMMANDS = {"flux": flux}
