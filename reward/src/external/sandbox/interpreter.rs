//! Finds the files that a Python interpreter consists of.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;
use tokio::time::timeout;

use super::WHAT;
use crate::RewardError;
use crate::external::answer::quote;

/// The time limit of the interpreter's answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// The program that asks an interpreter for its paths. It runs with this process's environment, because the
/// name may be a script that chooses an interpreter.
const QUESTION: &str = "import json, sys; print(json.dumps({'executable': sys.executable, 'prefixes': \
     [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]}))";
/// The entries that an interpreter needs below its prefix.
const PARTS: [&str; 4] = ["bin", "lib", "lib64", "pyvenv.cfg"];
/// The directory that is visible in every sandbox.
const SYSTEM: &str = "/usr";

/// A Python interpreter on this host.
#[derive(Debug, Clone)]
pub(in crate::external) struct Interpreter {
    /// The absolute path of the interpreter.
    pub(in crate::external) executable: PathBuf,
    /// The paths that it needs besides the system's directories.
    pub(in crate::external) parts: BTreeSet<PathBuf>,
}

#[derive(Deserialize)]
struct Answer {
    executable: PathBuf,
    prefixes: Vec<PathBuf>,
}

impl Interpreter {
    /// Asks the interpreter `name` for its paths. Cancel-safe.
    pub(in crate::external) async fn find(name: &str) -> Result<Self, RewardError> {
        let never = |reason: String| RewardError::Unloadable { what: WHAT.into(), reason };
        let mut command = Command::new(name);
        command.args(["-c", QUESTION]).stdin(Stdio::null()).kill_on_drop(true);
        let output = match timeout(ANSWER_MAX, command.output()).await {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => return Err(never(format!("interpreter {name:?}: {error}"))),
            Err(_) => return Err(never(format!("interpreter {name:?} did not answer in time"))),
        };
        let answer: Answer = serde_json::from_slice(&output.stdout).map_err(|error| {
            let stderr = quote(&output.stderr);
            never(format!("expected interpreter {name:?} to be a Python ({error}); stderr: {stderr:?}"))
        })?;
        Ok(Self { parts: parts(&answer), executable: answer.executable })
    }
}

fn parts(answer: &Answer) -> BTreeSet<PathBuf> {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    let mut prefixes: BTreeSet<PathBuf> = answer.prefixes.iter().cloned().collect();
    prefixes.extend(answer.prefixes.iter().filter_map(|prefix| real(prefix)));
    // The executable of a virtual environment is a link, perhaps through further links, to the executable of
    // another Python.
    let mut links = answer.executable.clone();
    for _ in 0..LINKS_MAX {
        prefixes.extend(links.parent().and_then(Path::parent).map(Path::to_owned));
        let Ok(target) = std::fs::read_link(&links) else { break };
        links = links.parent().unwrap_or(Path::new("/")).join(target);
    }
    prefixes.extend(
        real(&answer.executable).as_deref().and_then(Path::parent).and_then(Path::parent).map(Path::to_owned),
    );
    let places = prefixes.iter().flat_map(|prefix| PARTS.map(|part| prefix.join(part)));
    places
        .filter(|place| !place.starts_with(SYSTEM) && place.components().count() > 2 && place.exists())
        .collect()
}

/// Maximum number of links from a virtual environment to its Python.
const LINKS_MAX: usize = 8;
