//! A queue that a separate process serves.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::Context;
use rolldock_queue::{PartitionSpec, Queue, RemoteConfig, RemoteQueue};

use crate::process::Process;

/// A server that is reached over loopback.
pub(super) struct Server {
    process: Process,
    url: String,
}

impl Server {
    /// Starts a server that keeps its rows in `dir`, or in memory without one.
    pub(super) fn start(dir: Option<&Path>) -> anyhow::Result<Self> {
        let mut arguments = ["queue", "serve", "--listen", "127.0.0.1:0"].map(OsStr::new).to_vec();
        if let Some(dir) = dir {
            arguments.extend([OsStr::new("--dir"), dir.as_os_str()]);
        }
        let (process, line) = Process::start(&arguments)?;
        let url = line.split_once("at ").and_then(|(_, rest)| rest.split_once(','));
        let url = url
            .with_context(|| format!("expected a line with the address of the server, found {line:?}"))?
            .0
            .to_owned();
        Ok(Self { process, url })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn client(&self) -> anyhow::Result<RemoteQueue> {
        Ok(RemoteQueue::new(RemoteConfig::new(&self.url))?)
    }

    /// Declares a partition with the task `train`, and returns a client.
    pub(super) async fn declared(&self, name: &str, capacity_rows: usize) -> anyhow::Result<RemoteQueue> {
        let client = self.client()?;
        client.declare(PartitionSpec::new(name, ["train"], capacity_rows)).await?;
        Ok(client)
    }

    /// CPU time of the server so far, in seconds.
    pub(super) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        self.process.cpu_seconds()
    }

    /// Number of open sockets of the server.
    pub(super) fn connections(&self) -> anyhow::Result<usize> {
        self.process.sockets()
    }

    /// Resident memory, in bytes.
    pub(super) fn resident(&self) -> anyhow::Result<f64> {
        self.process.memory("VmRSS")
    }

    /// Resident memory without mapped files and shared memory, in bytes.
    pub(super) fn anonymous(&self) -> anyhow::Result<f64> {
        self.process.memory("RssAnon")
    }
}
