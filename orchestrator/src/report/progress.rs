//! The live line. Drawn on standard error and only on a terminal; logs are printed above it.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::rollout::{Counts, Hold, Phase, RolloutView};

/// How often the line is redrawn: often enough to look alive, rarely enough to cost nothing.
const REDRAW: Duration = Duration::from_millis(250);

/// Owns the terminal's last line; clones share it.
#[derive(Clone, Debug)]
pub struct Progress {
    bars: MultiProgress,
    /// What is logged is kept there too, once a run has a directory.
    log: Arc<Mutex<Option<File>>>,
}

impl Progress {
    /// A display; `visible = false` draws nothing.
    pub fn new(visible: bool) -> Self {
        let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self { bars: MultiProgress::with_draw_target(target), log: Arc::default() }
    }

    /// Shows a step until `done` is cancelled. Cancel-safe.
    pub async fn follow(&self, step: u64, view: RolloutView, done: CancellationToken) {
        let bar = self.bars.add(ProgressBar::new(0));
        // The template is a constant; an error in it leaves the default style.
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

    /// Keeps what is logged from here on in a file too, behind what earlier lives of the run have logged.
    /// Blocks.
    pub fn keep_log(&self, file: &Path) -> io::Result<()> {
        *self.log.lock() = Some(OpenOptions::new().create(true).append(true).open(file)?);
        Ok(())
    }

    /// A writer for logs that keeps the live line below them.
    pub fn log_writer(&self) -> LogWriter {
        LogWriter { bars: self.bars.clone(), log: Arc::clone(&self.log) }
    }
}

/// Why nothing new is sent out, if that is so.
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
        // A full disk is no reason to be silent on the terminal.
        let _ = self.log.lock().as_mut().map(|log| log.write_all(text));
        self.bars.suspend(|| io::stderr().write_all(text))?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
