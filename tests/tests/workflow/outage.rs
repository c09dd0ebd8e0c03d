//! A service that answers, but with nothing but errors.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use copal_tests::wait::wait_blocking;

use crate::laptop::{LIMIT, Laptop};

/// Says that it runs, and ends when a file is there.
const GATED: &str = "command: echo up > up; while [ ! -e ../go ]; do sleep 0.1; done; echo done";

/// What is left of a service whose own parts are broken: every request gets a 500.
struct Broken {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

impl Broken {
    fn start(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&answered));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let Ok((mut client, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                };
                client.set_nonblocking(false).unwrap();
                client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                let _ = client.read(&mut [0; 65_536]);
                let answer =
                    "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 5\r\nConnection: close\r\n\r\nsorry";
                let _ = client.write_all(answer.as_bytes());
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { stop, answered, thread }
    }

    fn wait_answered(&self, count: usize) {
        wait_blocking("requests to be refused", LIMIT, || match self.answered.load(Ordering::Relaxed) {
            answered if answered >= count => Ok(()),
            answered => Err(answered.to_string()),
        });
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Errors of the service end neither agent nor launcher, and no result is lost: what ended meanwhile is told later.
#[test]
fn pitfall_109_agent_and_launcher_live_through_a_service_that_only_fails() {
    let mut laptop = Laptop::with_site(1);
    laptop.app("Gated", GATED);
    let job = laptop.job(&["-a", "Gated", "-w", "gated"]);
    laptop.allocation("serial", 10);
    laptop.wait_file("gated", "up");
    let alive = [laptop.pids("copal-agent --site"), laptop.pids("copal-launcher --site")];
    assert!(alive.iter().all(|pids| !pids.is_empty()), "{alive:?}");

    let server = laptop.server.take().unwrap();
    assert_eq!(server.stop(), 0);
    let broken = Broken::start(laptop.port);
    broken.wait_answered(5);
    fs::write(laptop.site_path().join("data/go"), "").unwrap();
    wait_blocking("the run to end", LIMIT, || match laptop.output("gated") {
        output if output == b"done\n" => Ok(()),
        output => Err(String::from_utf8_lossy(&output).into_owned()),
    });
    let answered = broken.answered.load(Ordering::Relaxed);
    broken.wait_answered(answered + 5);
    assert_eq!([laptop.pids("copal-agent --site"), laptop.pids("copal-launcher --site")], alive);
    broken.end();

    let (server, _) = laptop.programs.start_server(laptop.port, &[]);
    laptop.server = Some(server);
    laptop.wait_state(job, "JOB_FINISHED");
    assert_eq!(laptop.history(job).iter().filter(|state| *state == "RUNNING").count(), 1);
    // The same agent goes on: it sees the next request.
    let next = laptop.job(&["-a", "Gated", "-w", "next"]);
    laptop.allocation("serial", 10);
    laptop.wait_state(next, "JOB_FINISHED");
    assert_eq!(laptop.pids("copal-agent --site"), alive[0]);
}
