//! The peer: the Python package `transferqueue`, which runs on Ray. It has its own environment and processes.
//!
//! The script `bench/peers/transferqueue_peer.py` has the measurements. One process serves the whole run and
//! gets a line of JSON in each round. Without `--peer`, only the sub-command `python` needs the environment,
//! and no process of the peer runs.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::json;

use super::data::{LARGE_ROWS, PROMPT_TOKENS, RESPONSE_TOKENS, SMALL_BYTES};
use super::rounds::Round;
use rolldock_bench_figures::python::{Environment, Installation, Script, python};

pub(super) const NAME: &str = "transferqueue 0.1.11";
const ENVIRONMENT: Environment =
    Environment { packages: PACKAGE, variable: "ROLLDOCK_PEER_ENV", folder: "rolldock-peer" };
const PACKAGE: &str = "transferqueue==0.1.11";
const SCRIPT: &str = include_str!("../../peers/transferqueue_peer.py");
/// The index of PyTorch's CPU-only packages. The package for Linux on PyPI includes CUDA.
const CPU_WHEELS: &str = "https://download.pytorch.org/whl/cpu";

/// The memory of the peer's processes before they hold rows, in bytes.
#[derive(Debug, Deserialize)]
pub(super) struct Memory {
    /// The sum of the processes' resident memory.
    pub(super) resident: f64,
    /// The sum of the processes' memory, with shared pages counted once.
    pub(super) proportional: f64,
    /// A line of text about each process.
    processes: Vec<String>,
}

/// The peer's processes. They end when this value is dropped.
pub(super) struct Peer {
    script: Script,
}

impl Peer {
    /// Installs the peer if it is missing, and starts it.
    pub(super) fn start() -> anyhow::Result<Self> {
        let folder = environment()?;
        eprintln!("peer: starting {NAME} with a controller and two storage units");
        let script = Script::start::<&str>(NAME, &python(&folder), SCRIPT, &[])?;
        Ok(Self { script })
    }

    /// The memory of the controller, the storage units and Ray's own processes, without the client.
    pub(super) fn memory(&mut self) -> anyhow::Result<Memory> {
        let memory: Memory = self.script.ask(&json!({"do": "memory"}))?;
        for process in &memory.processes {
            eprintln!("peer: {process}");
        }
        Ok(memory)
    }

    /// Measures one put and one take of the large batch.
    pub(super) fn large(&mut self) -> anyhow::Result<Round> {
        self.script.ask(&json!({
            "do": "large", "rows": LARGE_ROWS, "prompt_tokens": PROMPT_TOKENS, "response_tokens": RESPONSE_TOKENS,
        }))
    }

    /// Measures `calls` puts and then `calls` takes of `rows` rows of 1 KB each.
    pub(super) fn small(&mut self, rows: usize, calls: usize) -> anyhow::Result<Round> {
        self.script.ask(&json!({"do": "small", "rows": rows, "payload_bytes": SMALL_BYTES, "calls": calls}))
    }

    /// The seconds of each of `calls` takes of one column of `rows` rows of 1 KB.
    pub(super) fn small_takes(&mut self, rows: usize, calls: usize) -> anyhow::Result<Vec<f64>> {
        #[derive(Deserialize)]
        struct Takes {
            seconds: Vec<f64>,
        }
        let command =
            json!({"do": "small_takes", "rows": rows, "payload_bytes": SMALL_BYTES, "calls": calls});
        Ok(self.script.ask::<Takes>(&command)?.seconds)
    }
}

/// The folder of the peer's environment, which has torch. Installs the packages if they are missing.
pub(super) fn environment() -> anyhow::Result<PathBuf> {
    ENVIRONMENT.ready(install)
}

fn install(environment: &Installation) -> anyhow::Result<()> {
    let mut from_index = environment.pip();
    from_index.args(["--retries", "0", "--timeout", "15", "--index-url", CPU_WHEELS, "torch"]);
    if environment.step("pip install torch, processors only", &mut from_index).is_err() {
        eprintln!("peer: {CPU_WHEELS} cannot be reached; PyPI's torch includes CUDA: 6 GB on disk");
        environment.step("pip install torch", environment.pip().arg("torch"))?;
    }
    environment.step("pip install transferqueue", environment.pip().args([PACKAGE, "psutil"]))
}
