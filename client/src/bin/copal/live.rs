//! Following the event stream until Ctrl-C: reconnects where it was, and lends a piece of the
//! terminal for what changes. `follow` is the same for Jobs that come to an end.

use std::time::Duration;

use copal_client::{
    Client,
    api::{ChangeStream, StreamQuery},
};
use copal_schemas::event::Change;
use dialoguer::console::Term;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::{
    context::Context,
    failure::{Result, describe},
    interrupt::Interrupt,
    output::is_interactive,
};

/// Between tries to reach a service that is away.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How often what is shown is drawn anew: times relative to now go on without any change.
const TICK: Duration = Duration::from_millis(500);

/// What a watcher is told.
pub(crate) enum News {
    /// Something changed.
    Change(Box<Change>),
    /// Some time passed.
    Tick,
}

/// Tells `on` each change until Ctrl-C. A service that goes away is waited for; no change is lost.
///
/// # Errors
/// When the service refuses, when it is away from the beginning, and what `on` fails with.
pub(crate) async fn watch(
    context: Context,
    client: &Client,
    query: &StreamQuery,
    mut stream: ChangeStream,
    area: &Area,
    mut on: impl FnMut(News) -> Result<()>,
) -> Result<()> {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut interrupt = Interrupt::new();
    let mut away = false;
    loop {
        let position = stream.last_event_id();
        let broke = loop {
            tokio::select! {
                () = interrupt.pressed() => return Ok(()),
                _ = ticks.tick() => on(News::Tick)?,
                change = stream.next() => match change {
                    Ok(Some(change)) => on(News::Change(Box::new(change)))?,
                    Ok(None) => break None,
                    Err(error) if error.is_transient() => break Some(error),
                    Err(error) => return Err(error.into()),
                },
            }
        };
        if let Some(error) = broke {
            area.say(context, &format!("{}; trying again", describe(&error)));
            away = true;
        }
        let position = stream.last_event_id().or(position);
        stream = loop {
            let opened = tokio::select! {
                () = interrupt.pressed() => return Ok(()),
                opened = client.stream(query, position.clone()) => opened,
            };
            match opened {
                Ok(stream) => break stream,
                Err(error) if error.is_transient() => {
                    if !away {
                        area.say(context, &format!("{}; trying again", describe(&error)));
                        away = true;
                    }
                    tokio::select! {
                        () = interrupt.pressed() => return Ok(()),
                        () = sleep(RETRY_PAUSE) => {}
                    }
                }
                Err(error) => return Err(error.into()),
            }
        };
        away = false;
    }
}

/// The last lines of a terminal, drawn again and again; nothing where there is no terminal.
pub(crate) struct Area(ProgressBar);

impl Area {
    /// The part of stderr below what is there, where stderr is a terminal.
    pub(crate) fn new() -> Self {
        let bar = if is_interactive() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Whether there is somebody to see it.
    pub(crate) fn is_live(&self) -> bool {
        !self.0.is_hidden()
    }

    /// Draws these lines in place of those before; of more than the terminal has the first and the last.
    pub(crate) fn draw(&self, text: &str) {
        let (rows, _) = Term::stderr().size();
        self.0.set_message(fitting(text.trim_end(), rows.into()));
        self.0.tick();
    }

    /// A line that stays, above what is drawn.
    pub(crate) fn say(&self, context: Context, line: &str) {
        self.0.suspend(|| context.out.talk(line));
    }
}

impl Drop for Area {
    /// Leaves the terminal as it was.
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// As many lines of a table as a terminal of so many rows has room for: the headings, and the end, where what is new is.
fn fitting(text: &str, rows: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    // The cursor stands in a row of its own.
    let room = rows.saturating_sub(1).max(3);
    if lines.len() <= room {
        return text.to_owned();
    }
    [&[lines[0], "…"], &lines[lines.len() + 2 - room..]].concat().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_has_no_room_for_is_left_out_in_the_middle() {
        let text = "ID\n1\n2\n3\n4\nCtrl-C ends";
        assert_eq!(fitting(text, 7), text);
        assert_eq!(fitting(text, 6), "ID\n…\n3\n4\nCtrl-C ends");
        assert_eq!(fitting(text, 1), "ID\n…\nCtrl-C ends");
        assert_eq!(fitting("", 5), "");
    }
}
