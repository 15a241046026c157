//! The signals that ask a process to end: Ctrl-C at a terminal, SIGTERM from a supervisor.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for both signals from the moment at which it is made. Before that, either signal ends the process
/// at once.
#[derive(Debug)]
pub struct Endings {
    interrupt: Signal,
    terminate: Signal,
}

impl Endings {
    /// Begins to listen for both signals.
    ///
    /// # Errors
    /// If the system refuses to report signals to the process.
    pub fn listen() -> anyhow::Result<Self> {
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
        let terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        Ok(Self { interrupt, terminate })
    }

    /// Waits for the next signal that asks for the end. Cancel-safe.
    pub async fn asked(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
