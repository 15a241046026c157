//! The live line. It is drawn on standard error, and only on a terminal. All other output is printed above
//! the line.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rolldock_dispatch::Totals;
use tokio_util::sync::CancellationToken;

use super::line::{LiveLine, Stderr, Terminal};
use super::run_log::RunLog;
use crate::process::say;
use crate::rollout::{Counts, GroupLook, Hold, Phase, RolloutView, WaitLook};

/// The time between two updates of the line.
const REDRAW: Duration = Duration::from_millis(250);
/// The age from which the line names the oldest group, in seconds.
const OLD_S: f64 = 5.0;
/// The minimum and the maximum width of the bar between its brackets, in columns.
const BAR_MIN: usize = 4;
const BAR_MAX: usize = 28;

/// A handle of the terminal's last line and of the run's log. Clones share both.
#[derive(Clone)]
pub struct Progress {
    line: Arc<LiveLine>,
    log: RunLog,
}

impl Progress {
    /// Creates a display. With `visible = false`, or without a terminal, it draws nothing.
    pub fn new(visible: bool) -> Self {
        let is_drawn = visible && io::stderr().is_terminal();
        let terminal = is_drawn.then(|| -> Box<dyn Terminal> { Box::new(Stderr) });
        Self { line: Arc::new(LiveLine::new(terminal)), log: RunLog::new() }
    }

    /// Shows a step until `done` is cancelled. Cancel-safe.
    pub async fn follow(&self, step: u64, view: RolloutView, done: CancellationToken) {
        if !self.line.is_drawn() {
            done.cancelled().await;
            return;
        }
        let started_at = tokio::time::Instant::now();
        loop {
            let figures = Figures::of(&view, step, started_at.elapsed());
            self.line.show(|room| figures.line(room));
            tokio::select! {
                biased;
                () = done.cancelled() => break,
                () = tokio::time::sleep(REDRAW) => {}
            }
        }
        self.line.clear();
    }

    /// Prints a text on standard output, above the line.
    pub fn say(&self, text: &str) {
        self.line.above(|| say(text));
    }

    /// Appends the logs since the start of the process, and all later logs, to `file`. The file keeps the
    /// logs of earlier processes of the run. Blocks.
    pub fn keep_log(&self, file: &Path) -> io::Result<()> {
        self.log.keep(file)
    }

    /// A writer for logs, which are printed on standard error, above the line.
    pub fn log_writer(&self) -> LogWriter {
        LogWriter { line: Arc::clone(&self.line) }
    }

    /// A writer for the log of the run.
    pub fn run_log(&self) -> RunLog {
        self.log.clone()
    }
}

/// The figures that the line shows.
struct Figures {
    step: u64,
    counts: Counts,
    totals: Totals,
    on_engines: usize,
    waiting: usize,
    /// The oldest group that has not ended.
    oldest: Option<GroupLook>,
    tokens_per_s: f64,
}

impl Figures {
    fn of(view: &RolloutView, step: u64, elapsed: Duration) -> Self {
        let waits = view.waits();
        Self {
            step: view.step().max(step),
            counts: view.counts(),
            totals: view.totals(),
            on_engines: waits.count(Phase::Engine),
            waiting: waits.count(Phase::Permit),
            oldest: view.oldest(),
            tokens_per_s: view.costs().tokens as f64 / elapsed.as_secs_f64().max(1e-3),
        }
    }

    /// The text of the line, with at most `room` columns. Parts that do not fit are left out, beginning with
    /// the last part.
    fn line(&self, room: usize) -> String {
        let head = format!("step {} ", self.step);
        let mut text = String::new();
        for part in self.parts() {
            let comma = if text.is_empty() { "" } else { ", " };
            if head.len() + text.len() + comma.len() + part.len() > room {
                break;
            }
            text = format!("{text}{comma}{part}");
        }
        let bar = self.bar(room.saturating_sub(head.len() + text.len()));
        format!("{head}{bar}{text}").chars().take(room).collect()
    }

    /// The parts of the line, the most important first. The counts of failed, filtered and cancelled groups
    /// are left out if they are 0.
    fn parts(&self) -> Vec<String> {
        let Self { counts, totals, .. } = self;
        let cancelled = totals.cancelled + totals.requeued;
        let unless_none = |count: u64, word: &str| (count > 0).then(|| format!("{count} {word}"));
        let parts = [
            Some(format!("{}/{} valid", counts.valid, counts.target)),
            hold_words(counts).map(str::to_owned),
            unless_none(totals.failed, "failed"),
            self.oldest.as_ref().and_then(oldest_words),
            Some(format!("{} groups", counts.running)),
            Some(format!("{} on engines", self.on_engines)),
            Some(format!("{} waiting", self.waiting)),
            Some(format!("{:.0} tokens/s", self.tokens_per_s)),
            unless_none(totals.filtered, "filtered"),
            unless_none(cancelled, "cancelled"),
        ];
        parts.into_iter().flatten().collect()
    }

    /// A bar of at most `room` columns; empty if `room` is too small.
    fn bar(&self, room: usize) -> String {
        let cells = room.saturating_sub("[] ".len()).min(BAR_MAX);
        if cells < BAR_MIN {
            return String::new();
        }
        let Counts { valid, target, .. } = self.counts;
        let filled = (cells * valid.min(target)).checked_div(target).unwrap_or(0);
        let head = if filled > 0 && filled < cells { ">" } else { "" };
        let bar = format!("{}{head}", "=".repeat(filled));
        format!("[{bar:cells$}] ")
    }
}

/// The oldest group that has not ended, with its wait; `None` if its age is below [`OLD_S`].
fn oldest_words(group: &GroupLook) -> Option<String> {
    let age = group.age_s.filter(|age| *age >= OLD_S)?;
    let by_age = |left: &&WaitLook, right: &&WaitLook| left.age_s.total_cmp(&right.age_s);
    let is_served = |wait: &&WaitLook| !wait.phase.is_in_line();
    let longest = group.waits.iter().filter(is_served).max_by(by_age);
    let place = match longest.or(group.waits.iter().max_by(by_age)) {
        Some(WaitLook { phase: Phase::Engine, server: Some(server), .. }) => format!(" on {server}"),
        Some(WaitLook { phase, .. }) => format!(", waits for {phase}"),
        None => String::new(),
    };
    Some(format!("oldest is {} after {age:.0} s{place}", group.dispatch))
}

/// The reason why no new groups are sent out.
fn hold_words(counts: &Counts) -> Option<&'static str> {
    match counts.hold? {
        Hold::Trainer => Some("held back by the trainer"),
        Hold::Queue => Some("held back by the full queue"),
        Hold::Reward => Some("held back by an outage of the reward"),
    }
}

/// Writes to standard error above the live line.
#[derive(Clone)]
pub struct LogWriter {
    line: Arc<LiveLine>,
}

impl Write for LogWriter {
    /// Never fails, because a closed terminal must not suppress the run's log.
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let _ = self.line.above(|| io::stderr().write_all(text));
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
