//! The peer: the Python package `transferqueue`, which runs on Ray, in an environment and processes of its
//! own.
//!
//! What is measured and how is in `bench/peers/transferqueue_peer.py`: one process for the whole run, asked
//! round by round with a line of JSON. Nothing of it is needed, nor looked for, without `--peer`.

use serde::Deserialize;
use serde_json::json;

use super::data::{LARGE_ROWS, PROMPT_TOKENS, RESPONSE_TOKENS, SMALL_BYTES};
use super::rounds::Round;
use crate::python::{Environment, Installation, Script, python};

pub(super) const NAME: &str = "transferqueue 0.1.11";
const ENVIRONMENT: Environment =
    Environment { packages: PACKAGE, variable: "ROLLDOCK_PEER_ENV", folder: "rolldock-peer" };
const PACKAGE: &str = "transferqueue==0.1.11";
const SCRIPT: &str = include_str!("../../peers/transferqueue_peer.py");
/// PyTorch for processors alone: what PyPI has for Linux brings CUDA along.
const CPU_WHEELS: &str = "https://download.pytorch.org/whl/cpu";

/// Bytes of its processes that hold no rows.
#[derive(Debug, Deserialize)]
pub(super) struct Memory {
    /// What each has resident, added up.
    pub(super) resident: f64,
    /// The same with shared pages counted once.
    pub(super) proportional: f64,
    /// Each of them, in words.
    processes: Vec<String>,
}

/// The peer's processes; they end with this value.
pub(super) struct Peer {
    script: Script,
}

impl Peer {
    /// Installs it if need be.
    pub(super) fn start() -> anyhow::Result<Self> {
        let folder = ENVIRONMENT.ready(install)?;
        eprintln!("peer: starting {NAME} with a controller and two storage units");
        let script = Script::start::<&str>(NAME, &python(&folder), SCRIPT, &[])?;
        Ok(Self { script })
    }

    /// Of its controller, its storage units and Ray's own processes, not of its client.
    pub(super) fn memory(&mut self) -> anyhow::Result<Memory> {
        let memory: Memory = self.script.ask(&json!({"do": "memory"}))?;
        for process in &memory.processes {
            eprintln!("peer: {process}");
        }
        Ok(memory)
    }

    /// One put and one take of the large batch.
    pub(super) fn large(&mut self) -> anyhow::Result<Round> {
        self.script.ask(&json!({
            "do": "large", "rows": LARGE_ROWS, "prompt_tokens": PROMPT_TOKENS, "response_tokens": RESPONSE_TOKENS,
        }))
    }

    /// So many puts and then so many takes, of so many rows of 1 KB each.
    pub(super) fn small(&mut self, rows: usize, calls: usize) -> anyhow::Result<Round> {
        self.script.ask(&json!({"do": "small", "rows": rows, "payload_bytes": SMALL_BYTES, "calls": calls}))
    }

    /// Seconds of each of so many takes of one column of the same rows.
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

fn install(environment: &Installation) -> anyhow::Result<()> {
    let mut from_index = environment.pip();
    from_index.args(["--retries", "0", "--timeout", "15", "--index-url", CPU_WHEELS, "torch"]);
    if environment.step("pip install torch, processors only", &mut from_index).is_err() {
        eprintln!("peer: {CPU_WHEELS} is out of reach; PyPI's torch comes with CUDA: 6 GB on disk");
        environment.step("pip install torch", environment.pip().arg("torch"))?;
    }
    environment.step("pip install transferqueue", environment.pip().args([PACKAGE, "psutil"]))
}
