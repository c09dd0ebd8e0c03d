#!/usr/bin/env python3
"""Stand-ins for the commands of PBS, LSF, Cobalt and Flux, and for answers of Slurm.

Each runs under the name of the command it stands in for (`qsub`, `bjobs`, …) with the family in
STANDIN_FAMILY and keeps its queue in the folder STANDIN_QUEUE: a JSON file for each job. Scripts
really run, as processes of this machine, one supervisor each. Files in the folder change what happens:
`hold` keeps jobs queued, `down` makes every command fail, `lose-answer` makes a submission succeed and say nothing.
"""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

QUEUE = Path(os.environ["STANDIN_QUEUE"])
FAMILY = os.environ["STANDIN_FAMILY"]


def fail(text, code=1):
    print(text, file=sys.stderr)
    sys.exit(code)


def save(job):
    path = QUEUE / f"{job['id']}.json"
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(job))
    part.replace(path)


def jobs():
    return sorted((json.loads(path.read_text()) for path in QUEUE.glob("*.json")), key=lambda job: job["id"])


def update(number, **fields):
    job = json.loads((QUEUE / f"{number}.json").read_text())
    job.update(fields)
    save(job)


def supervise(job):
    """Waits while jobs are held, runs the script, writes down how it ended."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    number = job["id"]
    cancelled = QUEUE / f"{number}.cancel"
    while (QUEUE / "hold").exists() and not cancelled.exists():
        time.sleep(0.02)
    if cancelled.exists():
        update(number, state="ended", end=time.time(), code=None, why="cancelled")
    else:
        with open(job["output"], "ab") as out:
            run = subprocess.Popen(["/bin/bash", job["script"]], stdout=out, stderr=out, start_new_session=True)
        start = time.time()
        update(number, state="running", start=start)
        why = "exit"
        while run.poll() is None:
            if cancelled.exists() and why == "exit":
                why = "cancelled"
                os.killpg(run.pid, signal.SIGTERM)
            if time.time() - start > job["limit"] and why == "exit":
                why = "limit"
                os.killpg(run.pid, signal.SIGTERM)
            time.sleep(0.02)
        code = run.returncode if run.returncode >= 0 else 128 - run.returncode
        update(number, state="ended", end=time.time(), code=code, why=why)
    if job.get("log"):
        log_end(job["log"], json.loads((QUEUE / f"{number}.json").read_text()))
    os._exit(0)


def log_end(path, job):
    stamp = time.strftime("%a %b %d %H:%M:%S %Y +0000 (UTC)", time.gmtime(job["end"]))
    with open(path, "a", encoding="utf-8") as log:
        if job["why"] == "cancelled":
            log.write(f"{stamp} Info: user delete requested with signal SIGTERM\n")
        if job["why"] == "limit":
            log.write(f"{stamp} Info: maximum execution time exceeded; initiating job termination\n")
        if job["code"] is not None:
            log.write(f"{stamp} Info: task completed normally with an exit code of {job['code']}; initiating job cleanup\n")


def minutes(text):
    parts = [int(part) for part in text.split(":")]
    return sum(part * 60**power for power, part in enumerate(reversed(parts))) / (60 if len(parts) > 1 else 1)


def submit(options, script, directive, queue_option, time_option):
    """Takes a script: options on the command line come before its directives."""
    words = {}
    for line in Path(script).read_text().splitlines():
        if line.startswith(directive):
            rest = line[len(directive):].split()
            words.update(zip(rest[::2], rest[1::2]))
    queue = words.get(queue_option, "")
    if queue == "nosuch":
        return None
    QUEUE.mkdir(exist_ok=True)
    lock = os.open(QUEUE / "lock", os.O_CREAT | os.O_RDWR)
    os.lockf(lock, os.F_LOCK, 0)
    number = len(list(QUEUE.glob("*.json"))) + 41
    limit = words.get(time_option, "")
    seconds = float(os.environ.get("STANDIN_LIMIT") or (minutes(limit.split("=")[-1]) * 60 if limit else 3600))
    job = {"id": number, "name": options["name"], "output": options["output"], "script": str(script), "state": "queued",
           "queue": queue, "limit": seconds, "start": None, "end": None, "code": None, "why": None, "log": options.get("log")}
    save(job)
    if job["log"]:
        Path(job["log"]).write_text(f"jobid {number} submitted from terminal /dev/pts/1\n")
    os.close(lock)
    supervise(job)
    if (QUEUE / "lose-answer").exists():
        (QUEUE / "lose-answer").unlink()
        fail({"pbs": "qsub: End of File", "lsf": "Failed in LSF library call: communication error",
              "cobalt": "Failed to connect to queue-manager", "flux": "flux-batch: ERROR: connection reset"}[FAMILY])
    return number


def take(arguments, names):
    """Splits `-x value` options, of which `names` says what they mean, from the rest."""
    options, rest, arguments = {}, [], list(arguments)
    while arguments:
        word = arguments.pop(0)
        if word in names:
            options[names[word]] = arguments.pop(0) if names[word] != "flag" else None
        else:
            rest.append(word)
    return options, rest


def cancel(numbers, gone):
    for number in numbers:
        job = json.loads((QUEUE / f"{number}.json").read_text())
        if job["state"] == "ended":
            gone(number)
        (QUEUE / f"{number}.cancel").touch()


# PBS


def qsub_pbs(arguments):
    options, rest = take(arguments, {"-N": "name", "-j": "join", "-o": "output", "-r": "rerun"})
    number = submit(options, rest[-1], "#PBS", "-q", "-l")
    if number is None:
        fail("qsub: Unknown queue", 170)
    print(f"{number}.head")


def qselect(arguments):
    options, _ = take(arguments, {"-N": "name", "-u": "user"})
    for job in jobs():
        if job["name"] == options["name"] and ("-x" in arguments or job["state"] != "ended"):
            print(f"{job['id']}.head")


def qstat_pbs(arguments):
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
        print(f"Job Id: {name}\n    Job_Name = {job['name']}\n    job_state = {letter}")
        if job["start"]:
            print(f"    stime = {stamp(job['start'])}")
        if job["state"] == "ended":
            status = {"limit": -29, "cancelled": 271}.get(job["why"], job["code"])
            print(f"    obittime = {stamp(job['end'])}\n    substate = {91 if job['why'] == 'cancelled' else 92}")
            if job["start"]:
                print(f"    Exit_status = {status}")
        print()
    sys.exit(code)


def qdel_pbs(arguments):
    cancel([name.split(".")[0] for name in arguments], lambda number: fail(f"qdel: Job has finished {number}.head", 35))


# LSF


def bsub(arguments):
    options, _ = take(arguments, {"-J": "name", "-o": "output"})
    script = QUEUE / f"{options['name']}.stdin"
    QUEUE.mkdir(exist_ok=True)
    script.write_text(sys.stdin.read())
    number = submit(options, script, "#BSUB", "-q", "-W")
    if number is None:
        fail("nosuch: No such queue. Job not submitted.", 255)
    print(f"Job <{number}> is submitted to default queue <batch>.")


def bjobs(_):
    stamp = lambda seconds: time.strftime("%b %d %H:%M", time.localtime(seconds)) if seconds else "-"
    records = []
    for job in jobs():
        good = job["why"] == "exit" and job["code"] == 0
        state = {"queued": "PEND", "running": "RUN", "ended": "DONE" if good else "EXIT"}[job["state"]]
        reason = {"limit": "TERM_RUNLIMIT: job killed after reaching LSF run time limit", "cancelled": "TERM_OWNER: job killed by owner"}
        records.append({"JOBID": str(job["id"]), "STAT": state, "START_TIME": stamp(job["start"]), "FINISH_TIME": stamp(job["end"]),
                        "EXIT_CODE": str(job["code"]) if job["code"] else "-", "EXIT_REASON": reason.get(job["why"], "-"),
                        "PEND_REASON": "New job is waiting for scheduling;" if state == "PEND" else "-", "JOB_NAME": job["name"]})
    if not records:
        fail("No job found", 255)
    print(json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records}))


def bhist(_):
    fail("No matching job found", 255)


def bkill(arguments):
    cancel(arguments, lambda number: fail(f"Job <{number}>: Job has already finished", 255))


# Cobalt


def qsub_cobalt(arguments):
    names = {"--mode": "mode", "--jobname": "name", "--debuglog": "log", "-o": "output", "-e": "error"}
    options, rest = take(arguments, names)
    number = submit(options, rest[-1], "#COBALT", "-q", "-t")
    if number is None:
        fail("Queue 'nosuch' does not exist")
    print(f"Memory mode set to cache for queue default\n{number}")


def qstat_cobalt(_):
    live = [job for job in jobs() if job["state"] != "ended"]
    assert os.environ["QSTAT_HEADER"] == "JobID:State:StartTime:JobName"
    if live:
        print("JobID  State    StartTime  JobName\n" + "=" * 60)
    for job in live:
        stamp = time.strftime("%a %b %d %H:%M:%S %Y +0000 (UTC)", time.gmtime(job["start"])) if job["start"] else "N/A"
        print(f"{job['id']}  {job['state']}  {stamp}  {job['name']}")


def qdel_cobalt(arguments):
    cancel(arguments, lambda _: fail("No jobs to delete"))


# Flux


def flux(arguments):
    command, arguments = arguments[0], arguments[1:]
    if command == "batch":
        given = dict(word[2:].split("=", 1) for word in arguments[:-1])
        number = submit({"name": given["job-name"], "output": given["output"]}, arguments[-1], "# flux:", "-q", "-t")
        if number is None:
            fail("flux-batch: ERROR: Invalid queue 'nosuch' specified")
        print(f"f{number}")
    elif command == "jobs":
        for job in reversed(jobs()):
            state = {"queued": "SCHED", "running": "RUN", "ended": "INACTIVE"}[job["state"]]
            good = "COMPLETED" if job["code"] == 0 else "FAILED"
            result = {"limit": "TIMEOUT", "cancelled": "CANCELED", "exit": good, None: ""}[job["why"]]
            code = "" if job["code"] is None else job["code"]
            print(f"f{job['id']}|{state}|{result}|{job['start'] or ''}|{job['end'] or ''}|{code}||{job['name']}")
    elif command == "cancel":
        cancel([word[1:] for word in arguments], lambda number: fail(f"flux-cancel: ERROR: f{number}: job is inactive"))
    else:
        fail(f"no stand-in for flux {command}", 2)


# Slurm, which tests really run elsewhere: here only answers that a test wrote down beforehand


def recorded(command):
    def answer(_):
        path = QUEUE / f"{command}.txt"
        if not path.exists():
            fail("Slurm accounting storage is disabled")
        print(path.read_text(), end="")

    return answer


COMMANDS = {
    "slurm": {command: recorded(command) for command in ("squeue", "sacct")},
    "pbs": {"qsub": qsub_pbs, "qselect": qselect, "qstat": qstat_pbs, "qdel": qdel_pbs},
    "lsf": {"bsub": bsub, "bjobs": bjobs, "bhist": bhist, "bkill": bkill},
    "cobalt": {"qsub": qsub_cobalt, "qstat": qstat_cobalt, "qdel": qdel_cobalt},
    "flux": {"flux": flux},
}

if __name__ == "__main__":
    if (QUEUE / "down").exists():
        fail({"pbs": "Connection refused", "lsf": "LSF is down. Please wait ...", "cobalt": "Failed to connect to queue-manager",
              "flux": "flux: ERROR: unable to connect to Flux: Connection refused"}[FAMILY], 255)
    with open(QUEUE / "calls", "a", encoding="utf-8") as calls:
        calls.write(f"{Path(sys.argv[0]).name}\n")
    COMMANDS[FAMILY][Path(sys.argv[0]).name](sys.argv[1:])
