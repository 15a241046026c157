//! The peers: verl's scorers, whose results our scorers reproduce exactly, and `math-verify`, which compares
//! answers by value like `math_equiv`.
//!
//! The script `bench/peers/reward_peer.py` runs them. Two releases of verl are installed, because their
//! versions of `math_dapo` differ. Only four files of verl are loaded, so verl's dependencies are not installed.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use rolldock_bench_figures::python::{Environment, Installation, Script, python};

// The names of the two peers in figures.
pub(super) const VERIFIER: &str = "math-verify 0.9.0";
pub(super) const REFERENCE: &str = "verl";

const ENVIRONMENT: Environment = Environment {
    packages: "math-verify==0.9.0 latex2sympy2_extended==1.11.0 sympy==1.14.0 antlr4-python3-runtime==4.13.2 \
               verl==0.9.0 verl==0.9.1",
    variable: "ROLLDOCK_SCORERS_ENV",
    folder: "rolldock-scorers",
};
const RELEASES: [&str; 2] = ["0.9.0", "0.9.1"];
const SCRIPT: &str = include_str!("../../peers/reward_peer.py");

/// The seconds of CPU time of a round, and the number of right responses.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Round {
    pub(super) seconds: f64,
    pub(super) right: usize,
}

/// The verdict of `math-verify` on two answers, and how it read them.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Said {
    pub(super) equal: bool,
    pub(super) truth: String,
    pub(super) answer: String,
}

/// The process that runs both peers.
pub(super) struct Peer {
    script: Script,
}

impl Peer {
    /// Installs the peers if they are missing, and starts them.
    pub(super) fn start() -> anyhow::Result<Self> {
        let folder = ENVIRONMENT.ready(install)?;
        Ok(Self { script: Script::start("the scorers in Python", &python(&folder), SCRIPT, &[&folder])? })
    }

    /// Lets the peer read from `file` the responses that each round scores. Returns the number of responses.
    pub(super) fn load(&mut self, file: &Path) -> anyhow::Result<usize> {
        #[derive(Deserialize)]
        struct Loaded {
            rows: usize,
        }
        Ok(self.script.ask::<Loaded>(&json!({"do": "load", "file": file}))?.rows)
    }

    /// Scores all responses once with a variant of verl's `math_dapo`: "2025" or "2026".
    pub(super) fn round(&mut self, variant: &str) -> anyhow::Result<Round> {
        self.script.ask(&json!({"do": "round", "variant": variant}))
    }

    /// The verdicts of verl's scorers on pairs of a response and a truth.
    pub(super) fn score(&mut self, rows: &[(String, String)]) -> anyhow::Result<Vec<Value>> {
        #[derive(Deserialize)]
        struct Scored {
            verdicts: Vec<Value>,
        }
        Ok(self.script.ask::<Scored>(&json!({"do": "score", "rows": rows}))?.verdicts)
    }

    /// The verdicts of `math-verify` on answers and truths.
    pub(super) fn verify(&mut self, pairs: &[(&str, &str)]) -> anyhow::Result<Vec<Said>> {
        #[derive(Deserialize)]
        struct Verified {
            said: Vec<Said>,
        }
        Ok(self.script.ask::<Verified>(&json!({"do": "verify", "pairs": pairs}))?.said)
    }
}

fn install(environment: &Installation) -> anyhow::Result<()> {
    let (pinned, _) = ENVIRONMENT.packages.split_once(" verl").unwrap_or((ENVIRONMENT.packages, ""));
    environment.step("pip install math-verify", environment.pip().args(pinned.split(' ')))?;
    for release in RELEASES {
        let target = environment.folder.join(format!("verl-{release}"));
        let mut pip = environment.pip();
        pip.args(["--no-deps", "--upgrade", "--target"]).arg(target).arg(format!("verl=={release}"));
        environment.step(&format!("pip install verl {release}, without its dependencies"), &mut pip)?;
    }
    Ok(())
}
