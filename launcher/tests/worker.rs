//! The real worker with real processes: how runs end, how whole trees are killed, and what remains of a
//! worker whose head is gone. Tests wait for reports and for the ends of processes, never for time.

mod support;

use std::time::{Duration, Instant};

use copal_launcher::process::group::Groups;
use copal_launcher::protocol::{Cause, CheckpointSignal, Event, Outcome, Program, RunId, ToWorker};
use copal_schemas::app_file::OutputMode;
use nix::sys::signal::Signal;
use support::{Head, is_alive, read_pid, shell, slot, task};

fn direct(words: &[&str]) -> Program {
    Program::Direct(words.iter().map(|word| (*word).to_owned()).collect())
}

#[test]
fn codes_signals_and_usage_come_back() {
    let mut head = Head::start();
    head.run(task(1, &head.folder("w/one"), shell("echo out; echo err >&2; exit 3")));
    let ended = head.end_of(1);
    assert_eq!(ended.outcome, Outcome::Exited(3));
    assert_eq!(ended.tail, "out\nerr");
    assert!(ended.cpu_sec.is_some() && ended.peak_memory_bytes.unwrap() > 100_000);
    assert!(ended.end >= ended.start && ended.vacant && ended.cause.is_none());

    head.run(task(2, &head.folder("w/two"), shell("kill -SEGV $$")));
    assert_eq!(head.end_of(2).outcome, Outcome::Signaled(libc::SIGSEGV));
    head.run(task(3, &head.folder("w/three"), direct(&["true"])));
    assert_eq!(head.end_of(3).outcome, Outcome::Exited(0));
}

#[test]
fn odd_output_and_odd_folders_are_no_trouble() {
    let mut head = Head::start();
    let folder = head.folder("Straße 7/ä ö");
    head.run(task(1, &folder, shell("printf 'caf\\351\\000\\n'; pwd; exit 1")));
    let ended = head.end_of(1);
    assert_eq!(ended.tail, format!("caf\u{fffd}\u{fffd}\n{folder}"));
    assert_eq!(ended.outcome, Outcome::Exited(1));
}

#[test]
fn what_can_t_start_is_named_and_the_worker_goes_on() {
    let mut head = Head::start();
    let reason = |outcome: Outcome| match outcome {
        Outcome::NotStarted { reason, message } => (reason, message),
        other => panic!("{other:?}"),
    };
    head.run(task(1, &head.folder("a"), direct(&["no-such-program"])));
    let (word, message) = reason(head.end_of(1).outcome);
    assert_eq!(word, "missing_program");
    assert!(message.contains("no-such-program"), "{message}");
    std::fs::write(head.folder("file"), "").unwrap();
    head.run(task(2, &head.folder("file/below"), direct(&["true"])));
    assert_eq!(reason(head.end_of(2).outcome).0, "workdir");
    head.run(task(3, "/proc/no/such", direct(&["true"])));
    assert_eq!(reason(head.end_of(3).outcome).0, "workdir");
    head.run(task(4, &head.folder("b"), direct(&["true"])));
    assert_eq!(head.end_of(4).outcome, Outcome::Exited(0));
}

#[test]
fn no_output_is_no_file() {
    let mut head = Head::start();
    let folder = head.folder("quiet");
    let mut quiet = task(1, &folder, shell("echo nothing; exit 1"));
    quiet.output = OutputMode::None;
    head.run(quiet);
    assert_eq!(head.end_of(1).tail, "");
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
}

#[test]
fn followers_start_without_asking_and_can_be_called_back() {
    let mut head = Head::start();
    let gate = head.folder("gate");
    assert!(std::process::Command::new("mkfifo").arg(&gate).status().unwrap().success());
    head.run(task(1, &head.folder("a"), shell(&format!("read x < '{gate}'"))));
    head.tell(&ToWorker::Follow((2..=4).map(|run| task(run, &head.folder("b"), direct(&["true"]))).collect()));
    head.tell(&ToWorker::Recall(1));
    assert_eq!(
        head.wait_for(|event| matches!(event, Event::Returned(_)).then(|| event.clone())),
        Event::Returned(RunId(4))
    );
    std::fs::write(&gate, "go\n").unwrap();
    let ends: Vec<_> = (1..=3).map(|run| head.end_of(run)).collect();
    assert_eq!(ends.iter().map(|end| end.vacant).collect::<Vec<_>>(), [false, false, true]);
    assert!(ends.iter().all(|end| end.slot == ends[0].slot));
    // A slot is offered again after its followers are gone.
    head.tell(&ToWorker::Reoffer(slot(1)));
    head.wait_for(|event| matches!(event, Event::Vacant(_)).then_some(()));
}

#[test]
fn a_withdrawn_follower_never_runs() {
    let mut head = Head::start();
    let folder = head.folder("a");
    head.run(task(1, &folder, shell(&format!("echo up > {folder}/up; exec sleep 600"))));
    head.tell(&ToWorker::Follow(vec![task(2, &head.folder("b"), direct(&["true"]))]));
    head.kill(&[2], Cause::Cancelled, 1.0);
    let ended = head.end_of(2);
    // What is killed before it started is withdrawn, too.
    support::wait_for_file(&format!("{folder}/up"));
    assert_eq!((ended.outcome, ended.slot, ended.cause), (Outcome::Withdrawn, None, Some(Cause::Cancelled)));
    head.kill(&[1], Cause::EndOfTime, 1.0);
    assert_eq!(head.end_of(1).outcome, Outcome::Signaled(libc::SIGTERM));
}

/// A run whose tree ignores TERM, leaves its session and has no parent any more.
fn stubborn(folder: &str) -> Program {
    shell(&format!(
        "trap '' TERM\n\
         ( setsid sh -c 'trap \"\" TERM; ( env -i sh -c \"trap \\\"\\\" TERM; echo \\$\\$ > {folder}/pid; \
         while :; do sleep 1000; done\" & ) ; while [ ! -s {folder}/pid ]; do sleep 0.01; done' )\n\
         echo ready > {folder}/ready\n\
         while :; do sleep 1000; done"
    ))
}

#[test]
fn pitfall_094_a_tree_that_ignores_term_and_double_forks_is_gone() {
    let mut head = Head::start();
    let folder = head.folder("tree");
    head.run(task(1, &folder, stubborn(&folder)));
    let pid = read_pid(&format!("{folder}/pid"));
    support::wait_for_file(&format!("{folder}/ready"));
    assert!(is_alive(pid));
    let start = Instant::now();
    head.kill(&[1], Cause::Cancelled, 0.3);
    let ended = head.end_of(1);
    assert_eq!((ended.outcome, ended.cause), (Outcome::Signaled(libc::SIGKILL), Some(Cause::Cancelled)));
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(!is_alive(pid), "{pid} lives");
}

#[test]
fn a_run_that_is_killed_twice_gets_one_term_and_no_second_grace() {
    let mut head = Head::start();
    let folder = head.folder("twice");
    let script = "trap 'echo TERM >> terms' TERM; echo > ready; while :; do sleep 0.02; done";
    head.run(task(1, &folder, shell(script)));
    support::wait_for_file(&format!("{folder}/ready"));
    head.kill(&[1], Cause::Cancelled, 1.0);
    // The next blow is not TERM any more.
    support::wait_for_file(&format!("{folder}/terms"));
    head.kill(&[1], Cause::LeaseLost, 1.0);
    let ended = head.end_of(1);
    assert_eq!((ended.outcome, ended.cause), (Outcome::Signaled(libc::SIGKILL), Some(Cause::Cancelled)));
    assert_eq!(std::fs::read_to_string(format!("{folder}/terms")).unwrap(), "TERM\n");
}

#[test]
fn pitfall_094_a_run_with_a_group_takes_its_strangers_along_while_others_go_on() {
    let Some(groups) = Groups::make(&format!("copal-probe-{}", std::process::id())) else {
        eprintln!("skipped: no control group may be made here");
        return;
    };
    groups.remove();
    let mut head = Head::start();
    let (folder, other) = (head.folder("tree"), head.folder("other"));
    let mut grouped = task(1, &folder, stubborn(&folder));
    grouped.own_group = true;
    head.run(grouped);
    head.run(task(2, &other, shell(&format!("echo > {other}/up; exec sleep 600"))));
    let pid = read_pid(&format!("{folder}/pid"));
    support::wait_for_file(&format!("{folder}/ready"));
    support::wait_for_file(&format!("{other}/up"));
    head.kill(&[1], Cause::Cancelled, 0.3);
    let ended = head.end_of(1);
    // Nothing but the group says whose it is.
    assert!(!is_alive(pid), "{pid} lives");
    assert_eq!(ended.cause, Some(Cause::Cancelled));
    head.kill(&[2], Cause::EndOfTime, 1.0);
    assert_eq!(head.end_of(2).outcome, Outcome::Signaled(libc::SIGTERM));
}

#[test]
fn a_group_counts_what_nobody_waited_for() {
    let Some(groups) = Groups::make(&format!("copal-probe-{}", std::process::id())) else {
        eprintln!("skipped: no control group may be made here");
        return;
    };
    groups.remove();
    let mut head = Head::start();
    let folder = head.folder("busy");
    // The first process only waits, for one that is not its child.
    let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let script = format!("mkfifo gate; ( setsid sh -c '{busy}; echo > gate' & ); read x < gate");
    let mut grouped = task(1, &folder, shell(&script));
    grouped.own_group = true;
    head.run(grouped);
    let with_group = head.end_of(1).cpu_sec.unwrap();
    assert!(with_group > 0.02, "{with_group}");
}

#[test]
fn pitfall_093_nothing_outlives_the_head() {
    let mut head = Head::start();
    let folder = head.folder("tree");
    head.run(task(1, &folder, stubborn(&folder)));
    head.run(task(2, &head.folder("b"), direct(&["sleep", "600"])));
    let pid = read_pid(&format!("{folder}/pid"));
    support::wait_for_file(&format!("{folder}/ready"));
    // As the kernel does it for a head that was killed.
    head.hang_up();
    head.wait_for_exit();
    assert!(!is_alive(pid), "{pid} lives");
}

#[test]
fn a_worker_that_is_killed_together_with_its_guard_takes_its_runs_along() {
    let mut head = Head::start();
    let folder = head.folder("a");
    head.run(task(1, &folder, shell("trap '' TERM; echo $$ > pid; exec sleep 600")));
    let run = read_pid(&format!("{folder}/pid"));
    let (guard, worker) = (head.processes()[0], head.processes()[1]);
    let send = |pid, signal| nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
    // Neither has the time to notice the other's end.
    send(worker, Signal::SIGSTOP);
    send(guard, Signal::SIGKILL);
    send(worker, Signal::SIGKILL);
    support::wait_until(|| !is_alive(run), "the run is gone");
}

#[test]
fn what_a_run_leaves_behind_is_killed_when_it_ends_by_itself() {
    let mut head = Head::start();
    let folder = head.folder("daemon");
    let daemon = format!(
        "setsid sh -c 'echo $$ > {folder}/pid.new; mv {folder}/pid.new {folder}/pid; exec sleep 1000' &\n\
         sleep 1000 & echo $! > {folder}/second\n\
         while [ ! -s {folder}/pid ]; do sleep 0.01; done"
    );
    head.run(task(1, &folder, shell(&daemon)));
    assert_eq!(head.end_of(1).outcome, Outcome::Exited(0));
    for name in ["pid", "second"] {
        let pid = read_pid(&format!("{folder}/{name}"));
        support::wait_until(|| !is_alive(pid), &format!("{name} is gone"));
    }
}

/// An `srun` by its name, which can end its ranks only when it is told to. Leaves a file when it was.
fn srun(number: u32) -> String {
    format!(
        "python3 -c \"
import signal, time
def end(*_):
    open('ended{number}', 'w').close()
    raise SystemExit
signal.signal(signal.SIGINT, end)
open('/proc/self/comm', 'w').write('srun')
open('ready{number}', 'w').close()
while True: time.sleep(1000)
\" &
while [ ! -e ready{number} ]; do sleep 0.01; done
"
    )
}

#[test]
fn what_starts_ranks_elsewhere_is_told_to_end_when_a_run_leaves_it_in_the_background() {
    let mut head = Head::start();
    let folder = head.folder("left");
    // One in the group of the script, one that has left it.
    head.run(task(1, &folder, shell(&format!("{}setsid {}", srun(1), srun(2)))));
    assert_eq!(head.end_of(1).outcome, Outcome::Exited(0));
    // When the run is reported, it is done.
    for number in [1, 2] {
        assert!(std::path::Path::new(&format!("{folder}/ended{number}")).exists(), "{number} was killed outright");
    }
}

#[test]
fn pitfall_098_a_checkpoint_signal_comes_first_and_the_shell_s_program_keeps_its_grace() {
    let mut head = Head::start();
    let folder = head.folder("checkpoint");
    let mut saving = task(
        1,
        &folder,
        // The child saves its state when told to; the shell above it dies of TERM at once.
        shell(
            "bash -c 'trap \"echo saving; sleep 0.3; echo saved > state; exit 0\" USR1; echo > ready; while :; do sleep 0.02; done'; :",
        ),
    );
    saving.checkpoint = Some(CheckpointSignal { signal: libc::SIGUSR1, grace_sec: 0.05 });
    head.run(saving);
    support::wait_for_file(&format!("{folder}/ready"));
    head.kill(&[1], Cause::EndOfTime, 10.0);
    let ended = head.end_of(1);
    assert_eq!(ended.cause, Some(Cause::EndOfTime));
    assert_eq!(std::fs::read_to_string(format!("{folder}/state")).unwrap(), "saved\n");
}

#[test]
fn a_run_s_own_limit_ends_it() {
    let mut head = Head::start();
    let mut limited = task(1, &head.folder("limit"), direct(&["sleep", "600"]));
    limited.limit_sec = Some(0.2);
    head.run(limited);
    let ended = head.end_of(1);
    assert_eq!((ended.outcome, ended.cause), (Outcome::Signaled(libc::SIGTERM), Some(Cause::Limit)));
}

#[test]
fn jobs_do_not_inherit_the_worker_s_signals_or_socket() {
    let mut head = Head::start();
    let folder = head.folder("inherit");
    head.run(task(1, &folder, shell("grep -E '^Sig(Blk|Ign)' /proc/self/status; ls -l /proc/self/fd; exit 1")));
    let tail = head.end_of(1).tail;
    // What this test inherited itself is not the worker's doing.
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
        // SIGPIPE is ignored in every program in Rust, and not in what it starts; 32 and 33 are the C library's own.
        u64::from_str_radix(line, 16).unwrap() & 0x7fff_ffff & !(1 << (libc::SIGPIPE - 1))
    };
    assert!(tail.contains("SigBlk:\t0000000000000000\n"), "{tail}");
    assert_eq!(ignored(&tail), ignored(&own));
    assert!(!tail.contains("socket:"), "{tail}");
}

#[test]
fn many_runs_at_once_and_one_after_the_other() {
    let mut head = Head::start();
    for round in 0..20 {
        let runs: Vec<u64> = (round * 10 + 1..=round * 10 + 10).collect();
        for run in &runs {
            head.run_in(*run, task(*run, &head.folder("many"), direct(&["true"])));
        }
        for run in &runs {
            assert_eq!(head.end_of(*run).outcome, Outcome::Exited(0));
        }
    }
}
