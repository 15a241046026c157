//! A served queue in a process of its own.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use rolldock_queue::{PartitionSpec, Queue, RemoteConfig, RemoteQueue};

/// `rolldock queue serve`; killed when dropped.
pub(super) struct Server {
    child: Child,
    url: String,
}

impl Server {
    /// Its rows are in memory, or also in the directory.
    pub(super) fn start(dir: Option<&Path>) -> anyhow::Result<Self> {
        let binary = std::env::current_exe()?.with_file_name("rolldock");
        anyhow::ensure!(
            binary.exists(),
            "{} is not there; build it: cargo build --release --bin rolldock",
            binary.display()
        );
        let mut command = Command::new(binary);
        command.args(["queue", "serve", "--listen", "127.0.0.1:0"]);
        if let Some(dir) = dir {
            command.arg("--dir").arg(dir);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        let url = line.split_once("at ").and_then(|(_, rest)| rest.split_once(','));
        let url = url.with_context(|| format!("the server said {line:?}"))?.0.to_owned();
        Ok(Self { child, url })
    }

    pub(super) fn client(&self) -> anyhow::Result<RemoteQueue> {
        Ok(RemoteQueue::new(RemoteConfig::new(&self.url))?)
    }

    /// A client, and a partition with the task `train`.
    pub(super) async fn declared(&self, name: &str, capacity_rows: usize) -> anyhow::Result<RemoteQueue> {
        let client = self.client()?;
        client.declare(PartitionSpec::new(name, ["train"], capacity_rows)).await?;
        Ok(client)
    }

    /// Resident memory, bytes.
    pub(super) fn resident(&self) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")).context("no VmRSS")?;
        Ok(kibibytes.trim().parse::<f64>()? * 1024.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
