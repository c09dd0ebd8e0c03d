//! `copal job wait|watch`

use std::{fmt::Write, time::Duration};

use copal_client::{Client, ClientError};
use copal_schemas::{JobState, job::Job};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use tokio::time::{Instant, timeout};

use super::job_list::counts_table;
use crate::{
    args::job::Selection,
    context::Context,
    failure::{Failure, INTERRUPTED, Result, TIMED_OUT, describe},
    follow::{End, follow},
    human::{Clock, count, span},
    ids::Shortest,
    interrupt::Interrupt,
    output::is_interactive,
    selection::{Counts, Jobs, summary, total},
};

/// Ids that a message names.
const NAMED: i64 = 20;
/// How long whoever waited as long as they wanted waits for these ids.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) async fn wait(context: Context, selection: &Selection, timeout: Option<f64>) -> Result<()> {
    let deadline = timeout.map(deadline).transpose()?;
    let client = context.client()?;
    let jobs = selection.resolve(&context, &client).await?.pinned(&client).await?;
    let mut progress = Progress::new(context, false);
    let end = interruptible(follow(&client, &jobs, deadline, |news| progress.report(news))).await;
    progress.finish();
    let counts = match end? {
        End::Settled(counts) => counts,
        End::TimedOut(counts) => return Err(late_jobs(&client, &jobs, &counts).await),
    };
    if context.out.is_data() {
        context.out.value(&counts)?;
    }
    match counts.get(&JobState::Failed).copied().unwrap_or(0) {
        0 => {
            context.out.talk(&match total(&counts) {
                1 => "The Job is finished.".into(),
                all => format!("All {all} Jobs are finished."),
            });
            Ok(())
        }
        failed => Err(failed_jobs(&client, &jobs, failed, total(&counts)).await?),
    }
}

fn deadline(seconds: f64) -> Result<Instant> {
    let span = Duration::try_from_secs_f64(seconds).ok().filter(|span| span.as_secs() < 100_000_000);
    span.map(|span| Instant::now() + span)
        .ok_or_else(|| Failure::usage(format!("{seconds} is no number of seconds to wait")))
}

/// Which Jobs failed.
async fn failed_jobs(client: &Client, jobs: &Jobs, failed: i64, all: i64) -> Result<Failure> {
    let rows = jobs.list_in_states(client, &[JobState::Failed], NAMED).await?;
    let first = rows.first().map_or(0, |job| job.id.0);
    Ok(Failure::new(format!("{failed} of {} failed: {}", count(all, "Job"), named(&rows, failed)))
        .hint(format!("`copal job show {first}` says why")))
}

/// Which Jobs were not at an end in time.
async fn late_jobs(client: &Client, jobs: &Jobs, counts: &Counts) -> Failure {
    let open: Counts = counts.iter().filter(|(state, _)| !state.is_terminal()).map(|(state, n)| (*state, *n)).collect();
    let states: Vec<JobState> = JobState::ALL.iter().copied().filter(|state| !state.is_terminal()).collect();
    let text = format!("{} of {} not finished in time", total(&open), count(total(counts), "Job"));
    let failure = |text: String| Failure::new(text).exit(TIMED_OUT);
    // A service that went away is no reason to say something else than that the time ran out.
    match timeout(PATIENCE, jobs.list_in_states(client, &states, NAMED)).await {
        Ok(Ok(rows)) if !rows.is_empty() => {
            failure(format!("{text}: {} ({})", named(&rows, total(&open)), summary(&open)))
                .hint(format!("`copal job why {}` says what it waits for; run the command again to go on", rows[0].id))
        }
        _ => failure(format!("{text}: {}", summary(&open))).hint("run the command again to go on waiting"),
    }
}

/// The ids of the first of so many Jobs.
fn named(rows: &[Job], all: i64) -> String {
    let ids = Shortest::of(rows.iter().map(|job| job.id.0));
    if all > rows.len() as i64 { format!("{ids}, …") } else { ids.to_string() }
}

pub(super) async fn watch(context: Context, selection: &Selection) -> Result<()> {
    let client = context.client()?;
    let jobs = selection.resolve(&context, &client).await?.pinned(&client).await?;
    let mut progress = Progress::new(context, true);
    let end = interruptible(follow(&client, &jobs, None, |news| progress.report(news))).await;
    progress.finish();
    let (End::Settled(counts) | End::TimedOut(counts)) = end?;
    if context.out.is_data() {
        return context.out.value(&counts);
    }
    if progress.is_live() { context.out.text(&counts_table(&counts).render(context.out.width())) } else { Ok(()) }
}

/// Ends with Ctrl-C, so that the progress bar is cleared before the program ends.
async fn interruptible<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut interrupt = Interrupt::new();
    tokio::select! {
        outcome = work => outcome,
        () = interrupt.pressed() => Err(Failure::new("interrupted; the Jobs go on").exit(INTERRUPTED)),
    }
}

/// A bar on a terminal; elsewhere, for `watch`, a line of data for each change.
struct Progress {
    context: Context,
    /// Hidden until it is known how the Jobs stand.
    bar: ProgressBar,
    live: bool,
    lines: bool,
    last_line: String,
    away: bool,
}

impl Progress {
    fn new(context: Context, watch: bool) -> Self {
        let live = is_interactive();
        let bar = ProgressBar::hidden();
        bar.set_style(style());
        let lines = watch && !live && !context.out.is_data();
        Self { context, bar, live, lines, last_line: String::new(), away: false }
    }

    fn is_live(&self) -> bool {
        self.live
    }

    fn report(&mut self, news: std::result::Result<&Counts, &ClientError>) -> Result<()> {
        match news {
            Ok(counts) => {
                self.away = false;
                let ended: i64 = counts.iter().filter(|(state, _)| state.is_terminal()).map(|(_, count)| count).sum();
                self.bar.update(|state| {
                    state.set_len(total(counts).unsigned_abs());
                    state.set_pos(ended.unsigned_abs());
                });
                self.bar.set_message(summary(counts));
                if self.live && self.bar.is_hidden() {
                    // What had ended before says nothing of how fast the rest ends.
                    self.bar.reset_eta();
                    self.bar.set_draw_target(ProgressDrawTarget::stderr());
                    self.bar.enable_steady_tick(Duration::from_millis(250));
                }
                let line = summary(counts);
                if self.lines && line != self.last_line {
                    let time = Clock::here();
                    self.context.out.text(&format!("{}  {line}\n", time.local_time(time.now)))?;
                    self.last_line = line;
                }
            }
            Err(_) if self.away => {}
            Err(error) => {
                self.away = true;
                let line = format!("{}; trying again", describe(error));
                self.bar.suspend(|| self.context.out.talk(&line));
            }
        }
        Ok(())
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:20} {pos}/{len} Jobs  {elapsed}{pace}  {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("pace", |state: &ProgressState, out: &mut dyn Write| {
            let _ = out.write_str(&pace(state.per_sec(), state.eta()));
        })
}

/// How many Jobs end in a time, and when the last one will at that rate; nothing while none ends.
fn pace(per_sec: f64, left: Duration) -> String {
    let (rate, unit) = [(per_sec, "s"), (per_sec * 60.0, "min"), (per_sec * 3600.0, "h")]
        .into_iter()
        .find(|(rate, _)| *rate >= 0.1)
        .unwrap_or_default();
    if unit.is_empty() { String::new() } else { format!(", {rate:.1}/{unit}, {} left", span(left.as_secs_f64())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_told_in_a_unit_that_fits_it() {
        let told = |per_sec: f64, left: u64| pace(per_sec, Duration::from_secs(left));
        assert_eq!(told(412.34, 20), ", 412.3/s, 20s left");
        assert_eq!(told(0.02, 3000), ", 1.2/min, 50m 00s left");
        assert_eq!(told(0.001, 7200), ", 3.6/h, 2h 00m left");
        assert_eq!([told(0.0, 0), told(1e-9, u64::MAX)], ["", ""]);
    }

    #[test]
    fn only_sensible_times_are_waited() {
        assert!(deadline(0.5).is_ok());
        for seconds in [-1.0, f64::NAN, f64::INFINITY, 1e18] {
            assert!(deadline(seconds).is_err(), "{seconds}");
        }
    }
}
