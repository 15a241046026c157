//! The live line. It is drawn on standard error, and only on a terminal. Logs are printed above it.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::rollout::{Counts, Hold, Phase, RolloutView};

/// The time between two updates of the line.
const REDRAW: Duration = Duration::from_millis(250);

/// A handle of the terminal's last line, which clones share.
#[derive(Clone, Debug)]
pub struct Progress {
    bars: MultiProgress,
    /// The file to which logs are also written, once a run has a directory.
    log: Arc<Mutex<Option<File>>>,
}

impl Progress {
    /// Creates a display. With `visible = false` it draws nothing.
    pub fn new(visible: bool) -> Self {
        let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self { bars: MultiProgress::with_draw_target(target), log: Arc::default() }
    }

    /// Shows a step until `done` is cancelled. Cancel-safe.
    pub async fn follow(&self, step: u64, view: RolloutView, done: CancellationToken) {
        let bar = self.bars.add(ProgressBar::new(0));
        // The template is a constant. If it had an error, the default style would be used.
        if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:28}] {pos}/{len} valid  {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        let started_at = tokio::time::Instant::now();
        loop {
            let counts = view.counts();
            let totals = view.totals();
            let costs = view.costs();
            let waits = view.waits();
            let seconds = started_at.elapsed().as_secs_f64().max(1e-3);
            bar.set_prefix(format!("step {}", view.step().max(step)));
            bar.set_length(counts.target as u64);
            bar.set_position(counts.valid as u64);
            bar.set_message(format!(
                "{} groups running ({} samples on engines, {} waiting), {:.0} tokens/s, {} filtered, {} cancelled",
                counts.running,
                waits.count(Phase::Engine),
                waits.count(Phase::Permit),
                costs.tokens as f64 / seconds,
                totals.filtered,
                totals.cancelled + totals.requeued,
            ) + hold_words(counts));
            tokio::select! {
                biased;
                () = done.cancelled() => break,
                () = tokio::time::sleep(REDRAW) => {}
            }
        }
        bar.finish_and_clear();
    }

    /// Also appends all later logs to `file`. It keeps the logs of earlier lives of the run. Blocks.
    pub fn keep_log(&self, file: &Path) -> io::Result<()> {
        *self.log.lock() = Some(OpenOptions::new().create(true).append(true).open(file)?);
        Ok(())
    }

    /// A writer for logs, which are printed above the live line.
    pub fn log_writer(&self) -> LogWriter {
        LogWriter { bars: self.bars.clone(), log: Arc::clone(&self.log) }
    }
}

/// The reason why no new groups are sent out, or an empty text.
fn hold_words(counts: Counts) -> &'static str {
    match counts.hold {
        None => "",
        Some(Hold::Trainer) => "; held back: the trainer's next version is awaited",
        Some(Hold::Queue) => "; held back: the queue has no room for what is accepted",
    }
}

/// Writes to standard error above the live line.
#[derive(Clone, Debug)]
pub struct LogWriter {
    bars: MultiProgress,
    log: Arc<Mutex<Option<File>>>,
}

impl io::Write for LogWriter {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        // An error of the file, for example a full disk, must not suppress logs on the terminal.
        let _ = self.log.lock().as_mut().map(|log| log.write_all(text));
        self.bars.suspend(|| io::stderr().write_all(text))?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
