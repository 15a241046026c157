//! The signals that ask a process to end: Ctrl-C at a terminal, SIGTERM from a supervisor, and SIGHUP when
//! the terminal is closed. SIGHUP is handled like SIGTERM.

use std::fmt;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The number of SIGHUP on every Unix.
const HANGUP: u32 = 1;

/// The kind of signal that asked a process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM or SIGHUP.
    Terminate,
}

impl Ending {
    /// The exit code of a process that this signal has ended early: 128 plus the number of SIGINT or SIGTERM.
    /// Shells report the same code for a process that SIGINT or SIGTERM has killed.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Interrupt => "Ctrl-C",
            Self::Terminate => "SIGTERM or SIGHUP",
        })
    }
}

/// Listens for the signals from its creation on. Before that, each of the signals kills the process, unless the
/// process ignores the signal.
#[derive(Debug)]
pub struct Endings {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Endings {
    /// Starts to listen for the signals. On Linux, if the process was started with SIGHUP ignored, for
    /// example by `nohup`, SIGHUP stays ignored.
    ///
    /// # Errors
    /// Returns an error if the system refuses to report signals to the process.
    pub fn listen() -> anyhow::Result<Self> {
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
        let terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hangup = match is_ignored(&status, HANGUP) {
            true => None,
            false => Some(signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?),
        };
        Ok(Self { interrupt, terminate, hangup })
    }

    /// Waits for the next signal that asks the process to end. Cancel-safe.
    pub async fn asked(&mut self) -> Ending {
        let hung_up = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => Ending::Interrupt,
            _ = self.terminate.recv() => Ending::Terminate,
            _ = hung_up => Ending::Terminate,
        }
    }
}

/// Whether a process ignores the signal with this number. `status` is the text of the process's
/// `/proc/PID/status`. If this text is empty, the result is `false`.
fn is_ignored(status: &str, number: u32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (number - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_hangup_is_seen_in_the_status_of_the_process() {
        let status =
            |mask: &str| format!("Name:\trolldock\nSigBlk:\tffffffff\nSigIgn:\t{mask}\nSigCgt:\t1\n");
        assert!(is_ignored(&status("0000000000001001"), HANGUP));
        assert!(!is_ignored(&status("0000000000001002"), HANGUP));
        assert!(!is_ignored("", HANGUP), "on a system without the file, the signal counts as not ignored");
    }

    #[test]
    fn a_shell_sees_which_signal_cut_the_process_off() {
        assert_eq!((Ending::Interrupt.exit_code(), Ending::Terminate.exit_code()), (130, 143));
    }
}
