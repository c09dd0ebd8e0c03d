"""A queue in a folder and the nodes that it is for: what the stand-ins of every scheduler share.

The folder is STANDIN_QUEUE. It holds a JSON file for each job, and files by which a test changes what happens:

hold        jobs stay queued
down        every command fails as if the scheduler were away
lose-answer the next submission succeeds and does not say so
forget      a job that has ended is known to nobody any more
limit       seconds after which a job's time is over, whatever it asked for
nodes       the names of the nodes, one a line; else this machine is the one node
calls       written by the commands: who was called, with which arguments
"""
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

QUEUE = Path(os.environ.get("STANDIN_QUEUE", "."))
KILL_DELAY = 30


def fail(text, code=1):
    print(text, file=sys.stderr)
    sys.exit(code)


def has(name):
    return (QUEUE / name).exists()


@contextmanager
def locked():
    lock = os.open(QUEUE / "lock", os.O_CREAT | os.O_RDWR)
    os.lockf(lock, os.F_LOCK, 0)
    try:
        yield
    finally:
        os.close(lock)


def save(job):
    part = QUEUE / f"{job['id']}.{os.getpid()}"
    part.write_text(json.dumps(job))
    part.replace(QUEUE / f"{job['id']}.json")


def load(number):
    return json.loads((QUEUE / f"{number}.json").read_text())


def all_jobs():
    return sorted((json.loads(path.read_text()) for path in QUEUE.glob("*.json")), key=lambda job: job["id"])


def jobs():
    """The jobs that the scheduler still knows."""
    return [job for job in all_jobs() if job["state"] != "ended" or not has("forget")]


def update(number, **fields):
    job = load(number)
    job.update(fields)
    save(job)
    return job


def nodes():
    path = QUEUE / "nodes"
    return path.read_text().split() if path.exists() else [socket.gethostname()]


def busy():
    return [node for job in all_jobs() if job["state"] == "running" for node in job["nodes"]]


def directives(script, mark):
    """The options in a script's lines that begin with `mark`, up to its first command."""
    words = []
    for line in Path(script).read_text().splitlines():
        if line.startswith(mark):
            words += shlex.split(line[len(mark):])
        elif line and not line.startswith("#"):
            break
    return words


def submit(name, script, output, num_nodes, minutes, queue, environment, avoid=(), log=None, begun=lambda number: None):
    """Takes a job in and goes on to look after it in the background; gives its number."""
    with locked():
        number = len(list(QUEUE.glob("*.json"))) + 41
        # Schedulers run a copy: what becomes of the file afterwards does not matter.
        copy = QUEUE / f"{number}.sh"
        copy.write_text(Path(script).read_text())
        job = {"id": number, "name": name, "script": str(copy), "output": output, "num_nodes": num_nodes, "minutes": minutes,
               "queue": queue, "avoid": list(avoid), "log": log, "state": "queued", "submitted": time.time(), "nodes": [],
               "start": None, "end": None, "code": None, "why": None}
        save(job)
        begun(number)
    supervise(number, environment)
    if has("lose-answer"):
        (QUEUE / "lose-answer").unlink()
        return None
    return number


def supervise(number, environment):
    """Gives the job its nodes when they are free, runs the script, ends it when that is due, writes down how it ended."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    try:
        if start(number):
            run(load(number), environment)
    finally:
        os._exit(0)


def start(number):
    while True:
        with locked():
            job = load(number)
            if (QUEUE / f"{number}.cancel").exists():
                end(job, None, "cancelled")
                return False
            free = [node for node in nodes() if node not in busy() and node not in job["avoid"]]
            if not has("hold") and len(free) >= job["num_nodes"]:
                update(number, state="running", start=time.time(), nodes=free[:job["num_nodes"]])
                return True
        time.sleep(0.02)


def run(job, environment):
    hosts = QUEUE / f"{job['id']}.hosts"
    hosts.write_text("".join(f"{node}\n" for node in job["nodes"]))
    variables = environment(job, str(hosts))
    with open(job["output"], "ab") as out:
        process = subprocess.Popen(["/bin/bash", job["script"]], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                   start_new_session=True, env=variables, cwd=variables["HOME"])
    why, told = "exit", None
    while process.poll() is None:
        limit = float((QUEUE / "limit").read_text()) if has("limit") else job["minutes"] * 60
        if told is None and (QUEUE / f"{job['id']}.cancel").exists():
            why, told = "cancelled", time.time()
            os.killpg(process.pid, signal.SIGTERM)
        elif told is None and time.time() - job["start"] > limit:
            why, told = "limit", time.time()
            os.killpg(process.pid, signal.SIGTERM)
        elif told is not None and time.time() - told > KILL_DELAY:
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.02)
    with locked():
        end(load(job["id"]), process.returncode if process.returncode >= 0 else 128 - process.returncode, why)


def end(job, code, why):
    job = update(job["id"], state="ended", end=time.time(), code=code, why=why)
    if job["log"] and not has("forget"):
        ENDED(job)


def ENDED(job):  # replaced by a scheduler that writes a log of its own
    pass


def bare(**variables):
    """The environment of a scheduler that hands nothing of the submitter's on. PATH is there for the stand-ins."""
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "PATH", "USER") or name.startswith("COPAL_TEST")}
    return {**kept, **variables}


def full(**variables):
    """The environment of a scheduler that hands all of the submitter's on."""
    return {**os.environ, **variables}


def cancel(numbers, gone):
    """Asks for the end of jobs; `gone` says what of one that has ended, or that nobody knows."""
    for number in numbers:
        known = {str(job["id"]): job for job in jobs()}
        if str(number) not in known or known[str(number)]["state"] == "ended":
            gone(number)
        else:
            (QUEUE / f"{number}.cancel").touch()


def utc(seconds):
    return time.strftime("%a %b %d %H:%M:%S %Y +0000 (UTC)", time.gmtime(seconds))


def call(commands, away):
    """Runs the command under whose name this program was called; `away` is what they say while the scheduler is."""
    name, arguments = sys.argv[1], sys.argv[2:]
    with open(QUEUE / "calls", "a", encoding="utf-8") as calls:
        calls.write(shlex.join([name, *arguments]) + "\n")
    if has("down") and not (name == "flux" and arguments[0] == "hostlist"):
        fail(away, 255)
    commands[name](arguments)
