//! The lifecycle of a Job: its states, the one table of legal transitions, and the pure rules
//! that carry a Job through steps which have nothing to do.
//!
//! The server, the agent, the launcher and the diagram in `docs/` all come from [`TRANSITIONS`].
//! What a transition does besides (locks, events, children) is the server's `db/transition`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

macro_rules! states {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// Where a Job is in its life. Spelled on the wire and in the database as in the contract.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "db", derive(sqlx::Type), sqlx(type_name = "job_state"))]
        pub enum JobState {
            $($(#[$doc])* #[serde(rename = $name)] #[cfg_attr(feature = "db", sqlx(rename = $name))] $variant,)+
        }

        impl JobState {
            /// Every state, in the order of a Job's life.
            pub const ALL: &'static [JobState] = &[$(JobState::$variant),+];

            /// The spelling on the wire.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}

// Written out, since the derive does not see the spellings that the macro gives.
#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for JobState {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, Type};
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("Where a Job is in its life."))
            .enum_values(Some(Self::ALL.iter().map(|state| state.as_str())))
            .into()
    }
}
#[cfg(feature = "openapi")]
impl utoipa::ToSchema for JobState {}

states! {
    /// Just made; never seen outside the transaction that makes it, unless an owner sets it.
    Created = "CREATED",
    /// A dependency is not met yet.
    AwaitingParents = "AWAITING_PARENTS",
    /// Its input can be staged in.
    Ready = "READY",
    /// Its input is there.
    StagedIn = "STAGED_IN",
    /// A launcher may run it.
    Preprocessed = "PREPROCESSED",
    /// A launcher runs it.
    Running = "RUNNING",
    /// It ran and exited with code 0.
    RunDone = "RUN_DONE",
    /// It ran and failed.
    RunError = "RUN_ERROR",
    /// It was cut off: walltime, lost launcher, lost node.
    RunTimeout = "RUN_TIMEOUT",
    /// A launcher may run it again.
    RestartReady = "RESTART_READY",
    /// Its results can be staged out.
    Postprocessed = "POSTPROCESSED",
    /// Its results are where they belong.
    StagedOut = "STAGED_OUT",
    /// The end that everybody wants.
    JobFinished = "JOB_FINISHED",
    /// The other end.
    Failed = "FAILED",
}

use JobState::{
    AwaitingParents, Created, Failed, JobFinished, Postprocessed, Preprocessed, Ready, RestartReady, RunDone, RunError,
    RunTimeout, Running, StagedIn, StagedOut,
};

/// The states in which a launcher may take a Job.
pub const RUNNABLE: &[JobState] = &[Preprocessed, RestartReady];
/// The states in which nothing more happens by itself.
pub const TERMINAL: &[JobState] = &[JobFinished, Failed];
/// The states in which the agent has a hook to run, if the App declares one.
pub const PROCESSABLE: &[JobState] = &[StagedIn, RunDone, RunError, RunTimeout];
/// The states in which the agent has something to stage, if the Job has transfers that are not done.
pub const STAGEABLE: &[JobState] = &[Ready, Postprocessed];

impl JobState {
    /// Whether a launcher may take a Job in this state.
    #[must_use]
    pub fn is_runnable(self) -> bool {
        RUNNABLE.contains(&self)
    }

    /// Whether this is an end.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        TERMINAL.contains(&self)
    }

    /// Whether cancelling a Job in this state takes effect at once: it is neither running nor at an end.
    #[must_use]
    pub fn is_waiting(self) -> bool {
        self != Running && !self.is_terminal()
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A text that is no state.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a job state; the states are {list}", list = JobState::ALL.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(" "))]
pub struct UnknownState(pub String);

impl FromStr for JobState {
    type Err = UnknownState;
    fn from_str(text: &str) -> Result<Self, UnknownState> {
        Self::ALL.iter().copied().find(|state| state.as_str() == text).ok_or_else(|| UnknownState(text.into()))
    }
}

/// Who makes a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Actor {
    /// The service itself, in the transaction that makes it possible.
    Server,
    /// The Site's agent: hooks and staging.
    Agent,
    /// A launcher that holds the Job by its Session.
    Launcher,
    /// The Job's owner, by an API call. An owner may also leave the table; the event then says `forced`.
    Owner,
}

/// One row of the lifecycle table.
#[derive(Clone, Copy, Debug)]
pub struct Transition {
    /// The state before.
    pub from: JobState,
    /// The state after.
    pub to: JobState,
    /// Who may make it.
    pub by: &'static [Actor],
    /// When it is made.
    pub when: &'static str,
}

const fn row(from: JobState, to: JobState, by: &'static [Actor], when: &'static str) -> Transition {
    Transition { from, to, by, when }
}

/// Every legal transition. [`check`] is its only reader besides the diagram.
pub const TRANSITIONS: &[Transition] = {
    use Actor::{Agent, Launcher, Owner, Server};
    &[
        row(Created, AwaitingParents, &[Server], "a dependency is not met yet"),
        row(Created, Ready, &[Server], "dependencies are met, input must be staged in"),
        row(Created, StagedIn, &[Server], "dependencies are met, nothing to stage in"),
        row(Created, Failed, &[Server, Owner], "a dependency can never be met, or cancelled"),
        row(AwaitingParents, Ready, &[Server], "the last dependency is met, input must be staged in"),
        row(AwaitingParents, StagedIn, &[Server], "the last dependency is met, nothing to stage in"),
        row(AwaitingParents, Failed, &[Server, Owner], "a dependency can never be met, or cancelled"),
        row(Ready, StagedIn, &[Server, Agent], "the last input is staged in"),
        row(Ready, Failed, &[Server, Agent, Owner], "staging in failed for good, or cancelled"),
        row(StagedIn, Preprocessed, &[Server, Agent], "the preprocess hook is done, or there is none"),
        row(StagedIn, Failed, &[Agent, Owner], "the preprocess hook failed, or cancelled"),
        row(Preprocessed, Running, &[Launcher], "a launcher starts it"),
        row(Preprocessed, Failed, &[Launcher, Owner], "it can't be started, or cancelled"),
        row(RestartReady, Running, &[Launcher], "a launcher starts it again"),
        row(RestartReady, Failed, &[Launcher, Owner], "it can't be started, or cancelled"),
        row(Running, RunDone, &[Launcher], "exit code 0"),
        row(Running, RunError, &[Launcher], "another exit code, a signal, or it could not be started"),
        row(Running, RunTimeout, &[Launcher, Server], "walltime is over, or its Session ended"),
        row(Running, Failed, &[Launcher, Server], "cancelled"),
        row(RunDone, Postprocessed, &[Server, Agent], "the postprocess hook is done, or there is none"),
        row(RunDone, Failed, &[Agent, Owner], "the postprocess hook failed, or cancelled"),
        row(RunError, RestartReady, &[Server, Agent], "restarts are left, or the handle_error hook says so"),
        row(RunError, Postprocessed, &[Agent], "the handle_error hook found the result usable"),
        row(RunError, Failed, &[Server, Agent, Owner], "no restart is left, the hook says so, or cancelled"),
        row(RunTimeout, RestartReady, &[Server, Agent], "restarts are left, or the handle_timeout hook says so"),
        row(RunTimeout, Postprocessed, &[Agent], "the handle_timeout hook found the result usable"),
        row(RunTimeout, Failed, &[Server, Agent, Owner], "no restart is left, the hook says so, or cancelled"),
        row(Postprocessed, StagedOut, &[Server, Agent], "the last result is staged out"),
        row(Postprocessed, JobFinished, &[Server], "nothing (more) to stage out"),
        row(Postprocessed, Failed, &[Agent, Owner], "staging out failed for good, or cancelled"),
        row(StagedOut, JobFinished, &[Server], "at once"),
        row(StagedOut, Failed, &[Owner], "cancelled"),
        row(Failed, RestartReady, &[Owner], "restarted"),
        row(Failed, AwaitingParents, &[Server], "the parent that made it fail is restarted"),
    ]
};

/// A transition that the table does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a Job can't go from {from} to {to} by its {by:?}", by = by)]
pub struct IllegalTransition {
    /// The state before.
    pub from: JobState,
    /// The state that was asked for.
    pub to: JobState,
    /// Who asked.
    pub by: Actor,
}

/// Whether the table lets `by` take a Job from one state to another.
///
/// # Errors
/// [`IllegalTransition`] when it does not.
pub fn check(from: JobState, to: JobState, by: Actor) -> Result<(), IllegalTransition> {
    let legal = TRANSITIONS.iter().any(|row| row.from == from && row.to == to && row.by.contains(&by));
    if legal { Ok(()) } else { Err(IllegalTransition { from, to, by }) }
}

/// What the dependencies of a Job say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependencies {
    /// All are met (or there are none).
    Met,
    /// One may still be met.
    Open,
    /// One can never be met.
    Impossible,
}

/// What decides whether a step has something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What the dependencies say.
    pub dependencies: Dependencies,
    /// An "in" transfer is not done.
    pub stage_in_open: bool,
    /// An "out" transfer is not done.
    pub stage_out_open: bool,
    /// The App may have hooks that nobody can see (a Balsam `serialized_class`): every step is taken.
    pub hooks_hidden: bool,
    /// The App declares a preprocess hook.
    pub preprocess: bool,
    /// The App declares a postprocess hook.
    pub postprocess: bool,
    /// The App declares a handle_error hook.
    pub handle_error: bool,
    /// The App declares a handle_timeout hook.
    pub handle_timeout: bool,
    /// The retry policy allows one more run after an error.
    pub restart_after_error: bool,
    /// The retry policy allows one more run after a time-out.
    pub restart_after_timeout: bool,
}

/// One state change that becomes one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The state before.
    pub from: JobState,
    /// The state after.
    pub to: JobState,
    /// Why the service made it, for the event's `data.message`; `None` for the step that was asked for.
    pub message: Option<&'static str>,
}

/// The state that is really entered when `requested` is asked for (contract, section 5, rules 4 to 6):
/// READY, POSTPROCESSED and STAGED_OUT are passed over in one event when they have nothing to wait for.
#[must_use]
pub fn redirect(requested: JobState, facts: &Facts) -> (JobState, Option<&'static str>) {
    match requested {
        Ready if !facts.stage_in_open => (StagedIn, Some("Skipped stage in")),
        Postprocessed if !facts.stage_out_open => (JobFinished, Some("Skipped stage out")),
        StagedOut => (JobFinished, None),
        state => (state, None),
    }
}

/// The next state of a Job whose present step has nothing (more) to do; `None` when it waits for
/// somebody: an agent, a launcher, a parent, its owner.
#[must_use]
pub fn advance(state: JobState, facts: &Facts) -> Option<(JobState, &'static str)> {
    let visible = !facts.hooks_hidden;
    match state {
        Created | AwaitingParents => match facts.dependencies {
            Dependencies::Open if state == Created => Some((AwaitingParents, "Waiting for parents")),
            Dependencies::Open => None,
            Dependencies::Impossible => Some((Failed, "A dependency can never be met")),
            Dependencies::Met if facts.stage_in_open => Some((Ready, "All parents finished")),
            Dependencies::Met => Some((StagedIn, "Skipped stage in")),
        },
        Ready if !facts.stage_in_open => Some((StagedIn, "Skipped stage in")),
        StagedIn if visible && !facts.preprocess => Some((Preprocessed, "No preprocess hook")),
        RunDone if visible && !facts.postprocess => Some((Postprocessed, "No postprocess hook")),
        RunError if visible && !facts.handle_error => Some(if facts.restart_after_error {
            (RestartReady, "Restarting after an error")
        } else {
            (Failed, "No restart after an error is left")
        }),
        RunTimeout if visible && !facts.handle_timeout => Some(if facts.restart_after_timeout {
            (RestartReady, "Restarting after a time-out")
        } else {
            (Failed, "No restart after a time-out is left")
        }),
        Postprocessed if !facts.stage_out_open => Some((JobFinished, "Skipped stage out")),
        StagedOut => Some((JobFinished, "Staged out")),
        _ => None,
    }
}

/// All steps that follow when `requested` is asked for a Job in `from`: the one asked for
/// (redirected where the contract says so), then those with nothing to do.
/// The Facts must be those that hold after the requested step: the restart that it uses up is counted.
#[must_use]
pub fn settle(from: JobState, requested: JobState, facts: &Facts) -> Vec<Step> {
    let (to, message) = redirect(requested, facts);
    if from == to {
        return Vec::new();
    }
    let mut steps = vec![Step { from, to, message }];
    // The contract: any state may be set, and stays. Balsam's users see their Jobs where they put them; a Copal App's
    // Job goes on, since a beginning is a step with nothing to do.
    if facts.hooks_hidden && matches!(to, Created | AwaitingParents) {
        return steps;
    }
    let mut state = to;
    while let Some((next, message)) = advance(state, facts) {
        steps.push(Step { from: state, to: next, message: Some(message) });
        state = next;
    }
    steps
}

/// The steps of a Job that is being created.
#[must_use]
pub fn settle_new(facts: &Facts) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut state = Created;
    while let Some((next, message)) = advance(state, facts) {
        // The contract's first event carries no message.
        let message = if state == Created && next != Failed { None } else { Some(message) };
        steps.push(Step { from: state, to: next, message });
        state = next;
    }
    steps
}

/// The table as a Mermaid state diagram, for `docs/`.
#[must_use]
pub fn diagram() -> String {
    let mut text = String::from("stateDiagram-v2\n    [*] --> CREATED\n");
    for row in TRANSITIONS {
        let by = row.by.iter().map(|actor| format!("{actor:?}").to_lowercase()).collect::<Vec<_>>().join("/");
        text.push_str(&format!("    {} --> {}: {by}\n", row.from, row.to));
    }
    text.push_str("    JOB_FINISHED --> [*]\n    FAILED --> [*]\n");
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const PLAIN: Facts = Facts {
        dependencies: Dependencies::Met,
        stage_in_open: false,
        stage_out_open: false,
        hooks_hidden: false,
        preprocess: false,
        postprocess: false,
        handle_error: false,
        handle_timeout: false,
        restart_after_error: false,
        restart_after_timeout: true,
    };

    fn facts() -> impl Strategy<Value = Facts> {
        let dependencies =
            prop_oneof![Just(Dependencies::Met), Just(Dependencies::Open), Just(Dependencies::Impossible)];
        (dependencies, any::<[bool; 9]>()).prop_map(|(dependencies, flags)| {
            let [
                stage_in_open,
                stage_out_open,
                hooks_hidden,
                preprocess,
                postprocess,
                handle_error,
                handle_timeout,
                restart_after_error,
                restart_after_timeout,
            ] = flags;
            Facts {
                dependencies,
                stage_in_open,
                stage_out_open,
                hooks_hidden,
                preprocess,
                postprocess,
                handle_error,
                handle_timeout,
                restart_after_error,
                restart_after_timeout,
            }
        })
    }

    fn states(steps: &[Step]) -> Vec<JobState> {
        steps.iter().map(|step| step.to).collect()
    }

    #[test]
    fn every_state_is_reachable_and_no_row_is_double() {
        let mut reached = HashSet::from([Created]);
        for _ in JobState::ALL {
            for row in TRANSITIONS {
                if reached.contains(&row.from) {
                    reached.insert(row.to);
                }
            }
        }
        assert_eq!(reached.len(), JobState::ALL.len());
        let pairs: HashSet<_> = TRANSITIONS.iter().map(|row| (row.from, row.to)).collect();
        assert_eq!(pairs.len(), TRANSITIONS.len());
    }

    #[test]
    fn agents_and_launchers_never_leave_an_end() {
        for row in TRANSITIONS.iter().filter(|row| row.from.is_terminal()) {
            assert!(!row.by.contains(&Actor::Agent) && !row.by.contains(&Actor::Launcher), "{row:?}");
        }
    }

    #[test]
    fn every_waiting_state_can_be_cancelled() {
        for state in JobState::ALL.iter().filter(|state| state.is_waiting()) {
            assert!(check(*state, Failed, Actor::Owner).is_ok(), "{state}");
        }
    }

    #[test]
    fn a_plain_job_passes_every_idle_step() {
        assert_eq!(states(&settle_new(&PLAIN)), [StagedIn, Preprocessed]);
        assert_eq!(states(&settle(Running, RunDone, &PLAIN)), [RunDone, Postprocessed, JobFinished]);
        assert_eq!(states(&settle(Running, RunError, &PLAIN)), [RunError, Failed]);
        assert_eq!(states(&settle(Running, RunTimeout, &PLAIN)), [RunTimeout, RestartReady]);
    }

    #[test]
    fn a_job_with_hidden_hooks_takes_every_step() {
        let facts = Facts { hooks_hidden: true, ..PLAIN };
        assert_eq!(states(&settle_new(&facts)), [StagedIn]);
        assert_eq!(states(&settle(Running, RunDone, &facts)), [RunDone]);
        assert_eq!(states(&settle(RunDone, Postprocessed, &facts)), [JobFinished]);
    }

    #[test]
    fn a_job_put_back_to_its_beginning_stays_there_only_with_hidden_hooks() {
        for beginning in [Created, AwaitingParents] {
            assert_eq!(states(&settle(Failed, beginning, &Facts { hooks_hidden: true, ..PLAIN })), [beginning]);
            assert_eq!(states(&settle(Failed, beginning, &PLAIN)), [beginning, StagedIn, Preprocessed]);
        }
    }

    #[test]
    fn names_round_trip() {
        for state in JobState::ALL {
            assert_eq!(state.as_str().parse::<JobState>().unwrap(), *state);
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
        assert!("Running".parse::<JobState>().is_err());
    }

    #[test]
    fn the_diagram_is_the_one_in_the_docs() {
        let docs = include_str!("../../docs/LIFECYCLE.md");
        assert!(docs.contains(&diagram()), "put this into docs/LIFECYCLE.md:\n{}", diagram());
    }

    proptest! {
        #[test]
        fn steps_after_the_first_are_the_servers(facts in facts(), from in 0..14usize, to in 0..14usize) {
            let steps = settle(JobState::ALL[from], JobState::ALL[to], &facts);
            for pair in steps.windows(2) {
                prop_assert_eq!(pair[0].to, pair[1].from);
                prop_assert!(check(pair[1].from, pair[1].to, Actor::Server).is_ok(), "{:?}", pair[1]);
            }
            let put_back = |state| facts.hooks_hidden && matches!(state, Created | AwaitingParents);
            if let Some(last) = steps.last().filter(|last| !put_back(last.to)) {
                prop_assert_eq!(advance(last.to, &facts), None);
            }
        }

        #[test]
        fn new_jobs_settle_by_the_table(facts in facts()) {
            let steps = settle_new(&facts);
            prop_assert!(!steps.is_empty());
            for step in &steps {
                prop_assert!(check(step.from, step.to, Actor::Server).is_ok(), "{:?}", step);
            }
        }

        #[test]
        fn random_walks_of_agents_and_launchers_end_in_a_known_place(facts in facts(), choices in prop::collection::vec(any::<prop::sample::Index>(), 1..40)) {
            let facts = Facts { dependencies: Dependencies::Met, ..facts };
            let mut state = settle_new(&facts).last().map(|step| step.to).unwrap();
            for choice in choices {
                let open: Vec<_> = TRANSITIONS.iter()
                    .filter(|row| row.from == state && (row.by.contains(&Actor::Agent) || row.by.contains(&Actor::Launcher)))
                    .collect();
                if open.is_empty() {
                    prop_assert!(state.is_terminal() || state == StagedOut, "stuck in {}", state);
                    break;
                }
                let row = open[choice.index(open.len())];
                state = settle(state, row.to, &facts).last().map_or(state, |step| step.to);
            }
        }
    }
}
