"""Times the requests of a plain Python client; `copal-bench python` runs it and judges its figures.

Prints one JSON object a line for each kind of request. What is timed is a whole call: from Python objects to
Python objects, with `requests` and one connection.
"""

import json
import os
import sys
import time

import requests

URL = os.environ["COPAL_BENCH_URL"].rstrip("/")
SITE, APP, CALLS = (int(argument) for argument in sys.argv[1:4])
BULK = 1_000

client = requests.Session()
client.trust_env = False
client.headers["Authorization"] = f"Bearer {os.environ['COPAL_BENCH_TOKEN']}"


def call(method, path, body=None):
    """One request; gives its answer, the seconds it took, and those of them spent on JSON."""
    start = time.perf_counter()
    data = None if body is None else json.dumps(body).encode()
    written = time.perf_counter()
    answer = client.request(method, URL + path, data=data, headers={"Content-Type": "application/json"})
    answer.raise_for_status()
    arrived = time.perf_counter()
    result = json.loads(answer.content) if answer.content else None
    end = time.perf_counter()
    return result, end - start, (written - start) + (end - arrived)


def measure(what, jobs, bodies, method, path):
    """Times a call for each body and prints the figure; gives the answers."""
    answers, seconds, on_json = [], [], 0.0
    for body in bodies:
        answer, took, json_took = call(method, path, body)
        answers.append(answer)
        seconds.append(took)
        on_json += json_took
    ordered = sorted(seconds)
    figure = {
        "what": what,
        "median_ms": ordered[len(ordered) // 2] * 1e3,
        "p99_ms": ordered[int((len(ordered) - 1) * 0.99)] * 1e3,
        "rate": jobs * len(seconds) / sum(seconds),
        "json_share": on_json / sum(seconds),
    }
    print(json.dumps(figure), flush=True)
    return answers


def new_job(name):
    return {"app_id": APP, "workdir": name, "tags": {"campaign": "python", "kind": "bench"}, "serialized_parameters": ""}


def acquires(most):
    session = call("POST", "/sessions/", {"site_id": SITE, "batch_job_id": None})[0]["id"]
    wanted = {"max_num_jobs": most, "filter_tags": {}, "max_aggregate_nodes": 1_000_000.0}
    what = f"acquire {most:,} with max_aggregate_nodes"
    for answer in measure(what, most, [wanted] * CALLS, "POST", f"/sessions/{session}"):
        assert len(answer) == most, f"{len(answer)} Jobs instead of {most}"
    call("DELETE", f"/sessions/{session}")


# So that no first call of its kind pays for the connection and the first look at tables.
call("GET", "/jobs/?limit=1")
call("POST", "/jobs/", [new_job("warm/up")])

measure("create 1", 1, ([new_job(f"single/{index}")] for index in range(CALLS * 10)), "POST", "/jobs/")
bulks = ([new_job(f"bulk/{index}/{job}") for job in range(BULK)] for index in range(CALLS))
made = measure("create 1,000 a call", BULK, bulks, "POST", "/jobs/")
for most in (1, 100, 1_000):
    acquires(most)
for state in ("RUNNING", "RUN_DONE"):
    patches = ([{"id": job["id"], "state": state} for job in jobs] for jobs in made)
    measure(f"PATCH 1,000 to {state}", BULK, patches, "PATCH", "/jobs/")
for what, path in (
    ("list 100 Jobs", "/jobs/?limit=100"),
    ("list 100 Jobs by tag", "/jobs/?limit=100&tags=set:3"),
    ("list 100 Jobs by -last_update", "/jobs/?limit=100&ordering=-last_update"),
    ("count by state", "/jobs/?limit=0&state=PREPROCESSED"),
    ("list 100 events", "/events/?limit=100"),
):
    measure(what, 100, [None] * (CALLS * 2), "GET", path)
