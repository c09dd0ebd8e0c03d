"""What users of the Python package `balsam` write, unchanged, against Copal's service.

Started by tests/tests/python_client.rs with COPAL_TEST_URL, an empty HOME, and BALSAM_CLIENT_PATH
naming a file that does not exist yet. The tests build on one another and run in the order of their names.
"""

import contextlib
import os
import unittest
from datetime import datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import requests
from balsam.client import requests_oauth
from balsam.client.requests_oauth import OAuthRequestsClient
from balsam.client.requests_password import BasicAuthRequestsClient
from balsam.cmdline.login import login
from balsam.config import ClientSettings

URL = os.environ["COPAL_TEST_URL"]
USER, PASSWORD = "ann", "correct horse battery staple"


def approve_in_the_browser(client, link):
    """What a user does at the page that `balsam login` names."""
    page = requests.get(link)
    assert page.status_code == 200 and "<form" in page.text, page.text
    (code,) = parse_qs(urlsplit(link).query)["user_code"]
    form = {"user_code": code, "username": USER, "password": PASSWORD, "decision": "approve"}
    answer = requests.post(link.split("?")[0], data=form)
    assert answer.status_code == 200, answer.text


def log_in():
    answer = requests.post(f"{URL}/auth/password/register", json={"username": USER, "password": PASSWORD})
    assert answer.status_code == 201, answer.text
    OAuthRequestsClient.prompt_user = approve_in_the_browser
    # The client's progress line breaks where the output is no terminal.
    requests_oauth.Spinner = contextlib.nullcontext
    login.main(["--url", URL], standalone_mode=False)
    settings = ClientSettings.load_from_file()
    # An error must fail the test at once, not after eleven tries.
    settings.retry_count = 0
    settings.save_to_file()


log_in()

# From here on it is user code: the import loads the stored login.
from balsam.api import (  # noqa: E402
    ApplicationDefinition,
    BatchJob,
    BatchJobPartition,
    EventLog,
    Job,
    JobState,
    Session,
    Site,
    TransferItem,
)
from balsam.cmdline import app as cmdline_app  # noqa: E402
from balsam.cmdline import job as cmdline_job  # noqa: E402
from balsam.cmdline import scheduler as cmdline_queue  # noqa: E402
from balsam.cmdline import site as cmdline_site  # noqa: E402
from click.testing import CliRunner  # noqa: E402

site = Site.objects.create(
    name="theta",
    path="/projects/datascience/ann/theta",
    allowed_projects=["datascience"],
    allowed_queues={"debug": {"max_nodes": 8, "max_walltime": 60, "max_queued_jobs": 1}},
    transfer_locations={"APS": "globus://8f9d2ab1-6ab6-4a25-bba8-50a8d8f4d5c0", "laptop": "file://laptop"},
    optional_batch_job_params={"mig_count": "7"},
)


class Simulate(ApplicationDefinition):
    """Run a simulation."""

    site = "theta"
    command_template = "simulate --steps {{steps}} --seed {{ seed }}"
    parameters = {"steps": {"required": False, "default": "100", "help": "how many"}}
    transfers = {
        "geometry": {
            "required": False,
            "direction": "in",
            "local_path": "geometry.xyz",
            "description": "where the atoms are",
            "recursive": False,
        },
        "result": {
            "required": False,
            "direction": "out",
            "local_path": "result.h5",
            "description": "what came out",
            "recursive": False,
        },
    }

    def postprocess(self):
        self.job.state = "POSTPROCESSED"


class Add(ApplicationDefinition):
    site = "theta"

    def run(self, a, b=2):
        return a + b


class Campaign(unittest.TestCase):
    def test_01_login_is_stored_and_good(self):
        stored = ClientSettings.load_from_file()
        self.assertGreater(stored.token_expiry, datetime.utcnow() + timedelta(hours=24))
        self.assertEqual([found.id for found in Site.objects.all()], [site.id])

    def test_01b_login_by_password(self):
        client = BasicAuthRequestsClient(URL, username=USER, password=PASSWORD, retry_count=0)
        client.refresh_auth()
        self.assertGreater(client.token_expiry, datetime.utcnow() + timedelta(hours=24))
        self.assertEqual(client.get("auth/password/me")["username"], USER)

    def test_02_sites(self):
        found = Site.objects.get(name="theta")
        self.assertEqual(found.id, site.id)
        self.assertEqual(str(found.path), "/projects/datascience/ann/theta")
        self.assertEqual(found.allowed_queues["debug"].max_nodes, 8)
        before = found.last_refresh
        found.allowed_projects = ["datascience", "materials"]
        found.backfill_windows = {"debug": [{"num_nodes": 4, "wall_time_min": 30}]}
        found.save()
        self.assertGreater(found.last_refresh, before)
        again = Site.objects.get(id=site.id)
        self.assertEqual(again.allowed_projects, ["datascience", "materials"])
        self.assertEqual(again.backfill_windows["debug"][0].num_nodes, 4)
        self.assertEqual(Site.objects.filter(path="datascience").count(), 1)
        with self.assertRaises(Site.DoesNotExist):
            Site.objects.get(name="polaris")

    def test_03_apps_come_back_as_they_were_written(self):
        Simulate.sync()
        Add.sync()
        apps = ApplicationDefinition.load_by_site("theta")
        self.assertEqual(set(apps), {"Simulate", "Add"})
        loaded = apps["Simulate"]
        self.assertEqual(loaded.command_template, Simulate.command_template)
        self.assertEqual(loaded.parameters["steps"]["default"], "100")
        self.assertTrue(loaded.parameters["seed"]["required"])
        # Again, after a change: the same App is updated.
        app_id = Simulate.__app_id__
        Simulate.sync()
        self.assertEqual(Simulate.__app_id__, app_id)

    def test_04_one_job(self):
        job = Job.objects.create(
            app_id="Simulate",
            site_name="theta",
            workdir="first/try",
            parameters={"seed": 7},
            tags={"experiment": "one", "step": 1},
            num_nodes=2,
            ranks_per_node=32,
            gpus_per_rank=0.5,
            wall_time_min=10,
            launch_params={"cpu_affinity": "depth"},
            data={"note": "ü"},
        )
        self.assertIsNotNone(job.id)
        self.assertEqual(job.state, JobState.staged_in)
        self.assertEqual(job.get_parameters(), {"seed": 7})
        self.assertEqual(job.tags, {"experiment": "one", "step": "1"})
        fetched = Job.objects.get(id=job.id)
        self.assertEqual(str(fetched.workdir), "first/try")
        self.assertEqual(fetched.launch_params, {"cpu_affinity": "depth"})
        self.assertEqual(fetched.data, {"note": "ü"})
        fetched.num_nodes = 4
        fetched.state = "PREPROCESSED"
        fetched.save()
        self.assertEqual(fetched.num_nodes, 4)
        job.refresh_from_db()
        self.assertEqual((job.num_nodes, job.state), (4, JobState.preprocessed))
        self.assertEqual(job.app.__name__, "Simulate")

    def test_05_many_jobs_with_tags_and_parents(self):
        jobs = [
            Job(f"sweep/{i}", "Simulate", site_name="theta", parameters={"seed": i}, tags={"sweep": "a", "n": str(i % 3)})
            for i in range(120)
        ]
        jobs = Job.objects.bulk_create(jobs)
        self.assertEqual([str(job.workdir) for job in jobs], [f"sweep/{i}" for i in range(120)])
        reduce = Simulate.submit(
            workdir="sweep/reduce", seed=0, tags={"sweep": "reduce"}, parent_ids=[job.id for job in jobs]
        )
        self.assertEqual(reduce.state, JobState.awaiting_parents)
        self.assertEqual(reduce.parent_query().count(), 120)
        self.assertEqual(Job.objects.filter(parent_id=jobs[3].id).first().id, reduce.id)

        sweep = Job.objects.filter(tags={"sweep": "a"})
        self.assertEqual(sweep.count(), 120)
        self.assertEqual(Job.objects.filter(tags={"sweep": "a", "n": "2"}).count(), 40)
        self.assertEqual(sweep.order_by("-workdir").first().workdir.name, "99")
        self.assertEqual([job.id for job in sweep.order_by("id")[10:13]], [job.id for job in jobs[10:13]])
        self.assertEqual(len(Job.objects.filter(id=[job.id for job in jobs[:7]])), 7)
        self.assertEqual(len(Job.objects.filter(workdir__contains="sweep/1")), 31)
        self.assertEqual(Job.objects.filter(site_id=site.id, state={"STAGED_IN", "RUNNING"}).count(), 120)
        self.assertEqual(Job.objects.filter(last_update_after=datetime.utcnow() + timedelta(hours=1)).count(), 0)
        self.assertTrue(Job.objects.filter(last_update_before=datetime.utcnow() + timedelta(hours=1)).count() >= 121)

        for job in jobs[:60]:
            job.state = "PREPROCESSED"
        Job.objects.bulk_update(jobs[:60])
        self.assertEqual(sweep.filter(state="PREPROCESSED").count(), 60)
        self.assertEqual(sweep.update(state="JOB_FINISHED"), 120)
        reduce.refresh_from_db()
        self.assertEqual(reduce.state, JobState.staged_in)

    def test_06_more_ids_than_fit_in_one_query(self):
        jobs = Job.objects.bulk_create(
            [Job(f"wide/{i}", "Simulate", site_name="theta", parameters={"seed": i}) for i in range(1200)]
        )
        ids = [job.id for job in jobs]
        self.assertEqual(Job.objects.filter(id=ids).count(), 1200)
        self.assertEqual(len(Job.objects.filter(id=ids).order_by("-id")), 1200)
        self.assertEqual(Job.objects.filter(workdir__contains="wide/").update(num_nodes=3), 1200)
        Job.objects.filter(workdir__contains="wide/").delete()
        self.assertEqual(Job.objects.filter(workdir__contains="wide/").count(), 0)

    def test_07_results_of_python_apps(self):
        job = Add.submit(workdir="add", a=40)
        self.assertEqual(job.get_parameters(), {"a": 40})
        with self.assertRaises(Job.NoResult):
            job.result_nowait()
        from balsam.schemas import serialize

        # What the launcher of the original reports for a Python App.
        report = {"id": job.id, "serialized_return_value": serialize(42), "state": "JOB_FINISHED"}
        Job.objects._client.bulk_patch("jobs/", [report])
        self.assertEqual(job.result(timeout=5), 42)
        done = list(Job.objects.as_completed([job], timeout=5))
        self.assertEqual([one.id for one in done], [job.id])
        self.assertEqual(Job.objects.wait([job], timeout=5).not_done, [])

    def test_08_transfers(self):
        job = Simulate.submit(
            workdir="staged",
            seed=1,
            tags={"staged": "yes"},
            transfers={
                "geometry": {"location_alias": "APS", "path": "/data/1.xyz"},
                "result": {"location_alias": "laptop", "path": "/results/1.h5"},
            },
        )
        self.assertEqual(job.state, JobState.ready)
        (item,) = TransferItem.objects.filter(job_id=job.id, direction="in", state="pending")
        self.assertEqual((str(item.remote_path), str(item.local_path)), ("/data/1.xyz", "geometry.xyz"))
        item.task_id = "8f9d2ab1"
        item.state = "active"
        item.save()
        item.state = "done"
        TransferItem.objects.bulk_update([item])
        job.refresh_from_db()
        self.assertEqual(job.state, JobState.staged_in)
        job.state = "POSTPROCESSED"
        job.save()
        outputs = TransferItem.objects.filter(site_id=site.id, state={"pending"}, direction="out", tags={"staged": "yes"})
        self.assertEqual(len(outputs), 1)
        for output in outputs:
            output.state = "done"
        TransferItem.objects.bulk_update(list(outputs))
        job.refresh_from_db()
        self.assertEqual(job.state, JobState.job_finished)

    def test_08b_bulk_creation_with_tags_parents_and_transfers_at_once(self):
        parent = Job.objects.create(app_id="Simulate", site_name="theta", workdir="all/parent", parameters={"seed": 0})
        jobs = Job.objects.bulk_create(
            [
                Job(
                    f"all/{i}",
                    "Simulate",
                    site_name="theta",
                    parameters={"seed": i},
                    tags={"all": "yes", "i": str(i)},
                    parent_ids=[parent.id],
                    transfers={
                        "geometry": {"location_alias": "APS", "path": f"/data/{i}.xyz"},
                        "result": {"location_alias": "laptop", "path": f"/results/{i}.h5"},
                    },
                )
                for i in range(20)
            ]
        )
        self.assertEqual({job.state for job in jobs}, {JobState.awaiting_parents})
        self.assertEqual({tuple(job.parent_ids) for job in jobs}, {(parent.id,)})
        self.assertEqual(TransferItem.objects.filter(tags={"all": "yes"}).count(), 40)
        self.assertEqual(
            sorted(str(item.remote_path) for item in TransferItem.objects.filter(job_id=[job.id for job in jobs[:2]])),
            ["/data/0.xyz", "/data/1.xyz", "/results/0.h5", "/results/1.h5"],
        )
        Job.objects.filter(id=parent.id).update(state="JOB_FINISHED")
        family = Job.objects.filter(tags={"all": "yes"})
        self.assertEqual(family.filter(state="READY").count(), 20)

        # An update of all that match, as the transfer service of a user's own would write it.
        inputs = TransferItem.objects.filter(tags={"all": "yes"}, direction="in", state={"pending"})
        updated = inputs.update(state="active", task_id="bulk-1")
        self.assertEqual([(item.state, item.task_id) for item in updated], [("active", "bulk-1")] * 20)
        self.assertEqual(TransferItem.objects.filter(job_state="READY", state={"active"}).count(), 20)
        TransferItem.objects.filter(tags={"all": "yes"}, direction="in").update(state="done")
        self.assertEqual(family.filter(state="STAGED_IN").count(), 20)
        family.delete()
        self.assertEqual(TransferItem.objects.filter(tags={"all": "yes"}).count(), 0)

    def test_09_batch_jobs(self):
        batch = BatchJob.objects.create(
            site_id=site.id,
            project="datascience",
            queue="debug",
            num_nodes=4,
            wall_time_min=30,
            job_mode="mpi",
            filter_tags={"sweep": "a"},
            optional_params={"mig_count": "3"},
            partitions=[
                BatchJobPartition(job_mode="mpi", num_nodes=1, filter_tags={"role": "leader"}),
                {"job_mode": "serial", "num_nodes": 3, "filter_tags": {}},
            ],
        )
        self.assertEqual(batch.state, "pending_submission")
        self.assertEqual([part.num_nodes for part in batch.partitions], [1, 3])
        batch.validate(site.allowed_queues, site.allowed_projects, site.optional_batch_job_params)
        self.assertEqual(batch.optional_params, {"mig_count": "3"})
        batch.scheduler_id, batch.state = 4711, "queued"
        batch.save()
        more = BatchJob.objects.create(
            site_id=site.id, project="datascience", queue="debug", num_nodes=2, wall_time_min=30, job_mode="serial"
        )
        more.state, more.scheduler_id = "queued", 4712
        batch.status_info = {"why": "waiting"}
        BatchJob.objects.bulk_update([batch, more])
        queued = sum(one.num_nodes for one in BatchJob.objects.filter(state="queued"))
        self.assertEqual(queued, 6)
        self.assertEqual(BatchJob.objects.filter(filter_tags={"sweep": "a"}).count(), 1)

        BatchJob.objects.filter(scheduler_id=4711).update(state="pending_deletion")
        batch.refresh_from_db()
        more.refresh_from_db()
        self.assertEqual((batch.state, more.state), ("pending_deletion", "queued"))
        self.assertEqual(len(BatchJob.objects.filter(site_id=site.id).order_by("-start_time")), 2)

    def test_10_sessions_and_events(self):
        batch = BatchJob.objects.create(
            site_id=site.id, project="datascience", queue="debug", num_nodes=2, wall_time_min=30, job_mode="mpi"
        )
        batch.state, batch.scheduler_id = "running", 5000
        batch.start_time, batch.end_time = datetime.utcnow(), datetime.utcnow() + timedelta(minutes=30)
        batch.save()
        wanted = Job.objects.bulk_create(
            [Job(f"run/{i}", "Simulate", site_name="theta", parameters={"seed": i}, tags={"run": "yes"}) for i in range(6)]
        )
        for job in wanted:
            job.state = "PREPROCESSED"
        Job.objects.bulk_update(wanted)

        session = Session.objects.create(site_id=site.id, batch_job_id=batch.id)
        before = session.heartbeat
        acquired = session.acquire_jobs(
            max_num_jobs=4, max_wall_time_min=59.97, max_aggregate_nodes=3.0, filter_tags={"run": "yes"}
        )
        self.assertEqual(len(acquired), 3)
        self.assertTrue(all(job.batch_job_id == batch.id for job in acquired))
        session.tick()
        session.refresh_from_db()
        self.assertGreater(session.heartbeat, before)

        moment = datetime.utcnow()
        for job in acquired:
            job.state, job.state_timestamp = "RUNNING", moment
        Job.objects.bulk_update(acquired)
        for job in acquired:
            job.state, job.state_timestamp = "RUN_DONE", datetime.utcnow()
            job.state_data, job.return_code = {"message": "OK: done!"}, 0
        Job.objects.bulk_update(acquired)
        events = EventLog.objects.filter(tags={"run": "yes"}, to_state="RUNNING")
        self.assertEqual(events.count(), 3)
        self.assertEqual({event.timestamp for event in events}, {moment})
        self.assertEqual(EventLog.objects.filter(data={"message": "OK: done!"}).count(), 3)
        self.assertEqual(EventLog.objects.filter(scheduler_id=5000, from_state="RUNNING").count(), 3)
        self.assertEqual(EventLog.objects.filter(batch_job_id=batch.id, to_state="RUN_DONE").count(), 3)
        ordered = [event.timestamp for event in EventLog.objects.filter(job_id=acquired[0].id).order_by("timestamp")]
        self.assertEqual(ordered, sorted(ordered))
        newest = EventLog.objects.filter(job_id=acquired[0].id).first()
        self.assertEqual(newest.to_state, "RUN_DONE")

        rest = session.acquire_jobs(max_num_jobs=100, filter_tags={"run": "yes"})
        self.assertEqual(len(rest), 3)
        rest[0].state = "RUNNING"
        rest[0].save()
        session.delete()
        rest[0].refresh_from_db()
        self.assertEqual(rest[0].state, JobState.run_timeout)
        freed = Session.objects.create(site_id=site.id)
        self.assertEqual(len(freed.acquire_jobs(max_num_jobs=10, filter_tags={"run": "yes"})), 2)
        processing = freed.acquire_jobs(max_num_jobs=10, states={"RUN_DONE", "RUN_TIMEOUT"}, app_ids={Simulate.__app_id__})
        self.assertEqual(len(processing), 4)
        freed.delete()

    def test_11_analytics_of_events(self):
        from balsam.analytics import available_nodes, throughput_report, utilization_report

        events = EventLog.objects.filter(tags={"run": "yes"})
        times, done = throughput_report(events, to_state="RUN_DONE")
        self.assertEqual(done[-1], 3)
        self.assertEqual(len(times), len(done))
        times, running = utilization_report(events, node_weighting=False)
        self.assertEqual((len(times), running[-1]), (8, 0))
        times, nodes = available_nodes(BatchJob.objects.filter(scheduler_id=5000))
        self.assertEqual(nodes, [2, 0])

    def test_11b_the_command_line(self):
        def balsam(group, *words):
            done = CliRunner().invoke(group, words, catch_exceptions=False)
            self.assertEqual(done.exit_code, 0, done.output)
            return done.output

        self.assertIn("theta", balsam(cmdline_site.site, "ls"))
        self.assertIn("Simulate", balsam(cmdline_app.app, "ls", "--site", "all"))
        words = "create -a Simulate -w cli/1 -p seed=3 --tag cli=yes --site theta -y".split()
        job_id = balsam(cmdline_job.job, *words).split("Added Job id=")[1].strip()
        self.assertIn("cli/1", balsam(cmdline_job.job, "ls", "--site", "all", "--tag", "cli=yes"))
        self.assertIn("STAGED_IN", balsam(cmdline_job.job, "ls", "--site", "all", "--by-state"))
        # Back to the beginning, where it stays until somebody moves it.
        balsam(cmdline_job.job, "modify", "--id", job_id, "-s", "CREATED")
        self.assertEqual(Job.objects.get(id=int(job_id)).state, JobState.created)
        words = "submit -n 4 -t 30 -q debug -A datascience -j mpi -x mig_count=3 --tag cli=yes --site theta".split()
        balsam(cmdline_queue.queue, *words, "-p", "mpi:2:role=leader", "-p", "serial:2:role=worker")
        (batch,) = BatchJob.objects.filter(filter_tags={"cli": "yes"})
        self.assertEqual([part.filter_tags for part in batch.partitions], [{"role": "leader"}, {"role": "worker"}])
        batch.scheduler_id, batch.state = 6000, "queued"
        batch.save()
        self.assertIn("6000", balsam(cmdline_queue.queue, "ls", "--site", "all"))
        balsam(cmdline_queue.queue, "term", "6000")
        batch.refresh_from_db()
        self.assertEqual(batch.state, "pending_deletion")
        balsam(cmdline_job.job, "rm", "--tag", "cli=yes", "--site", "all", "-y")
        self.assertEqual(Job.objects.filter(tags={"cli": "yes"}).count(), 0)

    def test_12_deleting(self):
        job = Job.objects.filter(tags={"experiment": "one"}).first()
        job.delete()
        self.assertEqual(Job.objects.filter(tags={"experiment": "one"}).count(), 0)
        Job.objects.filter(tags={"sweep": "a"}).delete()
        self.assertEqual(Job.objects.filter(tags={"sweep": "a"}).count(), 0)
        Site.objects.get(id=site.id).delete()
        self.assertEqual(len(Site.objects.all()), 0)
        self.assertEqual(Job.objects.count(), 0)
        self.assertEqual(EventLog.objects.count(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2, failfast=False)
