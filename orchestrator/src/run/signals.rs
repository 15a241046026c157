//! What asks a process to end: Ctrl-C at a terminal, SIGTERM from a supervisor.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens from when it is made; until then either signal ends the process at once.
#[derive(Debug)]
pub struct Endings {
    interrupt: Signal,
    terminate: Signal,
}

impl Endings {
    /// # Errors
    /// Where the system does not let signals be heard.
    pub fn listen() -> anyhow::Result<Self> {
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
        let terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        Ok(Self { interrupt, terminate })
    }

    /// Completes when the end is asked for, once for each time. Cancel-safe.
    pub async fn asked(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
